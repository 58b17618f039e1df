"""`lake.views`: from the pipeline file to plain names, through renames, a new table, off and on again."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from slotlake import Pipeline
from slotlake.decoder.lsn import format_lsn
from slotlake.infra.status.validation import validate
from slotlake.spark.catalog import view_spaces
from slotlake.spark.catalog.base import load
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.names import LakeName
from slotlake.spark.publish.points import readable_points
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file
from tests.spark.rest_catalog import LocalRestCatalog
from tests.storage import moved_to

pytestmark = pytest.mark.timeout(600)


@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.parametrize("where", ["folder", "s3", "s3, rest"])
def test_views_of_a_pipeline(
    where: str,
    database: Database,
    session: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setattr(view_spaces, "SECONDS_APART", 0.0)
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v int); CREATE TABLE b (id int PRIMARY KEY, v int); "
        "INSERT INTO a VALUES (1, 10); INSERT INTO b VALUES (1, 10)"
    )
    store = request.getfixturevalue("object_store") if "s3" in where else None
    rest = LocalRestCatalog(tmp_path / "rest", store=store)
    with ExitStack() as stack:
        uri = stack.enter_context(rest).uri if "rest" in where else None
        file = pipeline_file(tmp_path, database, ["a", "b"], extra="mode: history\n", uri=uri)
        if store is not None:
            moved_to(store, file)
        _life_with_views(database, file)


def _life_with_views(database: Database, file: Path) -> None:
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
        database.execute("SELECT pg_drop_replication_slot(%s)", [pipeline.source.slot])
        database.execute("UPDATE a SET w = 9; INSERT INTO c VALUES (3)")
        pipeline.recover(carry_out=True)
        _as_the_lake_is(pipeline)
        assert _rows(pipeline, "shop__at", "a") == [{"id": 1, "w": 9}]
        assert _rows(pipeline, by_point[str(second)], "a") == [{"id": 1, "w": 4}]
        database.execute("UPDATE a SET w = 10")
        pipeline.sync()
        _as_the_lake_is(pipeline)
        assert _rows(pipeline, "shop__at", "a") == [{"id": 1, "w": 10}]
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


def _as_the_lake_is(pipeline: Pipeline) -> None:
    """The views that follow are at the newest point, and none is of a point that the lake does not have."""
    with open_catalog(pipeline.lake) as catalog:
        commits = load(catalog.pointers(), LakeName("shop", "commits")).metadata
    points = {format_lsn(point.position) for point in readable_points(commits)}
    views = pipeline.status().views
    assert views["shop__at"] == pipeline.status().last_consistent_lsn
    assert set(views.values()) <= points


def _rows(pipeline: Pipeline, namespace: str, table: str) -> list[dict[str, object]]:
    with open_catalog(pipeline.lake) as catalog:
        scan = catalog.iceberg.load_table((namespace, table)).scan()
        rows: list[dict[str, object]] = scan.to_arrow().to_pylist()
    return rows


def _spaces(pipeline: Pipeline) -> list[str]:
    with open_catalog(pipeline.lake) as catalog:
        return sorted(name for (name,) in catalog.iceberg.list_namespaces())


def _number(lsn: str | None) -> int:
    high, _, low = str(lsn).partition("/")
    return int(high, 16) << 32 | int(low, 16)
