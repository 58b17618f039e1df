"""A derived table that somebody drops: noticed wherever it happens, the others go on, and it comes back."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import LakeError
from slotlake.spark import lake_files
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.names import LakeName
from slotlake.spark.publish.place import table_directory
from tests.conftest import Database
from tests.e2e.aside_causes import five_rows
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it"),
]
HISTORY, CHANGES = LakeName("shop", "t__history"), LakeName("shop", "t__changes")
DROPPED = "was dropped from the catalog by someone else"


def _dropped(pipeline: Any, name: LakeName, *, files: bool = True) -> str:
    """Drop a table, with its files or without; return its metadata file."""
    with open_catalog(pipeline.lake) as catalog:
        location = catalog.pointer(name)
        assert location is not None
        catalog.drop([name])
    if files:
        lake_files.remove_tree(table_directory(pipeline.lake, name))
    return location


def _step(pipeline: Any, database: Database, number: int) -> Any:
    """Change both tables, and stage that; return the batch."""
    database.execute(f"UPDATE t SET v = '{number}' WHERE id <= 2; UPDATE good SET v = '{number}'")
    batch = pipeline.pull().batch
    pipeline.apply(batch)
    return batch


def _alarms(pipeline: Any) -> list[str]:
    return [each.what for each in pipeline.status().alarms if each.kind == "derived table gone"]


def _open_versions_are_the_source(pipeline: Any, database: Database) -> None:
    seen = pipeline.query("SELECT id, v FROM t__history WHERE is_open").rows
    assert Counter(map(tuple, seen)) == Counter(
        (str(row[0]), row[1]) for row in database.execute("SELECT id, v FROM t")
    )
    assert_equal(database, pipeline, ["t", "good"])
    assert pipeline.verify().equal


@pytest.fixture
def life(database: Database, session: Any, tmp_path: Path) -> Path:
    tables = five_rows(database, "good", "t")
    file = pipeline_file(tmp_path, database, tables)
    file.write_text(file.read_text().replace("'t': {}", "'t': {mode: [history, append]}"))
    return file


def test_between_apply_and_publish(life: Path, database: Database) -> None:
    with Pipeline.open(life) as pipeline:
        pipeline.init()
        batch = _step(pipeline, database, 1)
        _dropped(pipeline, HISTORY)
        (warning,) = pipeline.publish(batch).warnings
        assert f"shop.t__history {DROPPED}" in warning
        assert "the next sync begins it again" in warning
        assert pipeline.publish(batch).warnings == []  # it is published
        assert len(_alarms(pipeline)) == 1
        assert_equal(database, pipeline, ["t", "good"])  # the mirror and the others went on
        changed = pipeline.query("SELECT count(*) FROM t__changes WHERE op = 'U'").rows
        assert changed == [("2",)]
        database.execute("DELETE FROM t WHERE id = 5")
        (warning,) = pipeline.sync().warnings
        assert f"shop.t__history {DROPPED}, with all that it had of the past; it began again at 0/" in warning
        assert _alarms(pipeline) == []
        assert pipeline.sync().warnings == []
        _open_versions_are_the_source(pipeline, database)
        begun = pipeline.query("SELECT count(DISTINCT valid_from_lsn) FROM t__history").rows
        assert begun == [("1",)]  # nothing of before

        # At any other moment, too: at rest, and between pull and apply.
        _dropped(pipeline, HISTORY)
        (warning,) = pipeline.sync().warnings
        assert "it began again at 0/" in warning
        database.execute("UPDATE t SET v = 'pulled' WHERE id = 1")
        batch = pipeline.pull().batch or ""
        _dropped(pipeline, CHANGES)
        pipeline.apply(batch)
        assert pipeline.publish(batch).warnings == []  # nothing was staged in it
        assert [f"shop.t__changes {DROPPED}" in each for each in _alarms(pipeline)] == [True]
        (warning,) = pipeline.sync().warnings
        assert "shop.t__changes" in warning
        assert "it began again" in warning
        with open_catalog(pipeline.lake) as catalog:  # the mirror, too: its copy makes them all
            catalog.drop([LakeName("shop", "t"), HISTORY, CHANGES])
        for name in ("t", "t__history", "t__changes"):
            lake_files.remove_tree(table_directory(pipeline.lake, LakeName("shop", name)))
        report = pipeline.sync()
        assert report.added_tables == ["public.t"]
        assert sum("is there again" in warning for warning in report.warnings) == 2
        _open_versions_are_the_source(pipeline, database)


def test_its_files_are_in_the_way(life: Path, database: Database) -> None:
    """The mirror and the others go on; `recover` names the directory, too; then it begins again."""
    with Pipeline.open(life) as pipeline:
        pipeline.init()
        batch = _step(pipeline, database, 1)
        _dropped(pipeline, HISTORY, files=False)
        pipeline.publish(batch)
        directory = table_directory(pipeline.lake, HISTORY)
        for number in range(2):
            database.execute(
                f"UPDATE t SET v = 'w{number}' WHERE id = 3; DELETE FROM good WHERE id = {number}"
            )
            (warning,) = pipeline.sync().warnings
            assert f"its directory {directory} holds files: remove them" in warning
            assert len(_alarms(pipeline)) == 1
            assert_equal(database, pipeline, ["t", "good"])
        lake_files.remove_tree(directory)
        (warning,) = pipeline.sync().warnings
        assert "it began again" in warning
        _open_versions_are_the_source(pipeline, database)

        # Dropped at rest, and `recover` is asked before a sync.
        _dropped(pipeline, HISTORY, files=False)
        plan = pipeline.recover()
        assert plan.plan == ["make shop.t__history again, from its mirror"]
        with pytest.raises(LakeError, match="the directory of a new table is in use"):
            pipeline.recover(carry_out=True)
        lake_files.remove_tree(directory)
        pipeline.recover(carry_out=True)
        _open_versions_are_the_source(pipeline, database)
    # A table that the file does not ask for was dropped to end it: nobody is warned.
    life.write_text(life.read_text().replace("mode: [history, append]", "mode: append"))
    with Pipeline.open(life) as pipeline:
        batch = _step(pipeline, database, 5)
        _dropped(pipeline, HISTORY, files=False)
        assert pipeline.publish(batch).warnings == []
        assert pipeline.sync().warnings == []
        assert _alarms(pipeline) == []
        assert_equal(database, pipeline, ["t", "good"])


def test_registered_again_and_on_trouble_stop(life: Path, database: Database) -> None:
    """One that lacks points is not taken for whole; one that is to stop all loses not even the batch."""
    with Pipeline.open(life) as pipeline:
        pipeline.init()
        batch = _step(pipeline, database, 1)
        location = _dropped(pipeline, HISTORY, files=False)
        pipeline.publish(batch)
        with open_catalog(pipeline.lake) as catalog:
            catalog.add(HISTORY, location)
        database.execute("UPDATE t SET v = 'later' WHERE id = 4; UPDATE good SET v = 'later'")
        report = pipeline.sync()
        assert "is in the catalog again, without the changes of meanwhile" in report.set_aside["public.t"]
        (warning,) = report.warnings
        assert warning.endswith(
            "shop.t__history had been dropped from the catalog by someone else, and is there again"
        )
        assert_equal(database, pipeline, ["good"])
        assert pipeline.sync().resumed == ["public.t"]
        assert _alarms(pipeline) == []
        _open_versions_are_the_source(pipeline, database)
        past = pipeline.query("SELECT count(*) FROM t__history WHERE v = 'first' AND NOT is_open").rows
        assert int(past[0][0] or 0) > 0  # what it had of the past is there
    life.write_text(life.read_text().replace("mode: [history", "on_trouble: stop, mode: [history"))
    with Pipeline.open(life) as pipeline:
        before = pipeline.position()
        batch = _step(pipeline, database, 9)
        _dropped(pipeline, HISTORY)
        with pytest.raises(LakeError, match=f"a derived table {DROPPED}"):
            pipeline.publish(batch)
        assert pipeline.position() == before
        pipeline.sync()
        _open_versions_are_the_source(pipeline, database)
        versions = pipeline.query("SELECT count(*) FROM t__history WHERE id = 1").rows
        assert versions == [("2",)]  # it began before the batch, so the batch's change is in it
