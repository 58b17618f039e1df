"""New tables become visible all at once, and a copy that failed leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog.base import load
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.copy.initial import InitialCopy
from slotlake.spark.copy.owner import is_initialised
from slotlake.spark.maintenance.table_files import TableFiles
from slotlake.spark.publish.publication import lake_position
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.tables.metadata import head
from slotlake.spark.tables.schema import TableSchema
from tests.spark.lake_lab import PIPELINE, Lab, insert, relation, write_rows

ONE = relation("one", ["id"], id="int8", v="text")
EMPTY = relation("empty", ["id"], id="int8", v="numeric(10,2)")
ODD = relation('sales "x".Odd/Näme', ["the id"], **{"the id": "int4", "A.b/`c": "text", "a.B/`C": "text"})


def test_all_tables_appear_at_once(lab: Lab) -> None:
    assert not is_initialised(lab.lake, PIPELINE)
    with lab.init({ONE: [{"id": "1", "v": "a"}, {"id": "2", "v": None}], EMPTY: []}, publish=False) as copy:
        with pytest.raises(LakeError, match="the lake has no such table"):
            ReadPoint.latest(lab.lake)
        copy.publish(lab.point("copy"))
    assert is_initialised(lab.lake, PIPELINE)
    assert lake_position(lab.lake) == lab.position
    assert [schema.source_name for schema in ReadPoint.latest(lab.lake).tables()] == [
        "public.empty",
        "public.one",
    ]
    assert lab.rows("one") == [("1", "a"), ("2", None)]
    assert lab.rows("empty") == []
    assert not list(lab.lake.warehouse_path.rglob("*copying*"))


def test_a_copy_that_failed_leaves_nothing_and_starts_again(lab: Lab) -> None:
    with pytest.raises(RuntimeError), lab.init({ONE: [{"id": "1", "v": "a"}]}, publish=False):
        raise RuntimeError("the source went away")
    assert not list((lab.lake.warehouse_path / "shop").glob("*"))
    lab.init({ONE: [{"id": "2", "v": "b"}]})
    assert lab.rows("one") == [("2", "b")]


def test_what_a_crash_left_is_cleared(lab: Lab) -> None:
    lab.init({ONE: [{"id": "1", "v": "a"}], EMPTY: []}, publish=False)
    lab.init({ONE: [{"id": "2", "v": "b"}]})
    assert [schema.table for schema in ReadPoint.latest(lab.lake).tables()] == ["one"]
    assert lab.rows("one") == [("2", "b")]
    assert not (lab.lake.warehouse_path / "shop" / "empty").exists()


def test_tables_of_others_are_left_alone(lab: Lab) -> None:
    lab.init({EMPTY: []})
    lab.session.sql("CREATE TABLE lake.shop.one (id int) USING iceberg")
    schema = TableSchema.of(ONE)
    with pytest.raises(LakeError, match="has a table of that name already, not made by slotlake"):
        InitialCopy.begin(lab.session, lab.lake, PIPELINE, [schema])
    with pytest.raises(LakeError, match="belongs to pipeline test"):
        InitialCopy.begin(lab.session, lab.lake, "other", [TableSchema.of(relation("other", [], v="int4"))])
    with pytest.raises(LakeError, match="belongs to pipeline test"):
        is_initialised(lab.lake, "other")


def test_a_directory_of_others_is_left_alone(lab: Lab) -> None:
    kept = lab.lake.warehouse_path / "shop" / "one" / "mine.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("precious")
    with pytest.raises(LakeError, match="directory of a new table is in use"):
        InitialCopy.begin(lab.session, lab.lake, PIPELINE, [TableSchema.of(ONE)])
    assert kept.read_text() == "precious"


def test_odd_names(lab: Lab) -> None:
    row = {"the id": "1", "A.b/`c": "x", "a.B/`C": "y"}
    lab.init({ODD: [row]})
    lab.sync(insert(ODD, **{**row, "the id": "2"}))
    odd = '"sales ""x"""."Odd/Näme"'
    assert lab.rows(odd) == [("1", "x", "y"), ("2", "x", "y")]
    assert list(ReadPoint.latest(lab.lake).rows(odd, ["a.B/`C"])) == [("y",), ("y",)]
    with open_catalog(lab.lake) as catalog:
        metadata = load(catalog.pointers(), TableSchema.of(ODD).lake_name("shop")).metadata
    assert [file.rows for file in TableFiles().data_files(head(metadata))] == [1, 1]


def test_a_table_that_joins_later(lab: Lab) -> None:
    lab.init({ONE: [{"id": "1", "v": "a"}]})
    lab.sync(insert(ONE, id="2", v="b"))
    schema = TableSchema.of(EMPTY)
    with InitialCopy.begin(lab.session, lab.lake, PIPELINE, [schema]) as copy:
        write_rows(copy.target(schema), EMPTY, [{"id": "7", "v": "NaN"}])
        assert copy.register(schema) == 1
        copy.publish(lab.point("backfill", "backfill-1"))
    assert lab.rows("empty") == [("7", "NaN")]
    assert lab.rows("one") == [("1", "a"), ("2", "b")]
    with pytest.raises(KeyError):
        ReadPoint.at(lab.lake, lab.position - 1).schema("empty")
    lab.sync(insert(EMPTY, id="8", v="1.00"), insert(ONE, id="3", v="c"))
    assert len(lab.rows("empty")) == 2
    assert [point["kind"] for point in ReadPoint.latest(lab.lake).commits()] == [
        "copy",
        "batch",
        "backfill",
        "batch",
    ]


def test_an_unwritable_warehouse(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "warehouse").write_text("a file")
    with pytest.raises(LakeError, match="not a directory"):
        InitialCopy.begin(lab.session, lab.lake, PIPELINE, [TableSchema.of(ONE)])
