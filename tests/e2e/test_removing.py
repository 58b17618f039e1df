"""`slotlake drop`: killed half-way, with a side out of reach, twice, and begun again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.infra.airflow import scheduling
from slotlake.infra.cli.main import main
from slotlake.spark import lake_files
from slotlake.spark.maintenance.removal import executors_folder
from tests.conftest import ROOT, Database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.storage import files_folder, files_in

pytestmark = pytest.mark.timeout(600)


def test_the_end_and_a_new_beginning(
    database: Database,
    session: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    file = pipeline_file(tmp_path, database, ["t"])
    monkeypatch.setenv(scheduling.VARIABLE, str(file))
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        pipeline.install_trigger()
    _the_source_is_out_of_reach(database, file, capsys)
    assert scheduling.pipelines() == []
    _killed_and_run_again(database, file, tmp_path)
    with Pipeline.open(file) as pipeline:
        assert pipeline.drop(lake=True).done == ["nothing was there to drop"]
        assert pipeline.status().state == "not initialised"
        pipeline.init()
        assert [each.name for each in scheduling.pipelines()] == ["shop"]
        assert_equal(database, pipeline, ["t"])
        assert _left(database) == (1, 1, 0)
        pipeline.drop()
        assert _left(database) == (0, 0, 0)
        assert sorted(pipeline.rows("public.t")) == [("1",), ("2",)]
        assert pipeline.status().state == "dropped"
        database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [pipeline.source.slot])
        pipeline.drop()  # whoever made a slot of that name since keeps it
        assert _left(database) == (1, 0, 0)


def _the_source_is_out_of_reach(database: Database, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = file.read_text()
    file.write_text(text.replace(f"port={database.server.port}", "port=1"))
    capsys.readouterr()
    assert main(["drop", str(file), "--yes", "--json"]) == 3
    left = json.loads(capsys.readouterr().out)["left"]
    file.write_text(text)
    assert "pg_drop_replication_slot" in left[0]
    assert 'DROP PUBLICATION IF EXISTS "shop"' in left[1]
    assert "DROP EVENT TRIGGER" in left[2]
    assert _left(database) == (1, 1, 1)


def _killed_and_run_again(database: Database, file: Path, folder: Path) -> None:
    with Pipeline.open(file) as pipeline:
        lake_files.write_new(executors_folder(pipeline.lake) / "cluster", b"spark://cluster:7077")
    assert _slotlake(file, "drop.source", "--lake").returncode == -9
    assert _left(database) == (0, 0, 0)
    table = files_folder(folder) / "shop" / "t"
    assert _slotlake(file, "drop.catalog", "--lake").returncode == -9
    assert list(table.rglob("*.parquet"))
    assert _slotlake(file, "").returncode == 0  # also without --lake: it had begun
    assert files_in(table) == []
    assert not list((files_folder(folder) / "_slotlake").rglob("cluster"))
    assert not (file.parent / ".slotlake" / "shop" / "changelog").exists()


def test_the_lake_is_gone(database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the lake only what `init` noted says whose the slot is."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION shop FOR TABLE t")
    file = pipeline_file(tmp_path, database, ["t"], uri="postgresql+psycopg://nobody@127.0.0.1:1/none")
    slot = f"slotlake_{database.name}_shop"
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
    assert main(["drop", str(file), "--yes", "--json"]) == 0
    assert "did not make it" in json.loads(capsys.readouterr().out)["left"][0]
    assert _left(database) == (1, 1, 0)
    state = tmp_path / ".slotlake" / "shop"
    (state / "made.json").write_text(json.dumps({"slot": slot, "publications": []}))
    assert main(["drop", str(file), "--yes", "--lake", "--json"]) == 7
    report = json.loads(capsys.readouterr().out)
    assert report["done"] == [f"dropped the replication slot {slot}"]
    assert "namespace shop" in report["left"][0]
    assert _left(database) == (0, 1, 0)


def _slotlake(file: Path, failpoint: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "slotlake", "drop", str(file), "--yes", "--json", *options],
        cwd=ROOT,
        env={**os.environ, "SLOTLAKE_FAILPOINT": failpoint},
        capture_output=True,
        text=True,
        check=False,
    )


def _left(database: Database) -> tuple[int, ...]:
    """How many slots, publications and event triggers the database has."""
    counts = (
        "SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = current_database()), "
        "(SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_event_trigger)"
    )
    return database.execute(counts)[0]
