"""`lake.views`: from the pipeline file to plain names, through renames, a new table, off and on again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from slotlake import Pipeline
from slotlake.infra.status.validation import validate
from slotlake.spark.catalog import view_spaces
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file

pytestmark = pytest.mark.timeout(600)


@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_views_of_a_pipeline(
    database: Database, session: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_spaces, "SECONDS_APART", 0.0)
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v int); CREATE TABLE b (id int PRIMARY KEY, v int); "
        "INSERT INTO a VALUES (1, 10); INSERT INTO b VALUES (1, 10)"
    )
    file = pipeline_file(tmp_path, database, ["a", "b"], extra="mode: history\n")
    plain = file.read_text()
    file.write_text(plain.replace("lake:\n", "lake:\n  views: true\n", 1))
    with Pipeline.open(file) as pipeline:
        first = pipeline.init().lsn
        database.execute(
            "UPDATE a SET v = 3; UPDATE b SET v = 17; ALTER TABLE a RENAME v TO w; UPDATE a SET w = 4"
        )
        second = pipeline.sync().lsn
        database.execute("CREATE TABLE c (id int PRIMARY KEY); ALTER PUBLICATION shop ADD TABLE c")
        database.execute("TRUNCATE b")
        pipeline.sync()
        third = pipeline.sync().lsn
        pipeline.verify()
        spaces = pipeline.status().views
        last = pipeline.status().last_consistent_lsn
        assert spaces["shop__at"] == last
        by_point = {lsn: name for name, lsn in spaces.items() if name != "shop__at"}
        assert by_point.keys() >= {first, second}
        assert sorted(by_point.values()) == [by_point[lsn] for lsn in sorted(by_point, key=_number)]
        assert _rows(pipeline, by_point[str(first)], "a") == [{"id": 1, "v": 10}]
        assert _rows(pipeline, by_point[str(second)], "a") == [{"id": 1, "w": 4}]
        assert _rows(pipeline, by_point[str(second)], "b") == [{"id": 1, "v": 17}]
        assert _rows(pipeline, "shop__at", "b") == _rows(pipeline, "shop__at", "c") == []
        assert len(_rows(pipeline, "shop__at", "a__history")) > 1
        assert third is not None
        pipeline.maintain()
        assert _rows(pipeline, by_point[str(first)], "b") == [{"id": 1, "v": 10}]
    report = validate(file)
    assert report.valid, report.checks
    file.write_text(plain)
    with Pipeline.open(file) as pipeline:
        pipeline.sync()
        assert pipeline.status().views == {}
        assert _spaces(pipeline) == ["shop"]
    file.write_text(plain.replace("lake:\n", "lake:\n  views: true\n", 1))
    with Pipeline.open(file) as pipeline:
        pipeline.sync()
        assert _spaces(pipeline)[:2] == ["shop", "shop__at"]
        pipeline.drop(lake=True)
        assert _spaces(pipeline) == []


def _catalog(pipeline: Pipeline) -> SqlCatalog:
    lake = pipeline.lake
    return SqlCatalog("lake", uri=lake.uri, warehouse=lake.warehouse)


def _rows(pipeline: Pipeline, namespace: str, table: str) -> list[dict[str, object]]:
    catalog = _catalog(pipeline)
    rows: list[dict[str, object]] = catalog.load_table((namespace, table)).scan().to_arrow().to_pylist()
    catalog.engine.dispose()
    return rows


def _spaces(pipeline: Pipeline) -> list[str]:
    catalog = _catalog(pipeline)
    names = sorted(name for (name,) in catalog.list_namespaces())
    catalog.engine.dispose()
    return names


def _number(lsn: str | None) -> int:
    high, _, low = str(lsn).partition("/")
    return int(high, 16) << 32 | int(low, 16)
