"""One table through all its lives: `status` names each, and the lake has it without the state folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import LakeError
from slotlake.infra.status.noted import look
from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import open_catalog, read_listing
from slotlake.spark.publish.aside import Aside
from slotlake.spark.publish.aside_write import forget, write
from slotlake.spark.publish.commits import commits_name
from slotlake.spark.publish.lives import LIVES_PROPERTY, Event, Life
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.tables import metadata as catalog_metadata
from tests.conftest import Database
from tests.e2e.aside_causes import BAD
from tests.e2e.joins import BIG, SMALL, begun, until_joined
from tests.e2e.oracle import assert_equal
from tests.e2e.recopies import small_and_slow
from tests.e2e.test_aside import ascii_database

__all__ = ["ascii_database"]
pytestmark = pytest.mark.timeout(900)
_ROWS = "INSERT INTO big SELECT i, i, repeat('x', 60) FROM generate_series(1, 2500) i"


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    small_and_slow(monkeypatch)


def _life(pipeline: Pipeline) -> str | None:
    """Of the table, as `status` says it; the other one is followed all the time."""
    lives = {entry.table: entry.life for entry in pipeline.status().tables}
    assert lives.pop(SMALL) == "followed"
    return lives.get(BIG)


def _stored(pipeline: Pipeline) -> Life | None:
    return ReadPoint.latest(pipeline.lake).lives.get(("public", "big"))


def _without_lives(pipeline: Pipeline) -> None:
    """The lake as an earlier version leaves it."""
    with open_catalog(pipeline.lake) as catalog:
        commits = load_one(catalog, commits_name(pipeline.lake.namespace))
        metadata = catalog_metadata.with_properties(commits.metadata, {LIVES_PROPERTY: None})
        catalog.move([catalog.prepared(commits, metadata)])


def test_all_lives(
    ascii_database: Database, connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = ascii_database
    with begun(database, tmp_path, connect) as pipeline, database.connect() as writer:
        writer.autocommit = False
        assert _life(pipeline) is None
        database.execute("CREATE TABLE big (id int PRIMARY KEY, v int, t text)")
        writer.execute("INSERT INTO big VALUES (-1, 0, 'before it is published')")
        database.execute(f"{_ROWS}; ALTER PUBLICATION shop ADD TABLE big")
        pipeline.sync()
        assert (_life(pipeline), _stored(pipeline)) == ("settling", Life.SETTLING)
        writer.commit()
        pipeline.sync()
        assert (_life(pipeline), _stored(pipeline)) == ("copying", Life.COPYING)
        with monkeypatch.context() as patch:  # as long as it goes on, nothing of this is written
            patch.setattr("slotlake.spark.publish.aside_write.note_joining", _refused)
            pipeline.sync()
        until_joined(pipeline)
        assert (_life(pipeline), _stored(pipeline)) == ("followed", None)
        assert_equal(database, pipeline, ["big", "small"])

        _refuses_what_cannot_be(pipeline)
        database.execute(f"UPDATE big SET t = {BAD} WHERE id = 7")
        pipeline.sync()
        assert (_life(pipeline), _stored(pipeline)) == ("set aside", Life.SET_ASIDE)
        pipeline.sync()
        assert _life(pipeline) in {"set aside", "copied again"}
        database.execute("UPDATE big SET t = 'corrected' WHERE id = 7")
        pipeline.sync()
        assert (_life(pipeline), _stored(pipeline)) == ("copied again", Life.COPIED_AGAIN)
        _without_lives(pipeline)
        assert _life(pipeline) == "copied again"
        for _ in range(40):
            if BIG in pipeline.sync().resumed:
                break
        assert (_life(pipeline), _stored(pipeline)) == ("followed", None)
        assert_equal(database, pipeline, ["big", "small"])

        database.execute("ALTER PUBLICATION shop DROP TABLE big")
        assert _life(pipeline) == "left"
        pipeline.sync()
        assert _life(pipeline) == "left"
        seen: dict[str, Any] = look(pipeline)
        assert {each["table"]: each["life"] for each in seen["status"]["tables"]}[BIG] == "left"
        pipeline.remove(["public.big"], drop=True)
        assert _life(pipeline) is None
        assert pipeline.verify().equal


def _refused(*of: object) -> None:
    raise AssertionError(of)


def _refuses_what_cannot_be(pipeline: Pipeline) -> None:
    """A table that is followed is not tried again; the lake stays as it was."""
    before = read_listing(pipeline.lake).pointers
    entry = Aside("public", "big", pipeline.position(), "2026-01-01T00:00:00+00:00", "value", "", "", "")
    with pytest.raises(LakeError, match='"followed" is not one that is copied again in vain') as refused:
        write(pipeline.lake, pipeline.name, [entry], Event.TRIED)
    assert refused.value.where == f"table {BIG}"
    with pytest.raises(LakeError, match='"absent" is not one that is removed from the lake'):
        forget(pipeline.lake, [("public", "nowhere")])
    assert read_listing(pipeline.lake).pointers == before


def test_joins_and_does_not(database: Database, connect: str, tmp_path: Path) -> None:
    """It leaves while it waits, and while it is copied; a lake of an earlier version does not name it."""
    with begun(database, tmp_path, connect) as pipeline, database.connect() as writer:
        writer.autocommit = False
        database.execute("CREATE TABLE big (id int PRIMARY KEY, v int, t text)")
        writer.execute("INSERT INTO big VALUES (-1, 0, 'before it is published')")
        database.execute(f"{_ROWS}; ALTER PUBLICATION shop ADD TABLE big")
        pipeline.sync()
        _without_lives(pipeline)
        assert (_life(pipeline), _stored(pipeline)) == ("settling", None)
        pipeline.sync()
        assert _stored(pipeline) is Life.SETTLING
        database.execute("ALTER PUBLICATION shop DROP TABLE big")
        assert _life(pipeline) is None
        pipeline.sync()
        assert (_life(pipeline), _stored(pipeline)) == (None, None)
        writer.rollback()
        database.execute("ALTER PUBLICATION shop ADD TABLE big")
        pipeline.sync()
        assert _stored(pipeline) is Life.COPYING
        _without_lives(pipeline)
        assert _life(pipeline) == "copying"
        pipeline.sync()
        assert _stored(pipeline) is Life.COPYING
        pipeline.remove(["public.big"])
        assert _stored(pipeline) is None
        pipeline.sync()
        assert _stored(pipeline) is None
        database.execute("ALTER PUBLICATION shop ADD TABLE big")
        until_joined(pipeline)
        assert (_life(pipeline), _stored(pipeline)) == ("followed", None)
        assert_equal(database, pipeline, ["big", "small"])


def test_set_aside_before_its_first_copy_is_whole(database: Database, connect: str, tmp_path: Path) -> None:
    """It goes on being copied with the tables that join, and can be removed half copied."""
    with begun(database, tmp_path, connect) as pipeline:
        database.execute(f"CREATE TABLE big (id int PRIMARY KEY, v int, t text); {_ROWS}")
        database.execute("ALTER PUBLICATION shop ADD TABLE big")
        pipeline.sync()
        changed = Aside("public", "big", None, "2026-01-01T00:00:00+00:00", "changed", "what", "where", "")
        write(pipeline.lake, pipeline.name, [changed], Event.TROUBLED)
        pipeline.sync()
        assert _stored(pipeline) is Life.SET_ASIDE
        pipeline.remove(["public.big"])
        pipeline.sync()
        database.execute("ALTER PUBLICATION shop ADD TABLE big")
        until_joined(pipeline)
        assert (_life(pipeline), _stored(pipeline)) == ("followed", None)
        assert_equal(database, pipeline, ["big", "small"])
