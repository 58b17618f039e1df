"""The lake's side of `verify` and of `recover` hashed by Spark's executors: they find what slotlake finds.

Here all of Spark is on this machine; on a cluster: tests/e2e/test_cluster.py.  Every type:
tests/e2e/test_query_engines.py.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.expectations.results import EXECUTORS, SLOTLAKE, Report
from slotlake.infra.opened.open_pipeline import OpenPipeline
from slotlake.spark.read.executors import ClusterReadPoint, python_trouble
from slotlake.spark.read.point import ReadPoint
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it"),
]

_TABLES = """
CREATE TABLE kinds ("Id" int, "id" text, b bool, y bytea, s smallint, l bigint, o oid, r real,
    d double precision, n numeric(12,8), big numeric(38,2), loose numeric, day date, at timestamp,
    tz timestamptz, j jsonb, u uuid, tags text[], PRIMARY KEY ("Id", "id"));
INSERT INTO kinds SELECT g, 'k' || g % 7, g % 2 = 0, decode(md5(g::text), 'hex'), g % 30000,
    g::bigint << 40, g, (g / 7.0)::real, exp(g % 1400 - 700.0), (g % 999 - 500) / 1000000.0,
    g::numeric ^ 9, 1 / (g + 1.0),
    date '0001-01-01' + g * 7, timestamp '1969-12-31' + g * interval '1.37 s',
    timestamptz '2024-02-29 12:00+00' + g * interval '0.1 s', jsonb_build_object('ü', g),
    md5(g::text)::uuid, ARRAY['a', NULL, 'b' || g] FROM generate_series(1, 1500) g;
INSERT INTO kinds ("Id", "id", d, n, day, at, tz) VALUES (-1, '', 'NaN', 'NaN', 'infinity', '-infinity',
    '0044-03-15 12:00:00.25+00 BC'), (-2, 'ü\\', '-0', NULL, '5874897-12-31', NULL, '10000-01-01');
CREATE TABLE bag (v text, n int); INSERT INTO bag SELECT 'x', g % 3 FROM generate_series(1, 100) g;
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE marked (id int PRIMARY KEY, v text);
INSERT INTO marked SELECT g, 'v' FROM generate_series(1, 50) g
"""
_MORE = """  marked: {on_delete: mark, mode: mirror}
mode: [mirror, history]
"""


def _read_by_executors(point: ReadPoint, pipeline: OpenPipeline) -> ReadPoint:
    return ClusterReadPoint(point, pipeline.session, rows_min=0)


def _counts(report: Report) -> dict[str, tuple[int, int, dict[str, int], set[str]]]:
    return {
        name: (table.source_rows, table.lake_rows, table.totals, {str(each) for each in table.differences})
        for name, table in report.tables.items()
    }


def test_executors_find_what_slotlake_finds(
    database: Database,
    session: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    database.execute(_TABLES)
    tables = ["kinds", "bag", "marked"]
    with Pipeline.open(pipeline_file(tmp_path, database, tables[:2], extra=_MORE)) as pipeline:
        pipeline.init()
        database.execute(
            "DELETE FROM marked WHERE id < 9; UPDATE bag SET n = 5 WHERE n = 1;"
            "UPDATE kinds SET r = r * 3, at = at - interval '1 microsecond' WHERE \"Id\" % 5 = 0;"
            'DELETE FROM kinds WHERE "Id" % 50 = 7'
        )
        pipeline.sync()
        here = pipeline.verify()
        assert here.equal
        assert {table.lake_read_by for table in here.tables.values()} == {SLOTLAKE}
        monkeypatch.setattr(
            OpenPipeline, "for_comparing", lambda self, point: _read_by_executors(point, self)
        )
        assert _counts(pipeline.verify()) == _counts(here)
        for wrong in (
            "UPDATE lake.shop.kinds SET r = r + 1, y = X'00' WHERE `Id` IN (5, 6)",
            "DELETE FROM lake.shop.kinds WHERE `Id` = 11",
            "UPDATE lake.shop.kinds__history SET s = 0 WHERE `Id` = 12 AND is_open",
            "INSERT INTO lake.shop.bag VALUES ('x', 0), ('new', 1)",
            "UPDATE lake.shop.marked SET _is_deleted = false WHERE id = 3",
        ):
            pipeline.session.sql(wrong).collect()
        by_executors = pipeline.verify()
        assert not by_executors.equal
        assert {table.lake_read_by for table in by_executors.tables.values()} == {EXECUTORS}
        assert not [each for each in caplog.records if "executors" in each.getMessage()]
        assert not python_trouble(session)
        # Executors without such a Python.
        with monkeypatch.context() as patch:
            patch.setattr(session.sparkContext, "pythonExec", "/nonexistent/python3")
            assert python_trouble(session)
            with caplog.at_level(logging.WARNING):
                alone = pipeline.verify()
        [line] = [each.getMessage() for each in caplog.records if "executors" in each.getMessage()]
        assert "rows of large tables are read by slotlake itself" in line
        assert {table.lake_read_by for table in alone.tables.values()} == {SLOTLAKE}
        assert _counts(alone) == _counts(by_executors)
        database.execute(f"SELECT pg_drop_replication_slot('{pipeline.source.slot}')")
        pipeline.recover(carry_out=True)
        assert_equal(database, pipeline, tables)
        assert pipeline.verify().equal
