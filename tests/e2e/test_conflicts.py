"""A lake that is not what its source was: what changes meet is counted, shown, and handled by choice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import ApplyError
from tests.conftest import Database
from tests.e2e.oracle import differences, pipeline_file

pytestmark = pytest.mark.timeout(600)
TABLES = ["applied", "skipped", "refused"]


def _file(folder: Path, database: Database, choice: str) -> Path:
    path = pipeline_file(folder, database, TABLES)
    text = path.read_text().replace("  'skipped': {}", "  'skipped': {on_conflict: skip}")
    path.write_text(
        text.replace("  'refused': {}", f"  'refused': {{on_conflict: {choice}, on_trouble: stop}}")
    )
    return path


def _spoil(pipeline: Any) -> None:
    """Somebody writes to the lake's tables."""
    for table in TABLES:
        pipeline.session.sql(f"DELETE FROM lake.shop.{table} WHERE id IN (2, 3)").collect()
        pipeline.session.sql(f"INSERT INTO lake.shop.{table} (id, v) VALUES (9, 'lake')").collect()


def test_each_choice_by_table(database: Database, session: Any, tmp_path: Path) -> None:
    for table in TABLES:
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
        database.execute(f"INSERT INTO {table} SELECT g, 'source' FROM generate_series(1, 5) g")
    with Pipeline.open(_file(tmp_path, database, "fail")) as pipeline:
        pipeline.init()
        _spoil(pipeline)
        for table in TABLES:
            database.execute(f"UPDATE {table} SET v = 'new' WHERE id <= 2; DELETE FROM {table} WHERE id = 3")
            database.execute(f"INSERT INTO {table} VALUES (9, 'new')")
        before = pipeline.position()
        with pytest.raises(ApplyError) as caught:
            pipeline.sync()
        assert "public.refused" in caught.value.where
        assert "insert_exists 1" in caught.value.what
        assert pipeline.position() == before
        assert set(differences(database, pipeline, TABLES)) == set(TABLES)
    with Pipeline.open(_file(tmp_path, database, "apply")) as pipeline:
        met = {"insert_exists": 1, "update_missing": 1, "delete_missing": 1}
        report = pipeline.sync()
        assert report.conflicts == {f"public.{table}": met for table in TABLES}
        assert set(differences(database, pipeline, TABLES)) == {"skipped"}
        assert sorted(pipeline.rows("skipped")) == [
            ("1", "new"),
            ("4", "source"),
            ("5", "source"),
            ("9", "lake"),
        ]
        status = pipeline.status()
        assert {entry.table: entry.conflicts for entry in status.tables} == report.conflicts
        assert json.loads(json.dumps(status.as_dict()))["tables"][0]["conflicts"] == met
        pipeline.backfill("skipped")
        assert differences(database, pipeline, TABLES) == {}
        assert {e.table for e in pipeline.status().tables if e.conflicts} == {
            "public.applied",
            "public.refused",
        }
