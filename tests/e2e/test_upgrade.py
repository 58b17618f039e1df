"""Lakes and change logs that earlier versions wrote are read, followed and proven by this one."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.changelog import batches
from slotlake.decoder.errors import ChangeLogError, LakeError
from slotlake.infra.cli.main import main
from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.spark.names import LakeName
from slotlake.spark.publish import commits, position
from slotlake.spark.publish.position import FORMAT_PROPERTY, LAKE_FORMAT, require_known_format
from tests.conftest import ROOT, Database
from tests.e2e.oracle import assert_equal
from tests.e2e.upgrades import SOURCE, TABLES, KeptLake, names

LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]
COMMANDS = (
    ["sync"],
    ["recover", "--yes"],
    ["recover"],
    ["init"],
    ["pull"],
    ["verify"],
    ["maintain"],
    ["backfill", "--table", "public.a"],
)


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.skipif("-" in name and not LONG, reason="SLOTLAKE_TEST_LONG=1"))
        for name in names()
    ]
)
def kept(request: pytest.FixtureRequest) -> KeptLake:
    return KeptLake.read(request.param)


def _file(kept: KeptLake, folder: Path, store: LocalObjectStore, database: Database) -> Path:
    return kept.restore(folder, store, database.dsn, f"slotlake_{database.name}")


def _assert_points(kept: KeptLake, pipeline: Pipeline) -> None:
    """Each point holds what the version that wrote it read there."""
    for point in kept.about["points"]:
        for table, rows in point["tables"].items():
            columns = None if table != "public.a" else ["id", "word", "n"]
            wanted = [tuple(row[:3] if columns else row) for row in rows]
            read = list(pipeline.rows(table, columns, at=point["lsn"]))
            assert sorted(read, key=str) == sorted(wanted, key=str), (point["lsn"], table)


def test_there_is_a_lake_of_each_format() -> None:
    assert sorted({KeptLake.read(name).number for name in names()}) == list(range(1, LAKE_FORMAT + 1))
    page = (ROOT / "docs" / "upgrade.md").read_text()
    assert f"| lake | {LAKE_FORMAT} |" in page
    assert f"| batch of the change log | {batches.FORMAT} |" in page


def test_the_lake_of_more_shapes_has_them(tmp_path: Path) -> None:
    kept = KeptLake.read("1-shapes")
    place = tmp_path / "lake.db"
    place.write_bytes(kept.files["lake.db"])
    with sqlite3.connect(place) as connection:
        named = connection.execute(
            "SELECT table_name, metadata_location FROM iceberg_tables WHERE table_namespace = 'kept'"
        ).fetchall()
        views = connection.execute(
            "SELECT count(*) FROM iceberg_tables WHERE table_namespace LIKE 'kept\\_\\_at%' ESCAPE '\\'"
        ).fetchall()
    found = {
        name: json.loads(kept.files[location.replace("s3://lake", "objects", 1)]) for name, location in named
    }
    assert {table["format-version"] for table in found.values()} == {2}
    transforms = {name: table["partition-specs"][-1]["fields"] for name, table in found.items()}
    assert [field["transform"] for field in transforms["a"]] == ["bucket[4]"]
    assert [field["transform"] for field in transforms["typed"]] == ["day"]
    assert found["a"]["sort-orders"][-1]["fields"]
    columns = {field["name"] for field in found["a"]["schemas"][-1]["fields"]}
    assert "_is_deleted" in columns
    assert views[0][0] > 0


def test_every_point_is_read_and_a_newer_lake_is_refused(
    kept: KeptLake,
    tmp_path: Path,
    object_store: LocalObjectStore,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = _file(kept, tmp_path, object_store, database)
    with Pipeline.open(file) as pipeline:
        _assert_points(kept, pipeline)
    before = (tmp_path / "lake.db").read_bytes()
    # This version as one that is older than the lake.  Whoever writes the number has it already.
    assert vars(commits)["LAKE_FORMAT"] == LAKE_FORMAT
    monkeypatch.setattr(position, "LAKE_FORMAT", kept.number - 1)
    database.execute(SOURCE)
    for words in COMMANDS if LONG else COMMANDS[:2]:
        assert main([words[0], str(file), *words[1:]]) == 7, words
        said = capsys.readouterr().err
        assert f"the lake has format {kept.number}, but this version" in said, words
        assert "what to do: install the version" in said
    with Pipeline.open(file) as pipeline, pytest.raises(LakeError, match="format"):
        list(pipeline.rows("public.a", at=kept.about["points"][0]["lsn"]))
    assert main(["status", str(file)]) == 7
    assert "format" in capsys.readouterr().out
    assert (tmp_path / "lake.db").read_bytes() == before
    slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    assert database.execute(slots) == [(0,)]


@pytest.mark.parametrize("written", ["0", "", "x", "-1", "²", "99"])
def test_a_format_that_is_no_known_number_is_refused(written: str) -> None:
    with pytest.raises(LakeError, match="has format"):
        require_known_format({"properties": {FORMAT_PROPERTY: written}}, LakeName("n", "commits"))


def test_a_batch_of_a_later_version_is_refused(kept: KeptLake, tmp_path: Path) -> None:
    for name, data in kept.files.items():
        if name.startswith(".slotlake/"):
            place = tmp_path / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
    found = sorted((tmp_path / ".slotlake" / "kept" / "changelog").glob("*/manifest.json"))
    assert len(found) >= 3
    for path in found:
        batches.Batch.open(path.parent)
        manifest = json.loads(path.read_text())
        path.write_text(json.dumps({**manifest, "format": manifest["format"] + 1}))
        with pytest.raises(ChangeLogError, match="install the version of slotlake that wrote the batch"):
            batches.Batch.open(path.parent)


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_a_kept_lake_is_replayed_followed_and_equal(
    kept: KeptLake, tmp_path: Path, object_store: LocalObjectStore, database: Database, session: Any
) -> None:
    """A source anew, of another cluster: `recover` writes what differs, then the lake goes on."""
    file = _file(kept, tmp_path, object_store, database)
    database.execute(SOURCE)
    database.execute(f"CREATE PUBLICATION kept FOR TABLE {', '.join(TABLES)}")
    points = kept.about["points"]
    with Pipeline.open(file) as pipeline:
        pipeline.replay("scratch", start=points[0]["lsn"], end=points[-1]["lsn"])
        pipeline.recover(carry_out=True)
        assert_equal(database, pipeline, list(TABLES))
        database.execute("INSERT INTO a VALUES (50, 'later', 1); DELETE FROM bag WHERE n = 1")
        database.execute("UPDATE typed SET raw = 'y'")
        pipeline.sync()
        pipeline.maintain()
        assert pipeline.verify().equal
        assert_equal(database, pipeline, list(TABLES))
        _assert_points(kept, pipeline)


def test_the_archives_hold_nothing_of_the_machine_that_wrote_them(kept: KeptLake, tmp_path: Path) -> None:
    place = tmp_path / "lake.db"
    place.write_bytes(kept.files["lake.db"])
    with sqlite3.connect(place) as connection:
        locations = connection.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
    assert locations
    assert all(location.startswith(f"s3://lake/kept-{kept.name}/") for (location,) in locations)
    texts = [data for name, data in kept.files.items() if name.endswith((".json", ".db"))]
    assert not any(b"file:/" in data or b"/home/" in data for data in texts)
