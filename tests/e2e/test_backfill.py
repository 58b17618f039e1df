"""Chosen rows read again: equal afterwards to the source, whatever the lake held, and nothing else touched.

The lake is damaged as a person might (SQL in Spark on the live table); the oracle is the source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import LakeError, PipelineFileError
from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.infra.backfill import rows as backfill_rows
from slotlake.infra.backfill.replay import extend
from slotlake.infra.backfill.rows import _removed_rows as gone
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.replay.scratch import scratch_of
from tests.conftest import Database, fresh_database
from tests.e2e.oracle import pipeline_file

TABLES = {
    "items": "CREATE TABLE items (id int PRIMARY KEY, v text, n numeric(9,2), at timestamptz);"
    "INSERT INTO items SELECT g, 'v' || g, g / 8.0, '2024-01-01'::timestamptz + g * interval '1 day'"
    " FROM generate_series(1, 200) g",
    "pairs": 'CREATE TABLE pairs (a text COLLATE "C", b numeric, v text, PRIMARY KEY (b, a));'
    "INSERT INTO pairs SELECT chr(64 + g), CASE g WHEN 7 THEN 'NaN'::numeric ELSE g END, 'it''s 100% ' || g"
    " FROM generate_series(1, 20) g",
    "bag": "CREATE TABLE bag (v int); ALTER TABLE bag REPLICA IDENTITY FULL;"
    "INSERT INTO bag VALUES (1), (1), (2)",
    "parts": "CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
    "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (50);"
    "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (50) TO (100);"
    "INSERT INTO parts SELECT g, 'p' FROM generate_series(0, 99) g",
    "few": "CREATE TABLE few (id int PRIMARY KEY, kind int, v text);"
    "ALTER TABLE few REPLICA IDENTITY FULL;"
    "INSERT INTO few SELECT g, g % 3, 's' FROM generate_series(1, 30) g",
}


@pytest.fixture(scope="module")
def lake(
    pg: Any, session: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Database, Pipeline]]:
    with fresh_database(pg) as database:
        database.execute(";".join(TABLES.values()))
        listed = ", ".join(TABLES)
        database.execute(f"CREATE PUBLICATION shop FOR TABLE {listed} WITH (publish_via_partition_root)")
        path = pipeline_file(tmp_path_factory.mktemp("backfill"), database, list(TABLES))
        text = path.read_text().replace("'items': {}", "'items': {mode: [history, append]}")
        path.write_text(text.replace("'few': {}", "'few': {filter: kind < 2, columns: [id, kind, v]}"))
        with Pipeline.open(path) as pipeline:
            pipeline.init()
            yield database, pipeline


def _damage(pipeline: Pipeline, *statements: str) -> None:
    for statement in statements:
        pipeline.session.sql(statement).collect()


def _replayed(told: Any, position: int) -> Counter[Any]:
    """The change log of `items`, applied: what a backfill takes away need not be there."""
    rows: dict[str, Any] = {}
    width = len(told.names)
    for op, _, _, at, _, *values in sorted(told.changes.elements(), key=lambda c: (int(c[1]), int(c[2]))):
        new, old = values[:width], values[width:]
        if int(at) > position:
            continue
        if op in "CT":
            rows = {}
        if op == "D":
            rows.pop(old[0], None)
        if op in "RIU":
            rows[new[0]] = tuple(new)
    return Counter(rows.values())


def _counts(report: Any) -> tuple[int, int, int]:
    return report.inserted, report.changed, report.deleted


def test_ranges_of_time_become_one_replay(lake: tuple[Database, Pipeline]) -> None:
    """In order, twice, backwards, and with a gap: the scratch tables are what the lake was at the end."""
    database, pipeline = lake
    moments, states = [_now(database)], [sorted(pipeline.rows("few"))]
    for number in range(3):
        database.execute(f"UPDATE few SET v = 'r{number}' WHERE id = 3")
        pipeline.sync()
        moments.append(_now(database))
        states.append(sorted(pipeline.rows("few")))
    assert len({tuple(state) for state in states}) == 4

    def replay(first: int, last: int) -> tuple[bool, int]:
        done = extend(pipeline, "scratch", moments[first], moments[last])
        assert done.covered
        held = sorted(ReadPoint.latest(scratch_of(pipeline.lake, "scratch")).rows("few"))
        assert held == states[max(last, reached[0])]
        reached[0] = max(last, reached[0])
        return done.went_on, done.batches

    reached = [0]
    assert replay(1, 2) == (False, 1)
    assert replay(2, 3) == (True, 1)
    assert replay(1, 2) == (True, 0)
    assert replay(0, 1) == (False, 3)
    tomorrow = moments[3] + timedelta(days=1)
    assert extend(pipeline, "scratch", moments[3], tomorrow).lsn == format_lsn(pipeline.position())
    assert not extend(
        pipeline, "scratch", datetime(2000, 1, 1, tzinfo=UTC), moments[0] - timedelta(9)
    ).covered


def _now(database: Database) -> datetime:
    ((now,),) = database.execute("SELECT clock_timestamp()")
    assert isinstance(now, datetime)
    return now


def test_rows_that_satisfy_it_on_either_side_are_made_equal(lake: tuple[Database, Pipeline]) -> None:
    database, pipeline = lake
    _damage(
        pipeline,
        "UPDATE lake.shop.items SET v = 'wrong' WHERE id = 5",  # satisfies it on both sides
        "UPDATE lake.shop.items SET n = 500 WHERE id = 150",  # in the lake alone: its source row is n = 18.75
        "UPDATE lake.shop.items SET n = 700 WHERE id = 3",  # in the source alone
        "DELETE FROM lake.shop.items WHERE id = 6",
        "INSERT INTO lake.shop.items (id, v, n) VALUES (999, 'nobody', 400), (998, 'nobody', 20)",
        "INSERT INTO lake.shop.items SELECT * FROM lake.shop.items WHERE id = 7",
        "INSERT INTO lake.shop.items (id, v, n) VALUES (999, 'nobody, and not chosen', 30)",
        "UPDATE lake.shop.items SET v = 'not asked for' WHERE id = 100",
    )
    where = "n <= 1 OR n >= 300"
    before = sorted(pipeline.rows("items"))
    would = pipeline.backfill("items", where=where, dry_run=True)
    assert sorted(pipeline.rows("items")) == before
    assert _counts(would) == (1, 4, 1)
    assert would.taken == would.tables[0].taken == 7  # 7 and 999 stand there twice
    named = Counter((entry["change"], entry["key"]["id"]) for entry in would.tables[0].keys)
    changed = {("update", "5"): 1, ("update", "150"): 1, ("update", "3"): 1, ("update", "7"): 1}
    assert named == {("insert", "6"): 1, ("delete", "999"): 1, **changed}
    # The stream goes on: what was committed before the call is under the image that is read again.
    database.execute("UPDATE items SET v = 'newer' WHERE id = 5; DELETE FROM items WHERE id = 4")
    report = pipeline.backfill("public.items", where=where)
    assert (_counts(report), report.taken) == ((1, 3, 1), 6)
    left = {("100", "not asked for"), ("998", "nobody")}
    lake_rows, source = set(pipeline.rows("items", ["id", "v"])), _source(database, "id, v", "items")
    assert lake_rows - source == left
    again = pipeline.backfill("items", where=where)
    assert (again.rows, again.taken) == (report.rows, 0)
    assert _counts(pipeline.backfill("items", key_range="90..1000")) == (0, 1, 1)
    assert set(pipeline.rows("items")) == _source(database, "*", "items")
    database.execute("UPDATE items SET v = 'after' WHERE id IN (5, 6)")
    pipeline.sync()
    assert pipeline.verify().equal


def test_nothing_is_published_if_spark_takes_another_number_of_rows(
    lake: tuple[Database, Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, pipeline = lake
    _damage(pipeline, "UPDATE lake.shop.items SET v = 'wrong' WHERE id = 40")
    before = sorted(pipeline.rows("items"))
    with monkeypatch.context() as patch:
        patch.setattr(backfill_rows, "_removed_rows", lambda found: replace(gone(found), rows=2))
        with pytest.raises(LakeError, match="0 rows fewer would be in the lake, and 1 fewer should be"):
            pipeline.backfill("items", where="id = 40")
    assert sorted(pipeline.rows("items")) == before
    assert pipeline.backfill("items", where="id = 40").taken == 1
    assert pipeline.verify().equal


def test_the_tables_beside_take_in_what_changed_and_no_more(lake: tuple[Database, Pipeline]) -> None:
    from tests.e2e.test_modes import _told

    database, pipeline = lake
    told = _told(pipeline, pipeline.lake, "items")
    _damage(pipeline, "UPDATE lake.shop.items SET v = 'wrong' WHERE id = 20")
    open_versions = "lake.shop.items__history SET v = 'wrong' WHERE id = 20 AND is_open"
    _damage(pipeline, f"UPDATE {open_versions}")
    report = pipeline.backfill("items", where="id BETWEEN 10 AND 30")
    after = _told(pipeline, pipeline.lake, "items")
    expected = Counter(_source(database, "*", "items"))
    assert after.at(parse_lsn(report.lsn)) == expected
    assert _replayed(after, parse_lsn(report.lsn)) == expected
    assert sum(after.versions.values()) == sum(told.versions.values()) + 1
    assert pipeline.verify().equal


def test_other_keys_filters_and_partitions(lake: tuple[Database, Pipeline]) -> None:
    database, pipeline = lake
    _damage(
        pipeline,
        "UPDATE lake.shop.pairs SET v = 'wrong' WHERE a IN ('A', 'G')",
        "DELETE FROM lake.shop.pairs WHERE a = 'B'",
        "UPDATE lake.shop.parts SET v = 'wrong' WHERE id IN (49, 50)",
        "INSERT INTO lake.shop.few VALUES (2, 2, 'the filter lets it not through'), (77, 0, 'nobody')",
    )
    where = "v LIKE '%100% %' OR b = 'NaN' OR v = 'wrong'"
    assert _counts(pipeline.backfill("pairs", where=where)) == (1, 2, 0)
    points = len(_points(pipeline))
    both = pipeline.backfill(["parts", "few"], where="id > 0")
    assert [_counts(table) for table in both.tables] == [(0, 2, 0), (0, 0, 2)]
    (point,) = [row for row in _points(pipeline)[points:] if row["kind"] == "backfill"]
    assert (point["changes"], point["changed"]) == (4, {"shop.parts": 2, "shop.few": 2})
    assert pipeline.verify().equal
    unchanged = pipeline.backfill(["parts", "few"], where="id > 0")
    assert _counts(unchanged) == (0, 0, 0)
    assert set(pipeline.rows("few")) == _source(database, "*", "few WHERE kind < 2")


def test_whole_tables_and_their_dry_run(lake: tuple[Database, Pipeline]) -> None:
    _, pipeline = lake
    _damage(pipeline, "DELETE FROM lake.shop.bag WHERE v = 2", "DELETE FROM lake.shop.parts WHERE id = 1")
    would = pipeline.backfill(["bag", "parts"], dry_run=True)
    assert [_counts(table) for table in would.tables] == [(1, 0, 0), (1, 0, 0)]
    assert [table.keys for table in would.tables] == [[], [{"change": "insert", "key": {"id": "1"}}]]
    assert not pipeline.verify().equal
    points = len(_points(pipeline))
    report = pipeline.backfill(["bag", "parts"])
    assert (report.table, report.rows) == ("public.bag, public.parts", 103)
    (point,) = [row for row in _points(pipeline)[points:] if row["kind"] == "backfill"]
    assert sorted(point["changed"]) == ["shop.bag", "shop.parts"]
    assert sum(point["changed"].values()) == 103
    assert pipeline.verify().equal


@pytest.mark.parametrize(
    ("tables", "where", "what"),
    [
        ("items", "no_such = 1", 'column "no_such" does not exist'),
        ("items", "id = = 1", "syntax error"),
        ("items", "id", "must be type boolean"),
        ("items", "id = 1; DELETE FROM items", "not a single expression"),
        ("items", "true) OR (true", "not a single expression"),
        ("items", "true) AS x, (SELECT true", "not a single expression"),
        ("items", "id = 1 -- ", "not a single expression"),
        ("items", "id = 1 /* ", "not a single expression"),
        ("items", "v = $$;$$", "not a single expression"),
        ("items", "v = 'open", "not a single expression"),
        ("items", "id IN (SELECT 1)", "subquery"),
        ("items", "SELECT true", "subquery"),
        ("items", "random() < 0.5", "volatile"),
        ("items", "at < clock_timestamp()", "volatile"),
        ("items", "count(*) > 1", "aggregate"),
        ("items", "ctid IS NULL", 'column "ctid" does not exist'),
        ("items", " ", "empty"),
        ("bag", "v = 1", "no key"),
        (["parts", "pairs"], "id = 1", 'column "id" does not exist'),
        ("nothing", "true", "no table nothing"),
    ],
)
def test_a_wrong_condition_is_refused_before_anything_is_done(
    lake: tuple[Database, Pipeline], tables: str | list[str], where: str, what: str
) -> None:
    database, pipeline = lake
    position = pipeline.position()
    with pytest.raises(PipelineFileError, match=what) as caught:
        pipeline.backfill(tables, where=where)
    assert caught.value.way_out
    assert pipeline.position() == position
    assert database.execute("SELECT count(*) FROM pg_replication_slots WHERE temporary") == [(0,)]


def _points(pipeline: Pipeline) -> list[dict[str, Any]]:
    return ReadPoint.latest(pipeline.lake).commits()


def _source(database: Database, columns: str, table: str) -> set[tuple[Any, ...]]:
    with database.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows = connection.execute(f"SELECT {columns} FROM {table}").description
        names = [f'"{column.name}"::text' for column in rows or ()]
        return set(connection.execute(f"SELECT {', '.join(names)} FROM {table}").fetchall())
