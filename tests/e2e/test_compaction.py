"""A sync packs small files by itself, after the batch; no row changes, at no kept point."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import LakeError
from slotlake.infra.airflow import steps
from slotlake.infra.reports import TableCompacted
from slotlake.spark.direct import packing
from slotlake.spark.maintenance import small_files
from slotlake.spark.maintenance.integrity import find_damage
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = pytest.mark.timeout(1800)

ROWS = 200
LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
FILES = 5
# In the long form with the real number.  Batches that are staged without Spark pack a mirror's files
# themselves before there are so many.
FILES_LONG, BATCHES = (small_files.FILES_MIN, 60) if LONG else (FILES, 12)
# A file of which no row is left leaves the table.  With so many batches between two updates of a row, the
# files of all of them are alive at once.
CYCLE = FILES_LONG + 2
TABLES = ["stock", "other"]
MODES = "mode: [mirror, history, append]\n"
OFF = "maintenance: {in_sync: false}\n"


@pytest.fixture(autouse=True)
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "FILES_MIN", FILES)


def _fill(database: Database) -> None:
    for table in TABLES:
        database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, quantity int, note text);"
            f"INSERT INTO {table} SELECT g, 0, 'note ' || g FROM generate_series(1, {ROWS}) g"
        )


def _update(database: Database, number: int) -> None:
    rows = f"id % {CYCLE} = {number % CYCLE}"
    database.execute(f"UPDATE stock SET quantity = {number}, note = note || '.' WHERE {rows}")


def _count(pipeline: Any, table: str) -> int:
    files = f"SELECT count(*) FROM lake.shop.{table}.data_files"
    return int(pipeline.session.sql(files).collect()[0][0])


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_the_files_of_a_table_that_is_only_updated_stay_few(
    database: Database, connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_files, "FILES_MIN", FILES_LONG)
    _fill(database)
    file = pipeline_file(tmp_path, database, TABLES, extra=MODES)
    derived = ["stock", "stock__history", "stock__changes"]
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.init()
        compacted, most = list[TableCompacted](), 0
        seen = dict[str, list[tuple[str | None, ...]]]()
        for number in range(1, BATCHES + 1):
            _update(database, number)
            report = pipeline.sync()
            assert report.changes in range(ROWS // CYCLE, ROWS // CYCLE + 2)
            compacted += report.compacted
            most = max(most, *(_count(pipeline, table) for table in derived))
            seen[report.lsn] = sorted(pipeline.rows("stock"))
        assert most <= FILES_LONG + 8, "instead of one a batch"
        names = {each.lake_table for each in compacted}
        assert names | ({"shop.stock"} if LONG else set()) == {f"shop.{name}" for name in derived}
        assert all(each.rewritten_files >= FILES_LONG - 2 and not each.failed for each in compacted)
        assert all(each.written_files <= 2 for each in compacted), (
            "of the history: its open and its closed versions"
        )
        for lsn in list(seen)[-20:]:
            assert sorted(pipeline.rows("stock", at=lsn)) == seen[lsn]
            assert pipeline.query("SELECT sum(quantity) AS s FROM stock", at=lsn).rows == [
                (str(sum(int(row[1] or 0) for row in seen[lsn])),)
            ]
        assert find_damage(pipeline.lake, "shop", files=True) == []
        assert_equal(database, pipeline, TABLES)
        assert pipeline.verify().equal
        assert pipeline.recover().plan == []


def test_it_can_be_switched_off(database: Database, connect: str, tmp_path: Path) -> None:
    _fill(database)
    file = pipeline_file(tmp_path, database, TABLES, extra=OFF)
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.init()
        for number in range(FILES + 2):
            _update(database, number)
            assert pipeline.sync().compacted == []
        # A file of which no row is left leaves the table, if the batch is staged without Spark.
        assert FILES <= _count(pipeline, "stock") <= FILES + 3


def test_the_task_confirm_compacts_what_its_batch_changed(
    database: Database, connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTLAKE_SPARK_REMOTE", connect)
    _fill(database)
    file = str(pipeline_file(tmp_path, database, TABLES, extra="changelog: {keep_days: 0}\n"))
    steps.bootstrap(file)
    compacted = []
    for number in range(FILES + 1):
        _update(database, number)
        batch = steps.pull(file)["batch"]
        steps.apply(file, batch)
        steps.publish(file, batch)
        compacted += steps.confirm(file, batch)["compacted"]
        assert steps.confirm(file, batch)["compacted"] == [], "a cleared task finds nothing to do"
        assert steps.confirm(file)["compacted"] == []
    assert [each["lake_table"] for each in compacted] == ["shop.stock"]


def test_a_table_that_cannot_be_compacted_fails_no_sync(
    database: Database, connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise LakeError("the table could not be written: NO_ROOM", where="x", way_out="y")

    _fill(database)
    with Pipeline.open(pipeline_file(tmp_path, database, TABLES), remote=connect) as pipeline:
        pipeline.init()
        monkeypatch.setattr(small_files, "rewrite_files", fail)
        monkeypatch.setattr(packing, "with_packed_files", fail)
        reports = []
        for number in range(FILES - 1):  # and the file of the initial copy
            _update(database, number)
            reports += [(each.lake_table, each.failed) for each in pipeline.sync().compacted]
        assert reports == [("shop.stock", "the table could not be written: NO_ROOM")]
        monkeypatch.undo()
        monkeypatch.setattr(small_files, "FILES_MIN", FILES)
        _update(database, FILES)
        assert [each.failed for each in pipeline.sync().compacted] == [""]
        assert pipeline.verify().equal


def test_a_table_that_is_set_aside_is_not_compacted(
    database: Database, connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slotlake.infra.sync import compaction

    _fill(database)
    with Pipeline.open(pipeline_file(tmp_path, database, TABLES), remote=connect) as pipeline:
        pipeline.init()
        monkeypatch.setattr(compaction, "tables_aside", lambda _: {("public", "stock"): None})
        for number in range(FILES + 1):
            _update(database, number)
            assert pipeline.sync().compacted == []
