"""A pipeline's life besides micro-batches: tables that join, backfills, a lost slot, the end."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import BusyError, PipelineFileError, SlotError
from tests.catalogs import GLUE_URI, glue_lines
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.spark.hive_metastore import LocalHiveMetastore
from tests.spark.rest_catalog import LocalRestCatalog
from tests.storage import IN_S3, moved_to

pytestmark = pytest.mark.timeout(600)


LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
# Where all lakes of the run are in a bucket, "folder" is that bucket; the others write `lake` themselves.
_OTHERS = ["s3, rest", "s3", "hive", "hive, connect", "s3, glue"] if LONG else []
WHERE = ["folder", *([] if IN_S3 else _OTHERS)]


@pytest.mark.parametrize("where", WHERE)
def test_life(
    where: str, database: Database, session: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In a folder; in a bucket; in a bucket, with a REST catalog; with catalogs of one table at a time."""
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text);"
        "INSERT INTO a SELECT g, 'a' FROM generate_series(1, 100) g"
    )
    with ExitStack() as stack:
        file = pipeline_file(tmp_path, database, ["a"])
        if "hive" in where:
            metastore = stack.enter_context(LocalHiveMetastore(tmp_path / "hive"))
            file = pipeline_file(tmp_path, database, ["a"], uri=metastore.uri)
            file.write_text(file.read_text().replace("lake:\n", "lake:\n  publish: per_table\n"))
        elif "glue" in where:
            file = pipeline_file(tmp_path, database, ["a"], uri=GLUE_URI)
            file.write_text(file.read_text().replace("lake:\n", f"lake:\n{glue_lines(request)}"))
            moved_to(request.getfixturevalue("object_store"), file)
        elif where != "folder":
            store = request.getfixturevalue("object_store")
            rest = LocalRestCatalog(tmp_path / "rest", store=store)
            uri = stack.enter_context(rest).uri if "rest" in where else None
            file = pipeline_file(tmp_path, database, ["a"], uri=uri)
            moved_to(store, file)
        remote = request.getfixturevalue("connect") if "connect" in where else None
        pipeline = stack.enter_context(Pipeline.open(file, remote=remote))
        first = pipeline.init()
        assert (first.already, first.rows) == (False, 100)
        assert pipeline.init().already
        _a_table_joins(database, pipeline)
        _a_batch_pulled_but_not_applied(database, pipeline)
        _a_table_is_copied_again(database, pipeline)
        _a_column_changes_its_type(database, pipeline)
        _the_tables_are_kept_small(database, pipeline)
        _the_slot_is_lost(database, pipeline)
        _the_end(database, pipeline)


def _a_table_joins(database: Database, pipeline: Any) -> None:
    database.execute(
        "CREATE TABLE b (id int PRIMARY KEY, v text); INSERT INTO b VALUES (1, 'before');"
        "ALTER PUBLICATION shop ADD TABLE b; INSERT INTO b VALUES (2, 'after');"
        "UPDATE a SET v = 'b' WHERE id = 1"
    )
    assert pipeline.sync().added_tables == ["public.b"]
    assert_equal(database, pipeline, ["a", "b"])
    database.execute("DELETE FROM b WHERE id = 1")
    pipeline.sync()
    assert_equal(database, pipeline, ["a", "b"])


def _a_batch_pulled_but_not_applied(database: Database, pipeline: Any) -> None:
    """The steps one by one, each twice; then what a scheduler does when the pull was long ago."""
    database.execute("UPDATE a SET v = 'c' WHERE id = 2")
    batch = pipeline.pull().batch
    assert pipeline.pull().batch == batch
    database.execute("UPDATE a SET v = 'd' WHERE id = 3")
    for _ in range(2):
        assert not pipeline.apply(batch).already_published
    assert not pipeline.publish(batch).already_published
    assert pipeline.publish(batch).already_published
    assert pipeline.apply(batch).already_published
    pipeline.confirm()
    pipeline.confirm()
    pipeline.sync()
    assert_equal(database, pipeline, ["a", "b"])
    assert not pipeline.sync().transactions  # the server may have noted what is running meanwhile


def _a_table_is_copied_again(database: Database, pipeline: Any) -> None:
    database.execute("INSERT INTO a VALUES (500, 'e')")
    report = pipeline.backfill("a")
    assert report.rows == 101
    assert_equal(database, pipeline, ["a", "b"])


def _a_column_changes_its_type(database: Database, pipeline: Any) -> None:
    database.execute("ALTER TABLE a ALTER v TYPE int USING id * 2; UPDATE a SET v = 7 WHERE id = 1")
    pipeline.sync()
    assert_equal(database, pipeline, ["a", "b"])
    database.execute("ALTER TABLE a ALTER v TYPE text USING id * 3")
    pipeline.backfill("public.a")
    assert_equal(database, pipeline, ["a", "b"])
    database.execute("ALTER TABLE a ALTER v TYPE int USING id * 2; UPDATE a SET v = 7 WHERE id = 1")
    pipeline.sync()
    assert_equal(database, pipeline, ["a", "b"])
    database.execute("UPDATE a SET v = 8 WHERE id = 1; INSERT INTO b VALUES (9, NULL)")
    pipeline.sync()
    assert_equal(database, pipeline, ["a", "b"])
    assert pipeline.verify().equal


def _the_tables_are_kept_small(database: Database, pipeline: Any) -> None:
    """Also after its columns have changed; what there was no time for comes first in the next run."""
    with pytest.raises(PipelineFileError, match="the lake has no table"):
        pipeline.maintain("public.nope")
    with pipeline.exclusively(), pytest.raises(BusyError):
        pipeline.maintain()
    section = pipeline.file.maintenance
    short = section.model_copy(update={"minutes_max": 1e-9})
    pipeline.file = pipeline.file.model_copy(update={"maintenance": short})
    first = pipeline.maintain()
    assert ([table.lake_table for table in first.tables], first.left) == (
        ["shop.a"],
        ["shop.b", "shop.commits"],
    )
    assert pipeline.maintain().left == ["shop.commits", "shop.a"]
    pipeline.file = pipeline.file.model_copy(update={"maintenance": section})
    done = pipeline.maintain()
    assert [table.lake_table for table in done.tables] == ["shop.commits", "shop.a", "shop.b"]
    assert done.tables[0].rewritten_files >= 5
    assert done.left == []
    assert_equal(database, pipeline, ["a", "b"])
    database.execute("UPDATE a SET v = 9 WHERE id = 1")
    pipeline.sync()
    assert pipeline.verify().equal


def _the_slot_is_lost(database: Database, pipeline: Any) -> None:
    assert pipeline.recover().plan == []
    database.execute("SELECT pg_drop_replication_slot(%s)", [pipeline.source.slot])
    database.execute("UPDATE b SET v = 'while nobody looked'")
    with pytest.raises(SlotError, match="does not exist"):
        pipeline.sync()
    assert pipeline.status().state == "slot missing"
    assert not pipeline.recover().carried_out
    assert pipeline.recover(carry_out=True).carried_out
    assert_equal(database, pipeline, ["a", "b"])
    assert pipeline.status().state == "ready"


def _the_end(database: Database, pipeline: Any) -> None:
    pipeline.drop(lake=True)
    left = database.execute("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")
    assert left == [(0,)]
    assert pipeline.status().state == "not initialised"
    pipeline.init()
    assert_equal(database, pipeline, ["a", "b"] if _published(database, "b") else ["a"])


def _published(database: Database, table: str) -> bool:
    return bool(database.execute("SELECT 1 FROM pg_publication_tables WHERE tablename = %s", [table]))
