"""`on_delete: mark` and a transaction larger than the memory for it: slices, a kill, one publication."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.spark.read.point import ReadPoint
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file, source_rows
from tests.e2e.test_crash import run_cli

pytestmark = pytest.mark.timeout(600)

LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
TABLES = ("items", "emptied")
Rows = dict[str, tuple[str | None, ...]]


def _file(folder: Path, database: Database, more: str) -> Path:
    tables = "".join(f"  {table}: {{on_delete: mark{more}}}\n" for table in TABLES)
    # Per table and slice about two thousand changes.
    return pipeline_file(folder, database, [], extra=tables + "spark: {memory_mb: 1}\n")


def _fill(database: Database) -> None:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, v numeric, note text);"
        "ALTER TABLE items ALTER note SET STORAGE EXTERNAL;"
        "CREATE TABLE emptied (id int PRIMARY KEY, v int);"
        "INSERT INTO items SELECT g, g, repeat('large ', 600) || g FROM generate_series(1, 300) g;"
        "INSERT INTO items SELECT g, g, 'small' FROM generate_series(301, 3000) g;"
        "INSERT INTO emptied SELECT g, g FROM generate_series(1, 3000) g"
    )


BEFORE = "DELETE FROM items WHERE id <= 100 OR id = 2500; DELETE FROM emptied WHERE id <= 100"
ONE_TRANSACTION = (
    "BEGIN",
    "UPDATE items SET v = v + 1",
    "UPDATE emptied SET v = 0",
    "INSERT INTO items SELECT g, 0, 'again' FROM generate_series(1, 60) g",
    "INSERT INTO emptied SELECT g, 1 FROM generate_series(51, 80) g",
    "INSERT INTO emptied SELECT g, 1 FROM generate_series(5001, 7000) g",
    "INSERT INTO items SELECT g, 0, 'new' FROM generate_series(5001, 7000) g",
    "UPDATE items SET id = id + 100000 WHERE id BETWEEN 101 AND 1000",
    "TRUNCATE emptied",
    "UPDATE items SET v = 'NaN' WHERE id BETWEEN 2900 AND 5100",
    "DELETE FROM items WHERE id <= 30",  # were marked before the transaction
    "INSERT INTO emptied SELECT g, 2 FROM generate_series(60, 2500) g",
    "DELETE FROM items WHERE id BETWEEN 1001 AND 1500",  # are as they were before it
    "DELETE FROM items WHERE id BETWEEN 5001 AND 6000",  # were never seen
    "UPDATE items SET id = id - 100000 WHERE id > 100500",
    "DELETE FROM emptied WHERE id BETWEEN 60 AND 2200",
    "INSERT INTO items SELECT g, 0, 'deleted, again' FROM generate_series(1400, 1450) g",
    "UPDATE emptied SET id = id - 2300 WHERE id > 2400",
    "COMMIT",
)


def _source(database: Database, table: str) -> Rows:
    with database.connect() as connection:
        return {str(row[0]): row for row in source_rows(connection, table)[1]}


def _lake(pipeline: Any, table: str) -> tuple[Rows, Rows, dict[str, str]]:
    """Live rows and marked ones by key, and the keys with their LSNs; fails if a key is there twice."""
    columns = "id, v, note" if table == "items" else "id, v"
    rows = pipeline.query(f"SELECT {columns}, _is_deleted, _lsn FROM {table}").rows
    assert len(rows) == len({row[0] for row in rows})
    live, marked = ({row[0]: row[:-2] for row in rows if row[-2] == flag} for flag in "ft")
    return live, marked, {row[0]: row[-1] for row in rows}


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.parametrize(
    "more", [", format: 2, partition_by: ['bucket(2, id)']", ", mode: [mirror, history]"]
)
def test_one_transaction_in_slices(database: Database, connect: str, tmp_path: Path, more: str) -> None:
    _fill(database)
    file = _file(tmp_path, database, more)
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.init()
        position = ReadPoint.latest(pipeline.lake).position
        first = {table: _source(database, table) for table in TABLES}
        database.execute(BEFORE)
        second = {table: _source(database, table) for table in TABLES}
        with database.connect() as connection:
            for statement in ONE_TRANSACTION:
                connection.execute(statement.encode())
        killed = run_cli(connect, ["sync", str(file)], "apply.between_slices:4")
        assert killed.returncode == -9, killed.stderr
        assert ReadPoint.latest(pipeline.lake).position == position
        pipeline.sync()
        assert pipeline.verify().equal
        for table in TABLES:
            live, marked, lsn = _lake(pipeline, table)
            expected = _source(database, table)
            assert live == expected
            assert marked == {key: row for key, row in first[table].items() if key not in expected}
            by = {key: "second" if key in second[table] or key in expected else "first" for key in lsn}
            pairs = {(by[key], at) for key, at in lsn.items()}
            assert len(pairs) == 2, pairs
            assert dict(pairs)["first"] < dict(pairs)["second"]
