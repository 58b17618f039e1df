"""Killed while a table is copied again within a batch, at each step: the next run ends with the source."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.lsn import parse_lsn
from slotlake.spark.read.point import ReadPoint
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file, source_rows
from tests.e2e.test_crash import run_cli
from tests.e2e.test_modes import MODES, _told

pytestmark = pytest.mark.timeout(900)

TABLES = ["again", "other", "also"]
ALL = [
    "evolve.copying",
    "evolve.copied",
    "evolve.noted",
    "apply.mid_merge:1",
    "apply.mid_merge:2",
    "apply.between_modes:1",
    "apply.between_modes:2",
    "apply.between_modes:3",
    "apply.between_tables",
    "apply.between_tables:2",
    "publish.before_swap",
    "publish.after_swap",
]
FEW = ["apply.between_modes:2"]  # the rest is among those of test_together.py, without a process of its own
# What makes the tables be copied.
_TO_TEXT = "text USING 'n' || b || '{}'"
_TO_NUMBER = r"int USING regexp_replace(b, '\D', '', 'g')::int % 1000"
_TYPE_OF_B = (
    "SELECT atttypid::regtype::text FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'b'"
)


def _changes(database: Database, number: int) -> None:
    with database.connect() as connection:
        for table in TABLES:
            connection.execute(f"UPDATE {table} SET a = 'u{number}' WHERE id % 3 = {number % 3}".encode())
        for table in ("again", "also") if number % 3 else ("again",):
            kind = connection.execute(_TYPE_OF_B, [table]).fetchone()
            to = _TO_TEXT.format(number) if kind == ("integer",) else _TO_NUMBER
            connection.execute(f"ALTER TABLE {table} ALTER b TYPE {to}".encode())
            connection.execute(f"DELETE FROM {table} WHERE id = {number + 1}".encode())
        connection.execute(f"UPDATE other SET id = -id WHERE id = {number + 1}".encode())


def test_killed_at_each_step(database: Database, connect: str, tmp_path: Path) -> None:
    for table in TABLES:
        database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, a text, b int);"
            f"INSERT INTO {table} SELECT g, 'a', g FROM generate_series(1, 40) g"
        )
    file = pipeline_file(tmp_path, database, TABLES, extra=MODES)
    points: dict[str, Counter[Any]] = {}
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.init()
        for number, failpoint in enumerate(ALL if os.environ.get("SLOTLAKE_TEST_LONG") else FEW):
            _changes(database, number)
            killed = run_cli(connect, ["sync", str(file)], failpoint)
            assert killed.returncode == -9, (failpoint, killed.stderr)
            database.execute(f"INSERT INTO other VALUES ({100 + number}, 'after', 1)")
            lsn = pipeline.sync().lsn
            assert _different(database, pipeline) == {}, failpoint
            points[lsn] = _source(database, "other")
            left = sorted(p.name for p in pipeline.file.changelog_dir.iterdir() if p.name.startswith("."))
            assert left == [], failpoint
        told = _told(pipeline, pipeline.lake, "other")
        for lsn, rows in points.items():
            assert told.at(parse_lsn(lsn)) == rows
            assert told.replayed(parse_lsn(lsn)) == rows
        for table in ("again", "also"):
            told, last = _told(pipeline, pipeline.lake, table), parse_lsn(list(points)[-1])
            assert told.at(last) == told.replayed(last) == _source(database, table), table
        assert pipeline.verify().equal


def _different(database: Database, pipeline: Any) -> dict[str, Any]:
    cut = ReadPoint.latest(pipeline.lake)
    found = {}
    for table in TABLES:
        names = [column.name for column in cut.schema(table).live]
        batches = cut.open_versions(table, names) or ()
        versions = Counter(r for b in batches for r in zip(*(c.to_pylist() for c in b.columns), strict=True))
        for what, rows in (("mirror", Counter(cut.rows(table))), ("history", versions)):
            if rows != (wanted := _source(database, table)):
                found[f"{table} {what}"] = (wanted - rows, rows - wanted)
    return found


def _source(database: Database, table: str) -> Counter[Any]:
    with database.connect() as connection:
        return source_rows(connection, table)[1]
