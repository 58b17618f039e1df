"""Fields change in the swap that publishes the rows, on a REST catalog too; older points keep theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotlake.spark.apply.stage import apply_batch
from slotlake.spark.copy.initial import InitialCopy
from slotlake.spark.lake import LakeSettings
from slotlake.spark.merge.fields import field_types
from slotlake.spark.names import LakeName
from slotlake.spark.publish.publication import publish_batch
from slotlake.spark.publish.sidecar import BatchSidecar, TableCopy
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.read.query import query
from slotlake.spark.tables.change import can_widen, schema_after_copy
from slotlake.spark.tables.schema import LakeColumn, TableSchema
from slotlake.spark.tables.settle import settle
from tests.spark.lake_lab import PIPELINE, Change, Lab, insert, relation, update, write_rows
from tests.spark.rest_catalog import LocalRestCatalog

FIRST = relation("items", ["id"], id="int4", v="int4", w="text")
RENAMED = relation("items", ["id"], id="int4", w="int4", v="text")
RETYPED = relation("items", ["id"], id="int4", w="text", v="text")
NUMBERS = {"first": {"id": 1, "v": 2, "w": 3}, "renamed": {"id": 1, "w": 2, "v": 3}}


def numbered(table: Any, numbers: Mapping[str, int]) -> TableSchema:
    schema = TableSchema.of(table)
    return replace(schema, columns=tuple(replace(c, number=numbers[c.name]) for c in schema.columns))


def sync(lab: Lab, annex: BatchSidecar, *changes: Change) -> None:
    batch = lab.batch(*changes)
    apply_batch(lab.engine, lab.lake, batch, PIPELINE, sidecar=annex)
    lab.position = publish_batch(lab.lake, batch, PIPELINE, annex).position


def test_names_change_places_and_a_field_gives_way(session: Any, tmp_path: Path) -> None:
    with LocalRestCatalog(tmp_path / "rest") as server:
        lake = LakeSettings("lake", server.uri, f"file://{tmp_path}/w", "shop")
        _settles(Lab.on(session, lake), tmp_path)


def _settles(lab: Lab, folder: Path) -> None:
    with InitialCopy.begin(lab.session, lab.lake, PIPELINE, [numbered(FIRST, NUMBERS["first"])]) as copy:
        schema = numbered(FIRST, NUMBERS["first"])
        write_rows(copy.target(schema), FIRST, [{"id": "1", "v": "10", "w": "a"}])
        copy.register(schema)
        copy.publish(lab.point("copy"))
    told = BatchSidecar({0: NUMBERS["first"], 1: NUMBERS["renamed"]})
    sync(lab, told, update(FIRST, id="1", v="11", w="b"), insert(RENAMED, id="2", w="20", v="c"))
    assert _seen(lab) == (["id", "w", "v"], [("1", "11", "b"), ("2", "20", "c")])
    copied = TableCopy(numbered(RETYPED, NUMBERS["renamed"]), folder / "copy", 1, "rewritten")
    copied.directory.mkdir()
    write_rows(copied.target, RETYPED, [{"id": "3", "w": "now text", "v": "d"}])
    sync(lab, BatchSidecar(copies=(copied,)), insert(RENAMED, id="4", w="40", v="e"))
    assert _seen(lab) == (["id", "w", "v"], [("3", "now text", "d")])
    sync(lab, BatchSidecar(), insert(RETYPED, id="5", w="five", v="f"))
    name = LakeName("shop", "items")
    metadata = ReadPoint.latest(lab.lake).pinned[name].metadata
    assert field_types(metadata) == {"id": "int", "v": "string", "w": "string"}
    past = [lab.rows("items", at) for at in (0x1000, 0x1100, 0x1200)]
    assert past == [[("1", "10", "a")], [("1", "11", "b"), ("2", "20", "c")], [("3", "now text", "d")]]
    assert query(lab.session, lab.lake, "SELECT v, w FROM items", 0x1000).rows == [("10", "a")]
    assert query(lab.session, lab.lake, "SELECT w FROM items", 0x1200).rows == [("now text",)]
    latest = lab.session.sql("SELECT id, w, v FROM lake.shop.items ORDER BY id").collect()
    assert [tuple(row) for row in latest] == [(3, "now text", "d"), (5, "five", "f")]
    _and_back(lab)


def _and_back(lab: Lab) -> None:
    """To fields that the table had before: a REST server takes no schema that it has already."""
    for names in (("id", "q", "v"), ("id", "w", "v"), ("id", "q", "v")):
        shape = relation("items", ["id"], **dict(zip(names, ("int4", "text", "text"), strict=True)))
        told = BatchSidecar({0: {name: number for number, name in enumerate(names, 1)}})
        sync(lab, told, update(shape, **dict(zip(names, ("5", names[1], "f"), strict=True))))
        assert _seen(lab)[0] == list(names)
        read = lab.session.sql(f"SELECT {names[1]} FROM lake.shop.items WHERE id = 5").collect()
        assert read[0][0] == names[1]
    for at in range(1, 4):
        (row,) = [row for row in lab.rows("items", lab.position - 0x300 + at * 0x100) if row[0] == "5"]
        assert row[1] == "wq"[at % 2]


def _seen(lab: Lab) -> tuple[list[str], list[tuple[str | None, ...]]]:
    return [column.name for column in ReadPoint.latest(lab.lake).schema("items").live], lab.rows("items")


@pytest.mark.parametrize(
    ("old", "new", "possible"),
    [
        ("int", "bigint", True),
        ("bigint", "int", False),
        ("float", "double", True),
        ("decimal(6, 2)", "decimal(12,2)", True),
        ("decimal(6,2)", "decimal(12,3)", False),
        ("decimal(6,2)", "decimal(6,2)", False),
        ("string", "int", False),
    ],
)
def test_what_iceberg_widens(old: str, new: str, possible: bool) -> None:
    assert can_widen(old, new) is possible


def test_a_name_that_two_columns_want() -> None:
    """The present column has it; the one that is gone gives way, unless it leaves."""
    held = numbered(FIRST, NUMBERS["first"])
    gone = replace(held, columns=(*held.columns[:2], replace(held.columns[2], dropped=True)))
    back = LakeColumn("w", "w__as_int", 23, -1, "int4", number=4, renamed=True)
    staged = replace(gone, columns=(*held.columns[:2], back, gone.columns[2]))
    final = settle(staged, gone)
    assert [column.lake_name for column in final.schema.columns] == ["id", "v", "w", "w__dropped"]
    assert final.names["w__as_int"] == "w"
    assert final.names["w"] == "w__dropped"
    leaner = settle(replace(staged, drop=True), gone)
    assert [column.lake_name for column in leaner.schema.columns] == ["id", "v", "w"]
    assert "w" in leaner.gone


def test_what_a_copy_keeps() -> None:
    held = numbered(FIRST, NUMBERS["first"])
    wider = relation("items", ["id"], id="int8", v="text", x="text")
    shape = schema_after_copy(held, numbered(wider, {"id": 1, "v": 2, "x": 4}))
    assert [(c.name, c.lake_name, c.dropped, c.renamed) for c in shape.columns] == [
        ("id", "id", False, False),
        ("v", "v__as_string", False, True),
        ("x", "x", False, False),
        ("w", "w", True, False),
    ]
