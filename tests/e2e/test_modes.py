"""History and change log, fed from real histories: at every point what the source held at that LSN."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.lsn import parse_lsn
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.read.query import query
from tests.conftest import LONG, Database
from tests.e2e.oracle import pipeline_file, source_rows

pytestmark = pytest.mark.timeout(600)

TABLES = ["items", "bag"]
SETUP = """
CREATE TABLE items (a int, valid_from_lsn text, v numeric, big text, PRIMARY KEY (a, valid_from_lsn));
CREATE TABLE bag (v text, n int);
ALTER TABLE items ALTER big SET STORAGE EXTERNAL;
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO items SELECT g, 'k', 'NaN', repeat(md5(g::text), 100) FROM generate_series(1, 8) g;
INSERT INTO bag VALUES ('x', 1), ('x', 1), ('x', 1), (NULL, 2);
"""
MODES = "mode: [history, append]\n"


def _statement(dice: random.Random) -> str:
    key, to = dice.randint(1, 9), dice.randint(1, 9)
    big = f"repeat(md5('{dice.random()}'), 100)"
    insert = "INSERT INTO items VALUES ({}, 'k', '{}', {}) ON CONFLICT (a, valid_from_lsn) DO "
    return dice.choice(
        [
            insert.format(key, to, big) + "NOTHING",
            insert.format(key, to, big) + "UPDATE SET v = excluded.v",
            f"UPDATE items SET v = '{dice.random()}' WHERE a = {key}",
            f"UPDATE items SET v = '{dice.random()}' WHERE a = {key}",
            f"UPDATE items SET big = {big} WHERE a = {key}",
            f"UPDATE items SET a = {to} WHERE a = {key} AND NOT EXISTS (SELECT FROM items WHERE a = {to})",
            f"DELETE FROM items WHERE a = {key}",
            f"INSERT INTO bag SELECT 'x', {to % 3} FROM generate_series(1, {dice.randint(1, 3)})",
            f"DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag LIMIT {dice.randint(1, 2)})",
            f"UPDATE bag SET n = {to % 3} WHERE ctid IN (SELECT ctid FROM bag LIMIT 2)",
            *(["TRUNCATE " + dice.choice(TABLES)] if dice.random() < 0.4 else []),
        ]
    )


def _transactions(dice: random.Random, database: Database, count: int) -> None:
    with database.connect() as connection:
        for _ in range(count):
            with connection.transaction():
                for _ in range(dice.randint(1, 4)):
                    connection.execute(_statement(dice))


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_random_histories(database: Database, session: Any, tmp_path: Path) -> None:
    """Of keyed tables and a bag, with TRUNCATE, key changes, and values not sent."""
    database.execute(SETUP)
    dice = random.Random(int(os.environ.get("SLOTLAKE_TEST_SEED", "7")))
    with Pipeline.open(pipeline_file(tmp_path, database, TABLES, extra=MODES)) as pipeline:
        copied = pipeline.init().lsn
        points = {copied: _source(database)}
        for _ in range(int(os.environ.get("SLOTLAKE_TEST_BATCHES", "2"))):
            _transactions(dice, database, 12)
            points[pipeline.sync().lsn] = _source(database)
        told = {table: _told(pipeline, pipeline.lake, table) for table in TABLES}
        for lsn, expected in points.items():
            for table in TABLES:
                assert told[table].at(parse_lsn(lsn)) == expected[table], (table, lsn)
                assert told[table].replayed(parse_lsn(lsn)) == expected[table], (table, lsn)
        items = "lake.shop.items__history"
        pipeline.session.sql(f"UPDATE {items} SET v = 0 WHERE is_open AND a < 5").collect()
        found = {name: list(table.totals) for name, table in pipeline.verify().tables.items()}
        changed = ["different in the open versions of its history"]
        assert found == {"public.items": changed, "public.bag": []}
        pipeline.replay("scratch", start=copied, transactions=1000)
        scratch = replace(pipeline.lake, namespace="scratch")
        assert {table: _told(pipeline, scratch, table) for table in TABLES} == told


@dataclass(frozen=True)
class Told:
    """What the tables beside a mirror tell, each value as PostgreSQL's text; without the order of rows."""

    versions: Counter[Any]
    changes: Counter[Any]
    key: tuple[int, ...]
    names: tuple[str, ...]

    def at(self, position: int) -> Counter[Any]:
        """The rows whose versions held there."""
        found: Counter[Any] = Counter()
        for (begun, ended, *row), count in self.versions.items():
            if int(begun) <= position and (ended is None or int(ended) > position):
                found[tuple(row)] += count
        return found

    def replayed(self, position: int) -> Counter[Any]:
        """The changes, applied one after the other."""
        rows: list[Any] = []
        width = (len(next(iter(self.changes))) - _META) // 2
        order = sorted(self.changes.elements(), key=lambda c: (int(c[1]), int(c[2])))
        for op, _, _, at, unchanged, *values in order:
            new, old = values[:width], values[width:]
            if int(at) > position:
                continue
            if op in "CT":
                rows = []
            kept = None
            if op in "UD":
                named = old if any(v is not None for v in old) else new
                kept = next(r for r in rows if self._same(r, named))
                rows.remove(kept)
            if op in "RIU":
                unsent = (unchanged or "") if kept else ""  # a row that enters a filter: its copy follows
                before = kept or new
                rows.append([before[i] if f'"{self.names[i]}"' in unsent else v for i, v in enumerate(new)])
        return Counter(map(tuple, rows))

    def _same(self, row: Any, named: Any) -> bool:
        """By the key; by what there is, if an old row shows another identity's columns."""
        key = self.key
        if any(named[i] is None for i in key):
            key = tuple(i for i, value in enumerate(named) if value is not None)
        return all(row[i] == named[i] for i in key or range(len(row)))


_META = 5


def _told(pipeline: Any, lake: Any, table: str) -> Told:
    schema = ReadPoint.latest(lake).schema(table)
    columns = [column.lake_name for column in schema.live]
    own = ", ".join("_x76_alid_from_lsn" if c == "valid_from_lsn" else c for c in columns)
    name = f"{lake.namespace}.{table}"
    versions = query(
        pipeline.session, lake, f"SELECT valid_from_lsn, valid_to_lsn, {own} FROM {name}__history"
    )
    images = ", ".join(f"{image}.{c}" for image in ("new", "old") for c in columns)
    changes = query(
        pipeline.session, lake, f"SELECT op, commit_lsn, seq, lsn, unchanged, {images} FROM {name}__changes"
    )
    key = tuple(i for i, c in enumerate(schema.live) if c.name in schema.key)
    return Told(Counter(versions.rows), Counter(changes.rows), key, tuple(columns))


def test_begun_later_and_never_left(database: Database, session: Any, tmp_path: Path) -> None:
    """With a filter; columns that change; asked for no more; taken anew with another filter."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a int, n numeric(9,2))")
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    database.execute("INSERT INTO t SELECT g, g % 3, g FROM generate_series(1, 9) g")
    points: dict[str, Counter[Any]] = {}

    def after(pipeline: Any, *steps: str, rows: str = "SELECT * FROM t WHERE id > 2") -> None:
        database.execute(";".join(steps))
        points[pipeline.sync().lsn] = _rows(database, rows)

    with Pipeline.open(_file(tmp_path, database, "filter: id > 2")) as pipeline:
        pipeline.init()
    with Pipeline.open(_file(tmp_path, database, "filter: id > 2, mode: [history, append]")) as pipeline:
        after(pipeline, "UPDATE t SET id = -1 WHERE id = 3", "UPDATE t SET id = 10 WHERE id = 2")
        assert pipeline.status().tables[0].beside == ["shop.t__changes", "shop.t__history"]
        after(pipeline, "UPDATE t SET a = 5 WHERE id = 4", "DELETE FROM t WHERE id = 10")
        _holds(pipeline, points)
        widened = ("ALTER TABLE t RENAME a TO b", "ALTER TABLE t ALTER n TYPE numeric(12,2)")
        after(pipeline, *widened, "UPDATE t SET b = 7, n = 1 WHERE id = 5")
        _holds(pipeline, points)
        points.clear()  # from here on the column of another type is another column
        retyped = ("UPDATE t SET b = 6 WHERE id = 6", "ALTER TABLE t ALTER b TYPE text USING id")
        after(pipeline, *retyped, "DELETE FROM t WHERE id = 7")
        _holds(pipeline, points)
    with Pipeline.open(_file(tmp_path, database, "filter: id > 4")) as pipeline:
        database.execute("UPDATE t SET b = 8 WHERE id = 4")
        points[pipeline.backfill("t").lsn] = _rows(database, "SELECT * FROM t WHERE id > 4")
        after(pipeline, "UPDATE t SET n = n + 1", rows="SELECT * FROM t WHERE id > 4")
        assert (
            sum(
                "t__history, but the pipeline file asks for it no longer" in warning
                for warning in pipeline.status().warnings
            )
            == 1
        )
        _holds(pipeline, points)


def _file(folder: Path, database: Database, of_t: str) -> Path:
    path = pipeline_file(folder, database, ["t"])
    path.write_text(path.read_text().replace("'t': {}", f"'t': {{{of_t}}}"))
    return path


def _rows(database: Database, sql: str) -> Counter[Any]:
    with database.connect() as connection:
        return source_rows(connection, f"({sql}) AS t")[1]


def _holds(pipeline: Any, points: dict[str, Counter[Any]]) -> None:
    told = _told(pipeline, pipeline.lake, "t")
    for lsn, expected in points.items():
        assert told.at(parse_lsn(lsn)) == expected, lsn
        assert told.replayed(parse_lsn(lsn)) == expected, lsn


def _source(database: Database) -> dict[str, Counter[Any]]:
    with database.connect() as connection:
        return {table: source_rows(connection, table)[1] for table in TABLES}
