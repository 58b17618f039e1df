"""A lake table that somebody takes away from the catalog: it alone is set aside, and that is known."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import LakeError
from slotlake.spark import lake_files
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.direct.choice import NEVER, SWITCH
from slotlake.spark.names import LakeName
from slotlake.spark.publish.place import table_directory
from tests.conftest import Database, fresh_database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = pytest.mark.timeout(600)
LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
only_long = pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
TABLES = ["away", "good", "past", "taken", "quiet", "late", "one", "two"]
GONE = "is not in the catalog any more"


@pytest.fixture(scope="module")
def shop(pg: Any, session: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, Any]]:
    """A pipeline for all tests here; `past` has both derived tables."""
    with fresh_database(pg) as database:
        for name in TABLES:
            database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
            database.execute(f"INSERT INTO {name} SELECT g, 'first' FROM generate_series(1, 50) g")
        database.execute("CREATE TABLE other (k int PRIMARY KEY, n int); INSERT INTO other VALUES (1, 1)")
        file = pipeline_file(tmp_path_factory.mktemp("absent"), database, [*TABLES, "other"])
        file.write_text(file.read_text().replace("'past': {}", "'past': {mode: [history, append]}"))
        with Pipeline.open(file) as pipeline:
            pipeline.init()
            yield database, pipeline


def _name(table: str) -> LakeName:
    return LakeName("shop", table)


def _rename(pipeline: Any, old: str, new: str) -> None:
    with open_catalog(pipeline.lake) as catalog:
        catalog.iceberg.rename_table(tuple(_name(old)), tuple(_name(new)))


def _drop(pipeline: Any, table: str) -> str:
    """Drop a table and leave its files; return its newest metadata file."""
    with open_catalog(pipeline.lake) as catalog:
        location = catalog.pointer(_name(table))
        assert location is not None
        catalog.drop([_name(table)])
    return location


def _register(pipeline: Any, table: str, location: str) -> None:
    with open_catalog(pipeline.lake) as catalog:
        catalog.add(_name(table), location)


def _change(database: Database, *tables: str) -> None:
    for table in tables:
        database.execute(f"UPDATE {table} SET v = v || '+' WHERE id < 20; DELETE FROM {table} WHERE id = 20")


def _says(pipeline: Any, table: str, *, aside: bool) -> None:
    """Every look says which table is gone, and how it comes back."""
    status = pipeline.status()
    (alarm,) = [each for each in status.alarms if f"shop.{table} " in each.what]
    assert alarm.kind == ("set aside" if aside else "table missing")
    assert GONE in alarm.what or "was replaced by" in alarm.what
    with pytest.raises(KeyError, match=rf"the lake has no table {table}.*shop\.{table}"):
        list(pipeline.rows(table))
    recovered = pipeline.recover()
    if aside:
        assert "bring it back" in alarm.way_out
        assert f"slotlake resume public.{table}" in alarm.way_out
        assert f"table public.{table} is set aside" in recovered.diagnosis
        assert recovered.plan == []
    else:
        assert recovered.plan[0].startswith(f"copy shop.{table} again: the catalog lacks it")


def test_renamed_and_back(shop: tuple[Database, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Back before a sync it lacks nothing; later it is copied. Spark's MERGE, or staged without it."""
    database, pipeline = shop
    _rename(pipeline, "away", "away_renamed")
    _says(pipeline, "away", aside=False)
    _rename(pipeline, "away_renamed", "away")
    assert pipeline.recover().plan == []
    assert pipeline.sync().set_aside == {}
    for switch in ("usually", NEVER) if LONG else ("usually",):
        monkeypatch.setenv(SWITCH, switch)
        before = pipeline.position()
        _rename(pipeline, "away", "away_renamed")
        _change(database, "away", "good")
        report = pipeline.sync()
        assert pipeline.position() > before
        assert list(report.set_aside) == ["public.away"]
        assert f"shop.away {GONE}" in report.set_aside["public.away"]
        assert_equal(database, pipeline, ["good"])
        _says(pipeline, "away", aside=True)
        verified = pipeline.verify()
        assert not verified.equal
        assert verified.tables["public.away"].totals == {"set aside, and not followed": 1}
        for _ in range(2):  # its files are in the way of a copy, and the others go on
            _change(database, "away", "good")
            assert list(pipeline.sync().set_aside) == ["public.away"]
        assert_equal(database, pipeline, ["good"])
        with pytest.raises(LakeError, match="the directory of a new table is in use") as refused:
            pipeline.backfill(["away"])
        assert "one that was renamed still needs them" in refused.value.way_out
        pipeline.maintain()
        _rename(pipeline, "away_renamed", "away")
        assert list(pipeline.status().tables)  # it is there, and set aside
        assert pipeline.resume("away").rows == len(database.execute("SELECT id FROM away"))
        assert pipeline.verify().equal
        assert_equal(database, pipeline, TABLES)


@only_long
def test_dropped_and_registered_at_an_older_file(shop: tuple[Database, Any]) -> None:
    """With both derived tables: what was published before and while it was away is missed by none."""
    database, pipeline = shop
    with open_catalog(pipeline.lake) as catalog:
        old = catalog.pointer(_name("past"))
        assert old is not None
    _change(database, "past")
    pipeline.sync()
    _drop(pipeline, "past")
    _change(database, "past", "good")
    assert list(pipeline.sync().set_aside) == ["public.past"]
    _register(pipeline, "past", old)
    _change(database, "past", "good")
    assert pipeline.sync().resumed == ["public.past"]
    assert_equal(database, pipeline, TABLES)
    assert pipeline.verify().equal
    seen = sorted(pipeline.query("SELECT id, v FROM past__history WHERE is_open").rows)
    assert seen == sorted((str(k), v) for k, v in database.execute("SELECT id, v FROM past"))

    # At rest: the newest snapshot is not in that file.  Nothing is published before it is mended.
    before = pipeline.position()
    _drop(pipeline, "past")
    _register(pipeline, "past", old)
    _change(database, "past", "good")
    with pytest.raises(LakeError, match="removed by hand") as refused:
        pipeline.sync()
    assert "slotlake recover" in refused.value.way_out
    assert pipeline.position() == before
    pipeline.recover(carry_out=True)
    pipeline.sync()
    assert_equal(database, pipeline, TABLES)
    assert pipeline.verify().equal


@only_long
def test_another_table_under_its_name(shop: tuple[Database, Any]) -> None:
    """Somebody else's, or another one of this lake; a copy does not overwrite it."""
    database, pipeline = shop
    location = _drop(pipeline, "taken")
    with open_catalog(pipeline.lake) as catalog:
        place = str(table_directory(pipeline.lake, _name("elsewhere")))
        catalog.iceberg.create_table(tuple(_name("taken")), pa.schema([("id", pa.int64())]), location=place)
    _rename(pipeline, "one", "three")
    _rename(pipeline, "two", "one")
    _rename(pipeline, "three", "two")
    _change(database, "taken", "one", "two", "good")
    for _ in range(2):
        report = pipeline.sync()
        assert sorted(report.set_aside) == ["public.one", "public.taken", "public.two"]
        assert "shop.one was replaced by the lake table of public.two" in report.set_aside["public.one"]
        assert "a table that is not this pipeline's" in report.set_aside["public.taken"]
    assert_equal(database, pipeline, ["good"])
    for table in ("taken", "one", "two"):
        _says(pipeline, table, aside=True)
        with pytest.raises(LakeError, match="the lake has a table of that name already"):
            pipeline.resume(table)
    _rename(pipeline, "one", "three")
    _rename(pipeline, "two", "one")
    _rename(pipeline, "three", "two")
    _drop(pipeline, "taken")
    _register(pipeline, "taken", location)
    for table in ("taken", "one", "two"):
        pipeline.resume(table)
    pipeline.sync()
    assert_equal(database, pipeline, TABLES)
    assert pipeline.verify().equal


def test_at_any_moment(shop: tuple[Database, Any]) -> None:
    """Between pull, apply and publish; also where what apply noted is another machine's."""
    database, pipeline = shop
    note = pipeline.file.state_dir / "staged.json"
    for moment in ("pulled", "applied", "applied elsewhere"):
        _change(database, "late", "good")
        batch = pipeline.pull().batch
        assert batch is not None
        if moment == "pulled":
            location = _drop(pipeline, "late")
        pipeline.apply(batch)
        if moment != "pulled":
            location = _drop(pipeline, "late")
        if moment == "applied elsewhere":
            note.unlink()
        pipeline.publish(batch)
        pipeline.confirm()
        _register(pipeline, "late", location)  # at once: it lacks the batch, and the record says so
        assert [each["table"] for each in pipeline.status().set_aside] == ["late"], moment
        assert pipeline.sync().resumed == ["public.late"]
        assert_equal(database, pipeline, TABLES)


def test_one_that_no_batch_touches(shop: tuple[Database, Any]) -> None:
    """It is away while a batch of others is published, and its own next changes come then."""
    database, pipeline = shop
    _change(database, "good")
    batch = pipeline.pull().batch
    assert batch is not None
    pipeline.apply(batch)
    location = _drop(pipeline, "quiet")
    pipeline.publish(batch)
    pipeline.confirm()
    _change(database, "quiet", "good")
    second = pipeline.pull().batch
    assert second is not None
    pipeline.apply(second)
    pipeline.publish(second)
    _register(pipeline, "quiet", location)
    assert pipeline.sync().resumed == ["public.quiet"]
    assert_equal(database, pipeline, TABLES)
    # Away only while the batch of others is published: it lacks nothing.
    _change(database, "good")
    batch = pipeline.pull().batch
    assert batch is not None
    pipeline.apply(batch)
    location = _drop(pipeline, "quiet")
    pipeline.publish(batch)
    _register(pipeline, "quiet", location)
    _change(database, "quiet")
    report = pipeline.sync()
    assert (report.set_aside, report.resumed) == ({}, [])
    assert_equal(database, pipeline, TABLES)


@only_long
def test_dropped_for_good_and_recovered(shop: tuple[Database, Any]) -> None:
    """`recover` copies it, or says why it cannot; so does a sync, and `on_trouble: stop` stops."""
    database, pipeline = shop
    _drop(pipeline, "late")
    _change(database, "late", "good")
    report = pipeline.recover(carry_out=True)
    assert {each.table: each.how for each in report.tables} == {"public.late": "left"}
    assert_equal(database, pipeline, ["good"])
    lake_files.remove_tree(table_directory(pipeline.lake, _name("late")))
    assert pipeline.sync().resumed == ["public.late"]
    _drop(pipeline, "late")
    lake_files.remove_tree(table_directory(pipeline.lake, _name("late")))
    report = pipeline.recover(carry_out=True)
    assert {each.table: each.how for each in report.tables} == {"public.late": "new"}
    _drop(pipeline, "late")
    lake_files.remove_tree(table_directory(pipeline.lake, _name("late")))
    report = pipeline.sync()
    assert (report.added_tables, report.set_aside) == (["public.late"], {})
    pipeline.sync()
    assert_equal(database, pipeline, TABLES)
    file = pipeline.file.path
    text = file.read_text()
    file.write_text(text.replace("'late': {}", "'late': {on_trouble: stop}"))
    with Pipeline.open(file) as stopping:
        location, before = _drop(stopping, "late"), stopping.position()
        _change(database, "late", "good")
        with pytest.raises(LakeError, match=rf"shop\.late {GONE}"):
            stopping.sync()
        assert stopping.position() == before
        _register(stopping, "late", location)
        stopping.sync()
        assert_equal(database, stopping, TABLES)
    file.write_text(text)


def test_the_table_commits(shop: tuple[Database, Any]) -> None:
    """Without it nothing says where the lake is: nothing is published, nor made anew over it."""
    database, pipeline = shop
    location = _drop(pipeline, "commits")
    _change(database, "good")
    for step in (pipeline.sync, pipeline.init, pipeline.verify, pipeline.recover):
        with pytest.raises(LakeError, match=r"(?s)shop\.commits.*register") as refused:
            step()
        assert "init" not in refused.value.way_out
    assert pipeline.status().state == "lake unreachable"
    _register(pipeline, "commits", location)
    pipeline.sync()
    assert_equal(database, pipeline, TABLES)
    assert pipeline.verify().equal
