"""The worst days, one function each: what happens to a pipeline, wherever its lake and its source are.

Each leaves changes before and behind the damage.  What `sync` has to say then is beside it in ``DAYS``.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg import sql

from tests.conftest import Database
from tests.e2e.oracle import source_rows

TABLES = ["accounts", "bag"]
SETUP = (
    "CREATE TABLE accounts (id int PRIMARY KEY, v text, n numeric);"
    "CREATE TABLE bag (a int, v text); ALTER TABLE bag REPLICA IDENTITY FULL;"
    "INSERT INTO accounts SELECT g, 'v', g FROM generate_series(1, 60) g;"
    "INSERT INTO bag SELECT g % 5, 'x' FROM generate_series(1, 40) g"
)


@dataclass
class Shop:
    """A pipeline, its source, and its source's place-holder on the day when that is another cluster."""

    database: Database
    pipeline: Any
    other: Callable[[], Database]
    changes: int = 0

    def sql(self, statements: str) -> None:
        self.database.execute(statements)

    def change(self) -> None:
        """Something of each kind in both tables."""
        self.changes += 1
        n = self.changes
        self.sql(
            f"INSERT INTO accounts VALUES ({1000 + n}, 'new {n}', 'NaN'), ({2000 + n}, NULL, NULL);"
            f"UPDATE accounts SET v = 'at {n}', n = -{n} WHERE id % 7 = {n % 7};"
            f"DELETE FROM accounts WHERE id = {n}; UPDATE accounts SET id = -id WHERE id = {60 - n};"
            f"INSERT INTO bag VALUES ({n}, NULL), ({n}, NULL);"
            "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag)"
        )

    def held(self) -> dict[str, Counter[Any]]:
        with self.database.connect() as connection:
            return {table: source_rows(connection, table)[1] for table in TABLES}

    def spark(self, statement: str) -> list[Any]:
        rows: list[Any] = self.pipeline.session.sql(statement).collect()
        return rows

    def lake_table(self, table: str) -> str:
        return f"{self.pipeline.lake.catalog}.{self.pipeline.lake.namespace}.{table}"

    def roll_back(self, table: str) -> int:
        """Move a table to the snapshot before its newest; which that was."""
        snapshots = f"{self.lake_table(table)}.snapshots ORDER BY committed_at DESC"
        newest, before = self.spark(f"SELECT snapshot_id, parent_id FROM {snapshots} LIMIT 1")[0]
        name = f"{self.pipeline.lake.namespace}.{table}"
        call = f"CALL {self.pipeline.lake.catalog}.system.rollback_to_snapshot('{name}', {before})"
        self.spark(call)
        return int(newest)

    def lead_to(self, database: Database) -> None:
        """The pipeline file's dsn names another server from now on."""
        file = self.pipeline.file.path
        file.write_text(file.read_text().replace(self.database.dsn, database.dsn))
        self.database = database


def slot_dropped(shop: Shop) -> None:
    shop.sql(f"SELECT pg_drop_replication_slot('{shop.pipeline.source.slot}')")


def slot_moved(shop: Shop) -> None:
    shop.sql(f"SELECT pg_replication_slot_advance('{shop.pipeline.source.slot}', pg_current_wal_lsn())")


def slot_invalidated(shop: Shop) -> None:
    shop.sql("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    shop.sql("SELECT pg_reload_conf()")
    for _ in range(4):
        shop.sql("SELECT pg_switch_wal(); SELECT txid_current()")
    shop.sql("CHECKPOINT")
    shop.sql("ALTER SYSTEM RESET max_slot_wal_keep_size")
    shop.sql("SELECT pg_reload_conf()")


def publication_dropped(shop: Shop) -> None:
    shop.sql(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(shop.pipeline.name)).as_string(None))


def table_recreated(shop: Shop) -> None:
    shop.sql(
        "DROP TABLE bag; CREATE TABLE bag (a int, v text); ALTER TABLE bag REPLICA IDENTITY FULL;"
        f"ALTER PUBLICATION {shop.pipeline.name} ADD TABLE bag; INSERT INTO bag VALUES (1, 'y'), (2, NULL)"
    )


def rolled_back(shop: Shop) -> None:
    for table in ("accounts", "accounts__history", "bag"):
        shop.roll_back(table)


def commits_rolled_back(shop: Shop) -> None:
    """Together with a table, which only the newest row of `commits` tells of."""
    shop.roll_back("accounts")
    shop.roll_back("commits")


def snapshot_removed(shop: Shop) -> None:
    _remove_newest(shop, "accounts")


def commits_snapshot_removed(shop: Shop) -> None:
    """Nothing says any more where the lake had been, but its tables and the slot."""
    _remove_newest(shop, "commits")


def _remove_newest(shop: Shop, table: str) -> None:
    newest = shop.roll_back(table)
    place = shop.lake_table(table)
    for (tag,) in shop.spark(f"SELECT name FROM {place}.refs WHERE snapshot_id = {newest}"):
        shop.spark(f"ALTER TABLE {place} DROP TAG {tag}")
    name = f"{shop.pipeline.lake.namespace}.{table}"
    call = f"CALL {shop.pipeline.lake.catalog}.system.expire_snapshots"
    shop.spark(f"{call}(table => '{name}', snapshot_ids => ARRAY({newest}))")


def file_missing(shop: Shop) -> None:
    for table in ("bag", "accounts__history"):
        for (path,) in shop.spark(f"SELECT file_path FROM {shop.lake_table(table)}.files"):
            Path(path.removeprefix("file:")).unlink(missing_ok=True)


def batch_altered(shop: Shop) -> None:
    batch = shop.pipeline.pull().batch
    files = sorted((shop.pipeline.file.changelog_dir / batch).glob("*.parquet"))
    files[0].write_bytes(b"not what was written")


def batch_missing(shop: Shop) -> None:
    shutil.rmtree(shop.pipeline.file.changelog_dir / shop.pipeline.pull().batch)


def another_cluster(shop: Shop) -> None:
    """A server that counts from lower numbers than the lake has reached."""
    shop.lead_to(shop.other())


# What happens, and a part of what `sync` says then; "" if it goes on by itself, or does not notice.
DAYS: dict[str, tuple[Callable[[Shop], None], str]] = {
    "slot dropped": (slot_dropped, "does not exist"),
    "slot moved": (slot_moved, "the slot is confirmed up to"),
    "slot invalidated": (slot_invalidated, "has invalidated the slot"),
    "publication dropped": (publication_dropped, "no publication"),
    "table re-created": (table_recreated, ""),
    "rolled back": (rolled_back, "was rolled back by hand"),
    "commits rolled back": (commits_rolled_back, "was rolled back by hand"),
    "snapshot removed": (snapshot_removed, "was removed by hand"),
    "file missing": (file_missing, ""),
    "batch altered": (batch_altered, "is damaged"),
    "batch missing": (batch_missing, ""),
    "commits' snapshot removed": (commits_snapshot_removed, "the slot is confirmed up to"),
    "another cluster": (another_cluster, "another PostgreSQL cluster"),
}
_NET = "seen by its net effect only"
# On which something is gone for good: a part of each line by which `recover` says what.
LOSING: dict[str, list[str]] = {
    "slot dropped": [_NET],
    "slot moved": [_NET],
    "slot invalidated": [_NET],
    "publication dropped": [_NET],
    "file missing": ["accounts__history: it begins again"],
    "commits' snapshot removed": [_NET],
    "another cluster": [_NET, "the source has not, or not any more, are undone"],
}
