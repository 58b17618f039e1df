"""A byte that flips in a file of the lake: `verify` finds the row, or says which file is damaged."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import LakeError
from slotlake.expectations.reconcile import Manner, reconcile
from slotlake.expectations.results import TableResult
from slotlake.infra.care.verified import changed_verified
from slotlake.infra.copy.tables import published_tables
from slotlake.spark.read.point import ReadPoint
from tests import storage
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(storage.IN_S3, reason="the test writes to a file of the lake"),
]
FLIPS = 400 if os.environ.get("SLOTLAKE_TEST_LONG") else 80
VERIFY = "verify: {changed: every_verify, full_within: 1h, source_load: 1}\n"
TABLE = """
CREATE TABLE t (id text PRIMARY KEY, v text, n numeric(10,2), at timestamptz, f float8, b bool);
INSERT INTO t SELECT 'key' || g, 'value ' || g, g, timestamptz '2026-01-01' + g * interval '1 s', g * 0.1,
    g % 3 = 0 FROM generate_series(1, 2000) g
"""


@pytest.fixture
def opened(database: Database, session: Any, tmp_path: Path) -> Iterator[tuple[Database, Any, Path]]:
    database.execute(TABLE)
    with Pipeline.open(pipeline_file(tmp_path, database, ["t"], extra=VERIFY)) as pipeline:
        pipeline.init()
        warehouse = Path(pipeline.lake.warehouse_path)
        (file,) = [each for each in warehouse.rglob("data/*.parquet") if each.parts[-3] == "t"]
        yield database, pipeline, file


def test_no_flipped_byte_goes_unnoticed(opened: tuple[Database, Any, Path]) -> None:
    """Equal only if the file still has the same values; else a difference, or an error with its place."""
    database, pipeline, file = opened
    whole, chance = file.read_bytes(), random.Random(1)
    same, outcomes = pq.read_table(file), Counter[str]()
    with database.connect() as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        ((snapshot,),) = connection.execute("SELECT pg_export_snapshot()").fetchall()
        for number in range(FLIPS):
            flipped = bytearray(whole)
            place = chance.randrange(len(whole))
            flipped[place] ^= 1 << chance.randrange(8)
            file.write_bytes(flipped)
            try:
                result = _compared(pipeline, snapshot, 1 + number % 2)
            except LakeError as error:
                outcomes["error"] += 1
                assert file.name in error.where or error.where.startswith("column "), error
                assert "slotlake backfill" in error.way_out
                continue
            outcomes["equal" if result.equal else "different"] += 1
            if result.equal:
                assert _values(file).equals(same), place
            else:
                assert result.differences, place
    file.write_bytes(whole)
    assert outcomes["different"] > outcomes["error"] > outcomes["equal"]


def _compared(pipeline: Any, snapshot: str, connections: int) -> TableResult:
    point, tables = ReadPoint.latest(pipeline.lake), published_tables(pipeline)
    dsn, manner = pipeline.source.dsn, Manner(connections=connections)
    return reconcile(dsn, snapshot, tables, point, lsn=point.position, manner=manner).tables["public.t"]


def _values(file: Path) -> pa.Table:
    return pq.ParquetFile(file).read()


def test_within_the_time_and_at_once_if_the_row_changes(opened: tuple[Database, Any, Path]) -> None:
    database, pipeline, file = opened
    assert pipeline.verify().equal
    key = _flip_a_value(file)
    assert pipeline.verify("changed").equal, "its row has not changed"
    with changed_verified(pipeline) as verified:
        verified["credit_from"] -= 3600  # the time within which all rows are compared has passed
        for note in verified["tables"]["public.t"]["slices"]:
            note["time"] -= 3600
    assert [dict(each.key) for each in pipeline.verify("rolling").tables["public.t"].differences] == [key]
    database.execute("UPDATE t SET n = n + 1 WHERE id = %s", [key["id"]])
    # The batch writes the whole row, as the source has it, so the damaged value is not read any more.
    assert pipeline.verify("changed").equal
    assert pipeline.verify().equal
    data = bytearray(file.read_bytes())
    data[-20] ^= 255
    file.write_bytes(data)
    with pytest.raises(LakeError) as at:
        pipeline.verify()
    assert file.name in at.value.where


def _flip_a_value(file: Path) -> dict[str, str]:
    """Flip a bit so that one value of one row is another one; return the row's key."""
    whole, before, chance = file.read_bytes(), _values(file), random.Random(2)
    while True:
        flipped = bytearray(whole)
        flipped[chance.randrange(len(whole) // 2)] ^= 1 << chance.randrange(8)
        file.write_bytes(flipped)
        try:
            after = _values(file).to_pylist()
        except (OSError, ValueError):
            continue
        rows = before.to_pylist()
        changed = [old for old, new in zip(rows, after, strict=True) if old != new]
        if len(changed) == 1 and [row["id"] for row in rows] == [row["id"] for row in after]:
            return {"id": changed[0]["id"]}
