"""Each page of docs/runbook in the situation that it is about: what it shows is seen, what it says is run."""

from __future__ import annotations

import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from slotlake import Pipeline
from slotlake.infra.cli.main import main
from slotlake.infra.local.postgres import EmbeddedPostgres, temporary_postgres
from tests.conftest import ROOT, Database, fresh_database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = pytest.mark.timeout(600)

PAGES = ROOT / "docs" / "runbook"
TABLES = ["orders", "lines"]


@dataclass
class Shop:
    """A pipeline on a server of its own, driven by the command."""

    server: EmbeddedPostgres
    database: Database
    file: Path
    capture: Any = None

    def sql(self, statement: str) -> None:
        self.database.execute(statement)

    def slot(self) -> str:
        with Pipeline.open(self.file) as pipeline:
            return pipeline.source.slot

    def change(self, note: str) -> None:
        """Something of each kind, in both tables."""
        self.sql(
            f"INSERT INTO orders VALUES ((SELECT max(id) + 1 FROM orders), '{note}');"
            f"UPDATE orders SET note = '{note}' WHERE id % 50 = 1;"
            "DELETE FROM lines WHERE id = (SELECT min(id) FROM lines);"
            "INSERT INTO lines VALUES ((SELECT max(id) + 1 FROM lines), 1.5)"
        )

    def run(self, line: str) -> tuple[int, str]:
        """A line of a page; exit code, and what it printed."""
        words = shlex.split(line, comments=True)
        assert words[0] == "slotlake", line
        self.capture.readouterr()
        code = main([str(self.file) if word == "PIPELINE.yaml" else word for word in words[1:]])
        said = self.capture.readouterr()
        return code, said.out + said.err


@pytest.fixture(scope="module")
def running(session: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with ExitStack() as stack:
        conf = {"max_prepared_transactions": "5", "max_wal_size": "128MB", "shared_buffers": "16MB"}
        server = stack.enter_context(temporary_postgres(version=18, conf=conf))
        database = stack.enter_context(fresh_database(server))
        database.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, note text);"
            "CREATE TABLE lines (id int PRIMARY KEY, price numeric(10, 2));"
            "INSERT INTO orders SELECT g, 'n' FROM generate_series(1, 500) g;"
            "INSERT INTO lines SELECT g, g FROM generate_series(1, 500) g"
        )
        file = pipeline_file(tmp_path_factory.mktemp("runbook"), database, TABLES)
        shop = Shop(server, database, file)
        assert main(["init", str(file)]) == 0
        yield shop


@pytest.fixture
def shop(running: Shop, capsys: Any) -> Shop:
    running.capture = capsys
    return running


def shown(page: str) -> list[tuple[str, str]]:
    """Each command of a console block, and what it says, ``…`` for anything."""
    blocks = re.findall(r"```console\n((?:.*\n)*?)```", (PAGES / f"{page}.md").read_text())
    found = [said for block in blocks for said in re.findall(r"\$ (.*)\n((?:[^$].*\n)*)", block)]
    return [(command, said.strip()) for command, said in found]


def commands(page: str) -> list[str]:
    """The lines that the page says to run."""
    blocks = re.findall(r"```sh\n((?:.*\n)*?)```", (PAGES / f"{page}.md").read_text())
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def follow(shop: Shop, page: str) -> str:
    """Go by the page, from the symptom to the end; what its commands printed."""
    told = ""
    for command, said in shown(page):
        code, printed = shop.run(command)
        pattern = r"[\s\S]*?".join(map(re.escape, said.split("…")))
        assert code != 0, (page, printed)
        assert re.search(pattern, printed), (page, printed)
        assert "slotlake recover" in printed, (page, printed)
    for line in commands(page):
        code, printed = shop.run(line)
        assert code == 0, (page, line, printed)
        told += printed
    with Pipeline.open(shop.file) as pipeline:
        pipeline.sync()
        assert_equal(shop.database, pipeline, TABLES)
        assert pipeline.recover().plan == []
    return told


# -- the situations -------------------------------------------------------------------------------


def _slot_dropped(shop: Shop) -> None:
    shop.sql(f"SELECT pg_drop_replication_slot('{shop.slot()}')")
    shop.change("dropped")


def _slot_moved(shop: Shop) -> None:
    shop.change("moved")
    shop.sql(f"SELECT pg_replication_slot_advance('{shop.slot()}', pg_current_wal_lsn())")


def _slot_invalidated(shop: Shop) -> None:
    shop.sql("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    shop.sql("SELECT pg_reload_conf()")
    shop.change("invalidated")
    for _ in range(4):
        shop.sql("SELECT pg_switch_wal(); SELECT txid_current()")
    shop.sql("CHECKPOINT")
    shop.sql("ALTER SYSTEM RESET max_slot_wal_keep_size")
    shop.sql("SELECT pg_reload_conf()")


def _publication_dropped(shop: Shop) -> None:
    shop.sql("DROP PUBLICATION shop")
    shop.change("unpublished")


def _table_recreated(shop: Shop) -> None:
    shop.sql(
        "DROP TABLE lines; CREATE TABLE lines (id int PRIMARY KEY, price numeric(10, 2));"
        "ALTER PUBLICATION shop ADD TABLE lines; INSERT INTO lines VALUES (1, 2), (2, 3)"
    )


def _lake_changed(shop: Shop) -> None:
    shop.change("rolled back")
    assert shop.run("slotlake sync PIPELINE.yaml")[0] == 0
    with Pipeline.open(shop.file) as pipeline:
        catalog, session = pipeline.lake.catalog, pipeline.session
        parents = session.sql(f"SELECT parent_id FROM {catalog}.shop.orders.snapshots ORDER BY committed_at")
        call = f"CALL {catalog}.system.rollback_to_snapshot('shop.orders', {parents.collect()[-1][0]})"
        session.sql(call).collect()
    shop.change("after the rollback")


def _batch_altered(shop: Shop) -> None:
    shop.change("altered")
    with Pipeline.open(shop.file) as pipeline:
        batch = pipeline.pull().batch
        assert batch is not None
        (pipeline.file.changelog_dir / batch / "r0.0.parquet").write_bytes(b"not what was written")


def _nothing(shop: Shop) -> None:
    shop.change("nothing is wrong")


SITUATIONS: dict[str, Callable[[Shop], None]] = {
    "slot-dropped": _slot_dropped,
    "slot-moved": _slot_moved,
    "slot-invalidated": _slot_invalidated,
    "publication-dropped": _publication_dropped,
    "table-recreated": _table_recreated,
    "lake-changed-by-hand": _lake_changed,
    "batch-altered": _batch_altered,
    "wal-piles-up": _nothing,
    "disk-full": _nothing,
}


@pytest.mark.parametrize("page", SITUATIONS)
def test_page(shop: Shop, page: str) -> None:
    SITUATIONS[page](shop)
    follow(shop, page)


def test_long_transaction(shop: Shop) -> None:
    with closing(psycopg.connect(shop.database.dsn)) as open_one:
        open_one.execute("UPDATE orders SET note = 'open' WHERE id = 2")
        shop.change("meanwhile")
        lines = commands("long-transaction")
        code, printed = shop.run(lines[0])
        assert (code, "held" in printed or "open" in printed) == (0, True), printed
        assert all(shop.run(line)[0] == 0 for line in lines[1:])
        pid = open_one.info.backend_pid
        assert f"pid {pid}" in printed, printed
        shop.sql(f"SELECT pg_terminate_backend({pid})")
    follow(shop, "long-transaction")


def test_prepared_transaction(shop: Shop) -> None:
    shop.sql("BEGIN; UPDATE orders SET note = 'prepared' WHERE id = 3; PREPARE TRANSACTION 'forgotten'")
    code, printed = shop.run(commands("prepared-transaction")[0])
    assert (code, "forgotten" in printed) == (0, True), printed
    shop.sql("COMMIT PREPARED 'forgotten'")
    follow(shop, "prepared-transaction")


# -- a backup put back: last, for the server is another one then -------------------------------------


def _put_back(shop: Shop, *, promoted: bool = False) -> None:
    """The server as it was when the copy was made."""
    data, copy = shop.server.data, shop.server.folder / "copy"
    shop.server.stop("immediate")
    shutil.rmtree(data)
    shutil.copytree(copy, data, symlinks=True)
    _own(data, copy)
    if promoted:
        (data / "recovery.signal").touch()
        _own(data, copy)
    shop.server.start()
    ended = time.monotonic() + 60
    while shop.database.execute("SELECT pg_is_in_recovery()") == [(True,)]:
        assert time.monotonic() < ended
        time.sleep(0.1)


def _own(data: Path, like: Path) -> None:
    state = (like / "PG_VERSION").stat()
    for path in (data, *data.rglob("*")):
        if path.stat().st_uid != state.st_uid:
            shutil.chown(path, state.st_uid, state.st_gid)


def _copied(shop: Shop) -> None:
    copy = shop.server.folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shop.server.stop("fast")
    shutil.copytree(shop.server.data, copy, symlinks=True)
    owner = (shop.server.data / "PG_VERSION").stat()
    for path in (copy, *copy.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)
    shop.server.start()


def test_restored_backup(shop: Shop) -> None:
    """The same timeline, behind the lake; and the page of a failover, where nothing is wrong."""
    follow(shop, "failover")
    _copied(shop)
    shop.change("only in the lake")
    shop.sql("INSERT INTO orders SELECT g, 'many' FROM generate_series(100000, 100300) g")
    assert shop.run("slotlake sync PIPELINE.yaml")[0] == 0
    _put_back(shop)
    told = follow(shop, "restored-backup")
    # Of the plan, and of what was done.
    assert told.count("lost: changes that the lake has and the source has not, or not any more") == 2


def test_restored_and_went_on(shop: Shop) -> None:
    """The same positions with other content: told by what the slot and the change log both have."""
    _copied(shop)
    shop.change("only in the lake")
    assert shop.run("slotlake sync PIPELINE.yaml")[0] == 0
    _put_back(shop)
    for number in range(3):
        shop.change(f"another history {number}")
    shop.sql("INSERT INTO orders SELECT g, 'more' FROM generate_series(200000, 203000) g")
    code, printed = shop.run("slotlake sync PIPELINE.yaml")
    assert (code, "other transactions than the lake" in printed) == (3, True), printed
    for line in commands("restored-backup"):
        assert shop.run(line)[0] == 0, line
    follow(shop, "failover")


def test_restored_to_another_timeline(shop: Shop) -> None:
    shop.server.conf["restore_command"] = "false"
    _copied(shop)
    shop.change("only in the lake")
    assert shop.run("slotlake sync PIPELINE.yaml")[0] == 0
    _put_back(shop, promoted=True)
    shop.change("on the new timeline")
    code, printed = shop.run("slotlake sync PIPELINE.yaml")
    assert (code, "left that one at" in printed) == (3, True), printed
    for line in commands("restored-backup"):
        assert shop.run(line)[0] == 0, line
    follow(shop, "failover")


def test_every_page_is_followed() -> None:
    """A page that no test follows is a promise."""
    others = {"README", "restored-backup", "failover", "long-transaction", "prepared-transaction"}
    others |= {"upgraded"}  # tests/e2e/test_major_upgrade.py
    assert {page.stem for page in PAGES.glob("*.md")} == SITUATIONS.keys() | others
