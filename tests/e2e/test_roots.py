"""Partitioned tables that the pipeline file names: one lake table each, and its options are the root's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.source.grants import grants
from slotlake.infra.status.validation import validate
from slotlake.spark.read.point import ReadPoint
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = [pytest.mark.timeout(600), pytest.mark.server]
MADE = """
CREATE TABLE sales (id int, day date, v text, PRIMARY KEY (day, id)) PARTITION BY RANGE (day);
CREATE TABLE sales_1 PARTITION OF sales FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
CREATE TABLE sales_2 PARTITION OF sales FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')
PARTITION BY LIST (id);
CREATE TABLE sales_2_rest PARTITION OF sales_2 DEFAULT;
CREATE TABLE plain (id int PRIMARY KEY);
INSERT INTO plain VALUES (1);
INSERT INTO sales SELECT g, '2026-01-01'::date + g, 'x' FROM generate_series(0, 57) g
"""
OPTIONS = """
  sales:
    {partition_by: "month(day)", mode: [mirror, history], filter: "day > '2026-01-02'", columns: [id, day, v]}
"""
NEXT_MONTH = """
CREATE TABLE sales_3 PARTITION OF sales FOR VALUES FROM ('2026-03-01') TO ('2026-04-01');
INSERT INTO sales VALUES (100, '2026-03-05', 'new'), (101, '2026-02-05', 'new');
UPDATE sales SET day = '2026-03-06' WHERE id = 20; DELETE FROM sales WHERE id = 30;
ALTER TABLE sales DETACH PARTITION sales_1
"""
TAKEN = "(SELECT * FROM sales WHERE day > '2026-01-02') AS taken"


def _tables(pipeline: Pipeline) -> list[str]:
    return sorted(table.table for table in ReadPoint.latest(pipeline.lake).tables())


def _assert_taken(database: Database, pipeline: Pipeline) -> None:
    taken = database.execute(f"SELECT id::text, day::text, v FROM {TAKEN} ORDER BY 1")
    assert sorted(tuple(row) for row in pipeline.rows("sales", columns=["id", "day", "v"])) == taken


def test_a_root_is_published_through_itself(database: Database, session: Any, tmp_path: Path) -> None:
    database.execute(MADE)
    file = pipeline_file(tmp_path, database, ["plain"], extra=OPTIONS)
    assert validate(file).valid
    with Pipeline.open(file) as pipeline:
        assert "publish_via_partition_root = true" in grants(pipeline.file)
        pipeline.init()
        assert _tables(pipeline) == ["plain", "sales"]
        _assert_taken(database, pipeline)
        database.execute(NEXT_MONTH)
        pipeline.sync()
        _assert_taken(database, pipeline)
        database.execute(
            "ALTER TABLE sales ATTACH PARTITION sales_1 FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')"
        )
        pipeline.sync()
        assert _tables(pipeline) == ["plain", "sales"]
        _assert_taken(database, pipeline)
        assert pipeline.verify().equal
        (spec,) = [
            pinned.metadata["partition-specs"][-1]["fields"]
            for name, pinned in ReadPoint.latest(pipeline.lake).pinned.items()
            if name.table == "sales"
        ]
        assert [field["transform"] for field in spec] == ["month"]


@pytest.mark.parametrize(
    ("publication", "tables", "extra"),
    [
        ("FOR TABLE sales", ["sales"], ""),
        ("FOR ALL TABLES", ["plain"], OPTIONS),
        ("FOR TABLE sales_2", ["sales_2"], ""),
    ],
)
def test_a_root_that_is_published_by_leaf_is_refused(
    database: Database, tmp_path: Path, publication: str, tables: Sequence[str], extra: str
) -> None:
    """`validate` and `init` give the statement to run, and after it they succeed."""
    database.execute(f"{MADE}; CREATE PUBLICATION shop {publication}")
    file = pipeline_file(tmp_path, database, list(tables), extra=extra)
    (check,) = [check for check in validate(file).checks if check.result == "error"]
    assert 'ALTER PUBLICATION "shop" SET (publish_via_partition_root = true)' in check.way_out
    with Pipeline.open(file) as pipeline, pytest.raises(PipelineFileError, match="is a partitioned table"):
        pipeline.init()
    database.execute('ALTER PUBLICATION "shop" SET (publish_via_partition_root = true)')
    assert validate(file).valid


def test_leaves_by_choice(database: Database, session: Any, tmp_path: Path) -> None:
    database.execute(MADE)
    file = pipeline_file(tmp_path, database, ["sales", "plain"], source="partitions: leaves")
    assert "publish_via" not in grants(Pipeline.open(file).file)
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        assert _tables(pipeline) == ["plain", "sales_1", "sales_2_rest"]
        assert_equal(database, pipeline, ["sales_1", "sales_2_rest"])
    chosen = pipeline_file(tmp_path, database, ["plain"], source="partitions: leaves", extra=OPTIONS)
    assert any("is a partitioned table" in check.what for check in validate(chosen).checks)
    both = pipeline_file(tmp_path / "both", database, ["sales", "sales_1"], name="both")
    with Pipeline.open(both) as pipeline, pytest.raises(PipelineFileError, match="a part of the partitioned"):
        pipeline.init()
