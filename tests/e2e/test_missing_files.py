"""A file of a lake table that is missing or shortened, met by Spark: named, and one table's trouble alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.spark.direct.choice import NEVER, SWITCH
from tests.conftest import Database
from tests.e2e.aside_causes import five_rows
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.storage import IN_S3, local_file

pytestmark = pytest.mark.timeout(600)


def test_one_tables_trouble(
    database: Database, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, NEVER)
    tables = five_rows(database, "good", "gone", "shortened")
    with Pipeline.open(pipeline_file(tmp_path, database, tables)) as pipeline:
        pipeline.init()
        listed = "SELECT file_path FROM lake.shop.{}.files"
        files = {
            name: local_file(pipeline.session.sql(listed.format(name)).collect()[0][0])
            for name in ("gone", "shortened")
        }
        files["gone"].unlink()
        files["shortened"].write_bytes(files["shortened"].read_bytes()[:-20])
        told = " ".join(alarm.what for alarm in pipeline.status().alarms)
        assert IN_S3 or all(file.name in told for file in files.values()), told
        database.execute("; ".join(f"UPDATE {name} SET v = 'new' WHERE id < 4" for name in tables))
        assert set(pipeline.sync().set_aside) == {"public.gone", "public.shortened"}
        for entry in pipeline.status().set_aside:
            assert files[entry["table"]].name in entry["what"]
            assert "slotlake recover" in entry["way_out"]
        assert_equal(database, pipeline, ["good"])
        assert set(pipeline.sync().resumed) == {"public.gone", "public.shortened"}
        assert_equal(database, pipeline, tables)
