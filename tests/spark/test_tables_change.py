"""The lake's table follows the source's, or says why it cannot."""

from __future__ import annotations

import pytest

from slotlake.decoder.errors import ApplyError
from slotlake.spark.read.point import ReadPoint
from tests.spark.lake_lab import Lab, insert, relation, truncate, update

V1 = relation("items", ["id"], id="int4", name="text", price="numeric(10,2)")
ADDED = relation("items", ["id"], id="int4", name="text", price="numeric(10,2)", sold="date")
DROPPED = relation("items", ["id"], id="int4", price="numeric(10,2)")
RENAMED = relation("items", ["id"], id="int4", title="text", price="numeric(10,2)")
RETYPED = relation("items", ["id"], id="int8", name="text", price="numeric(10,2)")
ROW = {"id": "1", "name": "a", "price": "1.00"}


def test_a_column_that_is_new(lab: Lab) -> None:
    lab.init({V1: [ROW]})
    lab.sync(
        insert(V1, id="2", name="b", price="2.00"),
        insert(ADDED, id="3", name="c", price="3.00", sold="infinity"),
        update(ADDED, id="1", name="a", price="1.00", sold="2024-02-29"),
    )
    assert lab.rows("items") == [
        ("1", "a", "1.00", "2024-02-29"),
        ("2", "b", "2.00", None),
        ("3", "c", "3.00", "infinity"),
    ]
    assert [column.name for column in ReadPoint.latest(lab.lake).schema("items").live] == [
        "id",
        "name",
        "price",
        "sold",
    ]
    assert lab.rows("items", at=0x1000) == [("1", "a", "1.00")]


def test_a_new_column_is_not_seen_before_its_rows(lab: Lab) -> None:
    lab.init({V1: [ROW]})
    batch = lab.batch(insert(ADDED, **ROW | {"id": "2"}, sold="2024-02-29"))
    lab.apply(batch)
    assert lab.rows("items") == [("1", "a", "1.00")]
    lab.apply(batch)
    lab.publish(batch)
    assert lab.rows("items")[1] == ("2", "a", "1.00", "2024-02-29")


def test_a_column_that_is_gone(lab: Lab) -> None:
    lab.init({V1: [ROW]})
    lab.sync(insert(DROPPED, id="2", price="2.00"), update(DROPPED, id="1", price="5.00"))
    assert lab.rows("items") == [("1", "5.00"), ("2", "2.00")]
    kept = lab.session.sql("SELECT id, name FROM lake.shop.items ORDER BY id").collect()
    assert [tuple(row) for row in kept] == [(1, "a"), (2, None)]
    with pytest.raises(ApplyError, match="column name was dropped and is back"):
        lab.sync(insert(V1, **ROW))


@pytest.mark.parametrize(
    ("table", "change"),
    [
        (RENAMED, "column name is gone and title is new, which may be a rename"),
        (RETYPED, "the type of column id changed from int4 to int8"),
    ],
)
def test_what_the_lake_cannot_follow_is_named(lab: Lab, table: object, change: str) -> None:
    lab.init({V1: [ROW]})
    values = {column.name: "2" for column in table.columns}  # type: ignore[attr-defined]
    batch = lab.batch(insert(table, **values))  # type: ignore[arg-type]
    with pytest.raises(ApplyError, match=change) as caught:
        lab.apply(batch)
    assert "slotlake backfill --table 'public.items'" in caught.value.way_out
    assert lab.rows("items") == [("1", "a", "1.00")]


def test_a_table_that_the_lake_lacks_is_passed_over(lab: Lab) -> None:
    """It will be copied at a later position, and that copy holds these changes."""
    lab.init({V1: [ROW]})
    batch = lab.batch(
        insert(relation("sales.other", ["id"], id="int4"), id="1"), insert(V1, id="2", name="b", price="2.00")
    )
    applied = lab.apply(batch)
    assert applied.skipped == ("sales.other",)
    assert len(applied.tables) == 1
    lab.publish(batch)
    assert len(lab.rows("items")) == 2


def test_updates_without_a_key_are_refused(lab: Lab) -> None:
    table = relation("log", [], v="int4")
    lab.init({table: []})
    with pytest.raises(ApplyError, match="without a key"):
        lab.apply(lab.batch(insert(table, v="1"), update(table, {"v": "1"}, v="2")))
    lab.sync(insert(table, v="1"), truncate(table), insert(table, v="3"))
    assert lab.rows("log") == [("3",)]
