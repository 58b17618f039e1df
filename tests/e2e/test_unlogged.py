"""Tables and partitions that are unlogged, for a while or always: the server sends nothing of them then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.infra.status.validation import validate
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = [pytest.mark.timeout(600), pytest.mark.server]
NAMES = ["short", "texts", "keyless", "part_1", "moved", "moved_short", "emptied"]


def copied_again(pipeline: Pipeline) -> set[str]:
    """The tables that were copied again without having been asked for."""
    return {each.table for each in pipeline.status().tables if each.copied_again}


def test_unlogged_between_two_syncs(database: Database, session: Any, tmp_path: Path) -> None:
    """A new file is no sign of a compaction where the table may have been unlogged."""
    database.execute(
        "CREATE TABLE short (id int PRIMARY KEY, v int); CREATE TABLE texts (id int PRIMARY KEY, v text);"
        "CREATE TABLE keyless (v int); CREATE TABLE moved (id int PRIMARY KEY, v text);"
        "CREATE TABLE moved_short (id int PRIMARY KEY); CREATE TABLE emptied (id int PRIMARY KEY, v text);"
        "CREATE TABLE part (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (1000);"
        "CREATE PUBLICATION shop FOR ALL TABLES"
    )
    for name in ("short", "texts", "part", "moved", "emptied"):
        database.execute(f"INSERT INTO {name} SELECT g, g::text::{'int' if name == 'short' else 'text'} "
                         "FROM generate_series(1, 20) g")  # fmt: skip
    database.execute("INSERT INTO keyless VALUES (1); INSERT INTO moved_short VALUES (1), (2)")
    with Pipeline.open(pipeline_file(tmp_path, database, [])) as pipeline:
        pipeline.init()
        for name in ("short", "texts", "part_1"):
            database.execute(f"ALTER TABLE {name} SET UNLOGGED")
            database.execute(f"INSERT INTO {name} SELECT g, 7 FROM generate_series(100, 200) g")
            database.execute(f"DELETE FROM {name} WHERE id = 1; UPDATE {name} SET v = '8' WHERE id = 2")
            database.execute(f"ALTER TABLE {name} SET LOGGED; INSERT INTO {name} VALUES (999, 9)")
        database.execute(
            "ALTER TABLE keyless SET UNLOGGED; TRUNCATE keyless; INSERT INTO keyless VALUES (5);"
            "ALTER TABLE keyless SET LOGGED; TRUNCATE emptied; INSERT INTO emptied VALUES (1, 'new')"
        )
        for statement in ("VACUUM FULL moved", "CLUSTER moved USING moved_pkey", "VACUUM FULL moved_short"):
            database.execute(statement)
        report = pipeline.sync()
        assert not report.set_aside
        assert_equal(database, pipeline, NAMES)
        expected = {f"public.{name}" for name in ("short", "texts", "keyless", "part_1")}
        assert copied_again(pipeline) == expected
        before = {each.table: each.snapshot_id for each in pipeline.status().tables}
        pipeline.sync()
        assert {each.table: each.snapshot_id for each in pipeline.status().tables} == before

        database.execute("ALTER TABLE texts SET UNLOGGED; INSERT INTO texts VALUES (5000, 'unlogged')")
        pipeline.sync()
        assert {each.table: each.state for each in pipeline.status().tables}["public.texts"] != "followed"
        database.execute("ALTER TABLE texts SET LOGGED; INSERT INTO texts VALUES (5001, 'logged')")
        pipeline.sync()
        assert_equal(database, pipeline, NAMES)
        assert pipeline.verify().equal


def test_an_unlogged_partition_of_a_root(database: Database, session: Any, tmp_path: Path) -> None:
    """Its rows come with a copy, and it is named everywhere, because no change of them ever comes."""
    database.execute(
        "CREATE TABLE sales (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE sales_1 PARTITION OF sales FOR VALUES FROM (0) TO (10);"
        "CREATE UNLOGGED TABLE sales_2 PARTITION OF sales FOR VALUES FROM (10) TO (20);"
        "INSERT INTO sales SELECT g, 'x' FROM generate_series(1, 19) g;"
        "CREATE PUBLICATION shop FOR TABLE sales WITH (publish_via_partition_root = true)"
    )
    with Pipeline.open(pipeline_file(tmp_path, database, ["sales"])) as pipeline:
        assert any("sales_2" in check.what for check in validate(pipeline.file.path).checks)
        assert any("sales_2" in each and "unlogged" in each for each in pipeline.init().warnings)
        assert_equal(database, pipeline, ["sales"])
        database.execute("UPDATE sales SET v = 'changed'")
        pipeline.sync()
        assert any("sales_2" in each for each in pipeline.status().warnings)
        assert not pipeline.verify().equal
        pipeline.backfill("sales")
        assert_equal(database, pipeline, ["sales"])
        database.execute("ALTER TABLE sales_2 SET LOGGED; UPDATE sales SET v = 'logged'")
        pipeline.sync()
        assert not any("sales_2" in each for each in pipeline.status().warnings)
        assert_equal(database, pipeline, ["sales"])
