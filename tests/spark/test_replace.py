"""A backfill replaces a table's rows at one position; before and after, readers see a whole table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slotlake.decoder.changelog.batches import BatchRelation
from slotlake.decoder.errors import ApplyError, LakeError
from slotlake.spark.copy.replacement import BACKFILL, Replacement, remove_ranges
from slotlake.spark.publish.commits import Point
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.tables.schema import TableSchema
from tests.spark.lake_lab import PIPELINE, Lab, insert, relation, update, write_rows

ITEMS = relation("items", ["id"], id="int4", v="numeric(10,2)")
WIDER = relation("items", ["id"], id="int4", v="numeric(10,2)", since="date")
KEYLESS = relation("items", [], id="int4", v="numeric(10,2)")


def point(lab: Lab) -> Point:
    return Point(PIPELINE, lab.position, "backfill-again", "", "backfill", changes=1)


def replaced(
    lab: Lab, table: BatchRelation, rows: list[dict[str, str | None]], at: Point | None = None
) -> None:
    """Replace a table's rows by these, at the lake's position."""
    place, shape = Replacement(lab.session, lab.lake, at or point(lab)), TableSchema.of(table)
    place.begin([shape])
    if rows:
        write_rows(place.target(shape), table, rows)
    assert place.register(shape) == len(rows)
    place.publish([shape.source_name])


def test_the_rows_are_replaced(lab: Lab) -> None:
    lab.init({ITEMS: [{"id": "1", "v": "1.00"}, {"id": "2", "v": "2.00"}]})
    lab.sync(insert(ITEMS, id="3", v="3.00"))
    for value in ("NaN", "7.00"):
        replaced(lab, WIDER, [{"id": "2", "v": value, "since": "2024-02-29"}])
        assert lab.rows("items") == [("2", value, "2024-02-29")]
    assert len(lab.rows("items", at=0x10FF)) == 2
    lab.sync(update(WIDER, id="2", v="8.00", since=None))
    assert lab.rows("items") == [("2", "8.00", None)]
    points = ReadPoint.latest(lab.lake).commits()
    assert [p["kind"] for p in points] == ["copy", "batch", "backfill", "backfill", "batch"]
    assert [list(p["changed"].values()) for p in points[1:]] == [[1], [1], [1], [1]]


def test_what_was_read_stays_only_for_who_resumes(lab: Lab) -> None:
    lab.init({ITEMS: [{"id": "1", "v": "1.00"}]})
    shape = TableSchema.of(ITEMS)
    place = Replacement(lab.session, lab.lake, point(lab))
    place.begin([shape])
    write_rows(place.target(shape), ITEMS, [{"id": "2", "v": "2.00"}])
    place.begin([shape], resumes=True)
    assert place.register(shape) == 1
    place.begin([shape])
    assert place.register(shape) == 0
    remove_ranges(lab.lake, [shape.lake_name(lab.lake.namespace)], BACKFILL)
    assert not list(lab.lake.warehouse_path.glob("_slotlake/backfill/*/*"))
    assert lab.rows("items") == [("1", "1.00")]


def test_a_table_that_is_empty_now(lab: Lab) -> None:
    lab.init({ITEMS: [{"id": "1", "v": "1.00"}]})
    replaced(lab, ITEMS, [])
    assert lab.rows("items") == []


def test_a_table_that_lost_its_key(lab: Lab) -> None:
    lab.init({ITEMS: [{"id": "1", "v": "1.00"}]})
    replaced(lab, KEYLESS, [{"id": "1", "v": "1.00"}] * 2)
    assert lab.rows("items") == [("1", "1.00")] * 2
    assert ReadPoint.latest(lab.lake).schema("items").key == ()


def test_not_at_another_position_and_not_of_others(lab: Lab) -> None:
    lab.init({ITEMS: [{"id": "1", "v": "1.00"}]})
    with pytest.raises(ApplyError, match="the lake stands at 0/1000"):
        replaced(lab, ITEMS, [], Point(PIPELINE, 0x2000, "backfill-again", "", "backfill"))
    with pytest.raises(LakeError, match="belongs to pipeline test"):
        replaced(lab, ITEMS, [], replace(point(lab), pipeline="other"))
    with pytest.raises(LakeError, match="the lake has no such table"):
        replaced(lab, relation("none", [], id="int4"), [])
    assert lab.rows("items") == [("1", "1.00")]
