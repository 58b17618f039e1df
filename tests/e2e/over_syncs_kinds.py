# ruff: noqa: E501  (a statement is read as a line)
"""Kinds of tables that join, each written to while it is half copied, and compared with the source."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from slotlake import Pipeline
from slotlake.infra.sync.joining_tables import JoiningTables
from tests.conftest import Database
from tests.e2e.joins import BIG, SMALL, ranges, ready
from tests.e2e.oracle import source_rows
from tests.e2e.test_beside import mirrors

_FILL = "repeat(md5(i::text), 3)"
PLAIN = f"""
CREATE TABLE big (id int PRIMARY KEY, v int NOT NULL, t text, secret text);
INSERT INTO big SELECT i, CASE WHEN i % 3 = 0 THEN -i ELSE i END, {_FILL}, 's' FROM generate_series(1, 1500) i
"""
KEYED_BY_V = PLAIN.replace("PRIMARY KEY", "").replace("secret text", "secret text, PRIMARY KEY (v, id)")
ROOT = f"""
CREATE TABLE big (id int, day int, v int, t text, PRIMARY KEY (day, id)) PARTITION BY RANGE (day);
CREATE TABLE big_1 PARTITION OF big FOR VALUES FROM (0) TO (10);
CREATE TABLE big_2 PARTITION OF big FOR VALUES FROM (10) TO (20);
CREATE TABLE big_3 (gone int, LIKE big INCLUDING ALL);
ALTER TABLE big_3 DROP gone;
ALTER TABLE big ATTACH PARTITION big_3 FOR VALUES FROM (20) TO (30);
CREATE TABLE aside (LIKE big INCLUDING ALL);
INSERT INTO aside SELECT i, 30 + i % 10, i, {_FILL} FROM generate_series(1, 400) i;
INSERT INTO big SELECT i, i % 30, i, {_FILL} FROM generate_series(1, 1500) i
"""
PUBLISHED = "ALTER PUBLICATION shop ADD TABLE big"
REWRITTEN = "ALTER TABLE big ALTER t TYPE text USING t || '!'"
# Before each sync: rows that change their key, move between partitions, into a filter and out of it.
ROWS = (
    "UPDATE big SET v = -v WHERE id % 7 = {n}",
    "UPDATE big SET id = id + 100000 WHERE id % 101 = {n} AND id < 50000",
    "UPDATE big SET t = 'at {n}' WHERE id % 29 = {n}",
    "DELETE FROM big WHERE id % 53 = {n}",
)
NEW = "INSERT INTO big (id, v, t) SELECT 2000 + {n} * 100 + i, 30 - i, 'new' FROM generate_series(1, 60) i"
MOVED = (
    "UPDATE big SET day = 29 - day WHERE day < 30 AND id % 13 = {n}",
    "INSERT INTO big (id, day, v, t) SELECT 2000 + {n} * 100 + i, i % 10 + 20 * (i % 2), 1, 'new' FROM generate_series(1, 60) i",
)


@dataclass(frozen=True)
class Kind:
    """A table that joins.

    Attributes:
        publishing: how it is published.
        taken: of the pipeline file, once the table is published.
        rows: what changes before each sync.
        shown: the rows that the lake is to hold, as SQL.
        rewritten: what makes the lake copy it again.
    """

    setup: str = PLAIN
    publishing: str = PUBLISHED
    taken: str = ""
    rows: tuple[str, ...] = (*ROWS, NEW)
    shown: str = "big"
    rewritten: str = REWRITTEN


ROOTED = Kind(
    ROOT, "ALTER PUBLICATION shop SET (publish_via_partition_root = true); " + PUBLISHED, rows=(*ROWS, *MOVED)
)
BY_KEY = "big (v, id, t) WHERE (v > 0)"
# Where column `t` is not taken, or cannot be altered because a publication's filter needs it.
ANEW = f"ALTER PUBLICATION shop DROP TABLE big; ALTER PUBLICATION shop ADD TABLE {BY_KEY}"
INDEXED = (
    PLAIN
    + "; CREATE UNIQUE INDEX big_id_v ON big (id, v); ALTER TABLE big REPLICA IDENTITY USING INDEX big_id_v"
)
FULL = PLAIN + "; ALTER TABLE big REPLICA IDENTITY FULL"
SOME = "(SELECT id, v, t FROM big WHERE v > 0) q"
TAKEN = "  big: {{filter: v > 0, columns: [{}]}}\n"
KINDS = {
    "plain": Kind(),
    "root": ROOTED,
    "published by key": Kind(KEYED_BY_V, f"ALTER PUBLICATION shop ADD TABLE {BY_KEY}", shown=SOME, rewritten=ANEW),
    "published by index": Kind(INDEXED, "ALTER PUBLICATION shop ADD TABLE big (v, id, t) WHERE (v > 0)", shown=SOME, rewritten=ANEW),
    "taken by key": Kind(KEYED_BY_V, taken=TAKEN.format("id, v, t"), shown=SOME),
    "taken of full": Kind(FULL, taken=TAKEN.format("id, v, t"), shown=SOME),
    "taken of root": Kind(ROOT.replace("(day, id)", "(day, id, v)"), ROOTED.publishing, TAKEN.format("id, day, v"), ROOTED.rows, "(SELECT id, day, v FROM big WHERE v > 0) q", "ALTER TABLE big ALTER v TYPE int USING v - 1"),
}  # fmt: skip


# kind, what happens to it half copied, and what the lake holds in the end where that is something else.
EVENTS = {
    "attached": ("root", "UPDATE aside SET v = -9 WHERE id % 3 = 0; ALTER TABLE big ATTACH PARTITION aside FOR VALUES FROM (30) TO (40); UPDATE big SET day = 35 WHERE id % 17 = 1 AND id > 600", None),
    "born": ("root", "CREATE TABLE big_5 PARTITION OF big FOR VALUES FROM (40) TO (50); UPDATE big SET day = 45 WHERE id % 17 = 1", None),
    "detached": ("root", "ALTER TABLE big DETACH PARTITION big_2; UPDATE big_2 SET v = 7", None),
    "detached and back": ("root", "ALTER TABLE big DETACH PARTITION big_2; UPDATE big_2 SET v = 7; ALTER TABLE big ATTACH PARTITION big_2 FOR VALUES FROM (10) TO (20)", None),
    "cut off": ("root", "TRUNCATE big_2; INSERT INTO big_2 SELECT i, 12, i, 'after' FROM generate_series(1, 9) i", None),
    "partition gone": ("root", "DROP TABLE big_2", None),
    "partition renamed": ("root", "ALTER TABLE big_1 RENAME TO big_old", None),
    "partitions swapped": ("root", "ALTER TABLE big_1 RENAME TO x; ALTER TABLE big_3 RENAME TO big_1; ALTER TABLE x RENAME TO big_3", None),
    "other filter": ("published by key", "ALTER PUBLICATION shop SET TABLE small, big (v, id, t) WHERE (v > 300)", "(SELECT id, v, t FROM big WHERE v > 300) q"),
    "filter and back": ("published by key", f"ALTER PUBLICATION shop SET TABLE small, big (v, id, t) WHERE (v > 300); UPDATE big SET t = 'unseen' WHERE v < 300; ALTER PUBLICATION shop SET TABLE small, {BY_KEY}", None),
    "other columns": ("published by key", "ALTER PUBLICATION shop SET TABLE small, big (v, id, secret) WHERE (v > 0)", "(SELECT id, v, secret FROM big WHERE v > 0) q"),
    "file's filter": ("taken by key", "FILE  big: {filter: v > 300, columns: [id, v, secret]}\n", "(SELECT id, v, secret FROM big WHERE v > 300) q"),
    "renamed and back": ("plain", "ALTER TABLE big RENAME TO other; UPDATE other SET v = 9 WHERE id % 3 = 0; SYNC; UPDATE other SET v = 8 WHERE id % 4 = 0; ALTER TABLE other RENAME TO big", None),
    "renamed and back at once": ("plain", "ALTER TABLE big RENAME TO other; UPDATE other SET v = 9 WHERE id % 3 = 0; ALTER TABLE other RENAME TO big", None),
    "to another schema and back": ("plain", "CREATE SCHEMA s; ALTER TABLE big SET SCHEMA s; UPDATE s.big SET v = 9 WHERE id % 3 = 0; SYNC; ALTER TABLE s.big SET SCHEMA public", None),
    "column added": ("plain", "ALTER TABLE big ADD x int DEFAULT 7; UPDATE big SET x = 8 WHERE id < 50", None),
    "column dropped": ("plain", "ALTER TABLE big DROP secret; UPDATE big SET v = 5 WHERE id < 50", None),
    "key renamed": ("plain", "ALTER TABLE big RENAME id TO k; UPDATE big SET v = 5 WHERE k < 50; SYNC; ALTER TABLE big RENAME k TO id", None),
    "key retyped": ("plain", "ALTER TABLE big ALTER id TYPE bigint; UPDATE big SET id = id + 5000000000 WHERE id < 50", None),
    "other key": ("plain", "ALTER TABLE big DROP CONSTRAINT big_pkey, ADD PRIMARY KEY (id, v); UPDATE big SET v = v + 5000 WHERE id < 90", None),
    "identity full": ("plain", "ALTER TABLE big REPLICA IDENTITY FULL; UPDATE big SET id = -id WHERE id < 90", None),
    "identity index": ("plain", "CREATE UNIQUE INDEX i ON big (id, v); ALTER TABLE big REPLICA IDENTITY USING INDEX i; UPDATE big SET id = -id WHERE id < 90", None),
    "truncated": ("plain", "TRUNCATE big; INSERT INTO big SELECT i, i, 'after' FROM generate_series(1, 900) i", None),
    "cut off in one transaction": ("plain", "BEGIN; UPDATE big SET v = 1; TRUNCATE big; INSERT INTO big SELECT i, i, 'after' FROM generate_series(1, 900) i; COMMIT", None),
    "looked after": ("plain", "MAINTAIN; VERIFY", None),
    "read again": ("plain", "BACKFILL", None),
    "altered again": ("plain", "ALTER TABLE big ALTER v TYPE bigint USING v + 1; UPDATE big SET v = 5 WHERE id < 50", None),
    "column added, then of another type": ("plain", "ALTER TABLE big ADD x int DEFAULT 7; SYNC; SYNC; ALTER TABLE big ALTER x TYPE text USING x || ' as text'; UPDATE big SET x = 'z' WHERE id < 50", None),
    "column renamed": ("plain", "ALTER TABLE big RENAME secret TO open; UPDATE big SET open = 'o' WHERE id < 50", None),
    "no key": ("plain", "ALTER TABLE big DROP CONSTRAINT big_pkey; ALTER TABLE big REPLICA IDENTITY FULL; UPDATE big SET v = v + 5000 WHERE id < 90", None),
    "rewritten": ("plain", "VACUUM FULL big", None),
    "made again": ("plain", "DROP TABLE big; CREATE TABLE big (id int PRIMARY KEY, v int, t text); INSERT INTO big SELECT i, -i, repeat('another', 20) FROM generate_series(1, 1500) i; ALTER PUBLICATION shop ADD TABLE big", None),
    "out and back": ("plain", "ALTER PUBLICATION shop DROP TABLE big; UPDATE big SET v = -1 WHERE id < 20; SYNC; ALTER PUBLICATION shop ADD TABLE big", None),
}  # fmt: skip


@dataclass
class Joining:
    """A pipeline with a table that joins."""

    record = "joining"

    database: Database
    pipeline: Pipeline
    kind: Kind
    tables: dict[str, str] = field(default_factory=dict)
    number: int = 0

    def close(self) -> None:
        self.pipeline.close()

    def publish(self) -> None:
        self.run(self.kind.setup)
        self.run(self.kind.publishing)
        self.take(self.kind.taken)
        self.tables = {"small": "small", "big": self.kind.shown}

    def run(self, statements: str) -> None:
        for statement in statements.split(";"):
            if statement.strip():
                self.database.execute(statement)

    def take(self, line: str) -> None:
        """The pipeline file says so from now on."""
        path = self.pipeline.file.path
        kept = [each for each in path.read_text().splitlines(keepends=True) if "{filter" not in each]
        path.write_text("".join(kept).replace("tables:\n", f"tables:\n{line}", 1))
        remote = self.pipeline._remote
        self.pipeline.close()
        self.pipeline = Pipeline.open(path, remote=remote)

    def change(self) -> None:
        self.number += 1
        self.database.execute(f"UPDATE small SET v = {self.number}")
        for statement in self.kind.rows:
            self.database.execute(statement.format(n=self.number))

    def half(self) -> None:
        """Until some ranges are there, and some are not."""
        for wanted in (1, 2):
            self.change()
            self.pipeline.sync()
            assert ranges(self.pipeline) == wanted
            self.equal("small")

    def others_go_on(self) -> None:
        """While it is half copied."""
        self.equal("small")

    def verified(self) -> None:
        """What a comparison says while it is half copied: nothing of it."""
        assert list(self.pipeline.verify().tables) == [SMALL]

    @property
    def progress(self) -> dict[str, str]:
        """How many ranges of which table are there."""
        return JoiningTables(self.pipeline).progress_by_table()

    def joined(self, syncs_max: int = 40) -> int:
        """Sync, the source being written all the time, until readers see it; how many syncs it took."""
        for number in range(1, syncs_max):
            self.pipeline.sync()
            self.equal("small")
            if BIG in ready(self.pipeline):
                return number
            self.change()
            if number > 1:  # one more range has been read under a snapshot of its own: the rest at once
                object.__setattr__(self.pipeline.file.source, "copy_seconds_per_sync", 60.0)
        raise AssertionError(self.pipeline.status().tables)

    def held(self, *tables: str) -> dict[str, Counter[Any]]:
        """What the source holds of it now."""
        with self.database.connect() as connection:
            return {name: source_rows(connection, self.tables[name])[1] for name in tables or self.tables}

    def equal(self, *tables: str) -> None:
        assert mirrors(self.pipeline, self.held(*tables)) == {}

    def sound(self) -> None:
        """Whole, and followed from there on."""
        self.equal()
        assert self.pipeline.verify().equal
        self.change()
        self.pipeline.sync()
        self.equal()
        assert self.pipeline.verify().equal
        # Ranges of one that was copied in one piece in the end are given up by the sync after that.
        assert not (self.pipeline.file.state_dir / self.record).exists()
