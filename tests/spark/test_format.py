"""Tables of Iceberg's format 2, whose rows leave by position delete files; from one format to the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from slotlake.decoder.errors import LakeError
from slotlake.decoder.types import table as type_table
from slotlake.decoder.types.table import column_type
from slotlake.infra.maintain.table_format import _plan
from slotlake.spark.catalog.base import Loaded, load
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.copy.files import with_files
from slotlake.spark.copy.initial import InitialCopy
from slotlake.spark.copy.table_format import with_format
from slotlake.spark.lake import LakeSettings
from slotlake.spark.maintenance.expiry import Grace
from slotlake.spark.maintenance.integrity import find_damage
from slotlake.spark.maintenance.plan import Care
from slotlake.spark.maintenance.rewrite import maintain_table, remove_useless_deletes, tables_to_maintain
from slotlake.spark.maintenance.table_files import DataFile, TableFiles
from slotlake.spark.names import LakeName
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.read.query import query
from slotlake.spark.replay.scratch import prepare_scratch, scratch_of
from slotlake.spark.storage.location import Location
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables import position_deletes
from slotlake.spark.tables.metadata import Metadata
from slotlake.spark.tables.schema import TableSchema
from tests.spark.lake_lab import PIPELINE, Lab, Row, delete, insert, relation, truncate, update, write_rows
from tests.spark.test_read_others import _duckdb

WIDE = relation("wide", ["id"], id="int8", v="text")
FILES, ROWS = 4, 250
_NOW = Care(Grace(unused=0.0, orphan=0.0))


@pytest.fixture
def two(session: Any, lake: LakeSettings) -> Lab:
    """A lake of format 2 with a table of several data files."""
    lab = Lab.on(session, replace(lake, table_format=2))
    _init(lab)
    return lab


def _init(lab: Lab, modes: Sequence[str] = ("history", "append")) -> None:
    schema = TableSchema.of(WIDE)
    copy = InitialCopy.begin(lab.session, lab.lake, PIPELINE, [schema], {"public.wide": modes})
    for first in range(0, FILES * ROWS, ROWS):
        rows: list[Row] = [{"id": str(i), "v": f"{i:064}"} for i in range(first, first + ROWS)]
        write_rows(copy.target(schema), WIDE, rows)
    copy.register(schema)
    copy.publish(lab.point("copy"))


def _batch(lab: Lab, number: int) -> None:
    """Updates and deletes all over, a key that changes, and a row that comes."""
    lab.sync(
        *(update(WIDE, id=str(i), v=f"{number}-{i:060}") for i in range(number, FILES * ROWS, 41)),
        *(delete(WIDE, id=str(i)) for i in range(number + 7, FILES * ROWS, 97)),
        update(WIDE, {"id": str(number + 100)}, id=str(number + 5000), v="moved"),
        insert(WIDE, id=str(number + 9000), v=None),
    )


def _table(lab: Lab, name: str = "wide") -> Loaded:
    with open_catalog(lab.lake) as catalog:
        return load(catalog.pointers(), LakeName("shop", name))


def _all(lab: Lab) -> list[Loaded]:
    return [_table(lab, name) for name in ("wide", "wide__changes", "wide__history")]


def _change(lab: Lab, table_format: int) -> None:
    with open_catalog(lab.lake) as catalog:
        catalog.move([catalog.prepared(table, with_format(table, table_format)) for table in _all(lab)])


def _formats(lab: Lab) -> set[int]:
    return {table.metadata["format-version"] for table in _all(lab)}


def _suffixes(lab: Lab) -> set[str]:
    """Of what the tables' newest snapshots need."""
    heads = [head for table in _all(lab) if (head := catalog_metadata.head(table.metadata))]
    return {Path(path).suffix for path in TableFiles().referenced_files(heads)} - {".avro"}


def _kept(lab: Lab) -> dict[int, list[tuple[str | None, ...]]]:
    """The rows at all points."""
    return {
        row["position"]: lab.rows("wide", row["position"]) for row in ReadPoint.latest(lab.lake).commits()
    }


def _derived(lab: Lab) -> dict[str, list[Any]]:
    tables = ("wide__history", "wide__changes")
    return {
        table: sorted(query(lab.session, lab.lake, f"SELECT * FROM shop.{table}").rows, key=repr)
        for table in tables
    }


def _files(lab: Lab) -> list[DataFile]:
    return TableFiles().data_files(catalog_metadata.head(_table(lab).metadata))


def _others(lab: Lab) -> dict[str, list[tuple[int, str | None]]]:
    """What Spark, pyiceberg and DuckDB read of the newest snapshot."""
    table = SqlCatalog("lake", uri=lab.lake.uri, warehouse=lab.lake.warehouse).load_table("shop.wide")
    arrow = table.scan().to_arrow()
    with _duckdb() as connection:
        duckdb = connection.execute(f"SELECT id, v FROM iceberg_scan('{table.metadata_location}')").fetchall()
    return {
        "spark": sorted(tuple(row) for row in lab.session.sql("SELECT id, v FROM lake.shop.wide").collect()),
        "pyiceberg": sorted((row["id"], row["v"]) for row in arrow.to_pylist()),
        "duckdb": sorted(duckdb),
    }


def _ours(lab: Lab) -> list[tuple[int, str | None]]:
    return sorted((int(str(id_)), v) for id_, v in lab.rows("wide"))


def _agree(lab: Lab) -> None:
    ours = _ours(lab)
    assert {reader: rows == ours for reader, rows in _others(lab).items()} == dict.fromkeys(
        ("spark", "pyiceberg", "duckdb"), True
    )


def test_a_table_of_format_2_is_followed(two: Lab) -> None:
    expected = {i: f"{i:064}" for i in range(FILES * ROWS)}
    for number in range(3):
        _batch(two, number)
        expected |= {i: f"{number}-{i:060}" for i in range(number, FILES * ROWS, 41) if i in expected}
        _agree(two)
    assert _formats(two) == {2}
    assert _suffixes(two) == {".parquet"}
    assert find_damage(two.lake, PIPELINE, files=True) == []
    assert max(file.deleted for file in _files(two)) > 20
    ids = {id_ for id_, _ in _ours(two)}
    assert ids >= {5000, 5001, 5002, 9000, 9001, 9002}
    assert not ids & {7, 8, 9, 100, 101, 102}
    points = _kept(two)
    two.sync(truncate(WIDE), insert(WIDE, id="1", v="after"))
    assert _ours(two) == [(1, "after")]
    _agree(two)
    assert {at: two.rows("wide", at) for at in points} == points


def test_a_reader_that_overlooks_position_deletes_is_noticed(
    two: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    _batch(two, 0)
    rows = two.rows("wide")
    monkeypatch.setattr(position_deletes.PositionDeletes, "positions", lambda *_: np.empty(0, np.int64))
    with pytest.raises(AssertionError):
        assert two.rows("wide") == rows


@pytest.mark.parametrize("remembered", [0, 1 << 20])
def test_deletes_of_several_data_files_in_one_file(
    two: Lab, monkeypatch: pytest.MonkeyPatch, remembered: int
) -> None:
    """As other writers make them; what a file of ours has too is counted once."""
    monkeypatch.setattr(position_deletes, "_REMEMBERED_ROWS_MAX", remembered)
    two.session.sql("ALTER TABLE lake.shop.wide SET TBLPROPERTIES ('write.delete.granularity' = 'partition')")
    _batch(two, 0)
    entries = two.session.sql("SELECT content FROM lake.shop.wide.delete_files").collect()
    assert 0 < len(entries) < FILES
    _agree(two)
    two.session.sql("ALTER TABLE lake.shop.wide SET TBLPROPERTIES ('write.delete.granularity' = 'file')")
    _batch(two, 1)
    _agree(two)
    assert sum(file.rows - file.deleted for file in _files(two)) == len(_ours(two))


def test_maintenance_leaves_no_deletes_of_files_that_are_gone(two: Lab) -> None:
    for number in range(3):
        _batch(two, number)
    two.sync(*(delete(WIDE, id=str(i)) for i in range(ROWS)))
    points = _kept(two)
    for name in tables_to_maintain(two.lake, PIPELINE):
        maintain_table(lambda: two.session, two.lake, name, PIPELINE, _NOW)
    head = catalog_metadata.head(_table(two).metadata)
    assert not TableFiles().has_useless_deletes(head)
    assert catalog_metadata.live_rows(head) == len(_ours(two))
    assert {at: two.rows("wide", at) for at in points} == points
    _agree(two)
    _batch(two, 3)
    _agree(two)


def test_a_rewrite_that_leaves_deletes_behind_is_counted_rightly(two: Lab) -> None:
    _batch(two, 0)
    two.sync(*(delete(WIDE, id=str(i)) for i in range(ROWS)))
    rows = two.rows("wide")
    options = "options => map('delete-ratio-threshold', '0.5', 'min-file-size-bytes', '0')"
    two.session.sql(f"CALL lake.system.rewrite_data_files(table => 'shop.wide', {options})").collect()
    head = catalog_metadata.head(_table(two).metadata)
    assert TableFiles().has_useless_deletes(head)
    assert two.rows("wide") == rows  # which compares the count, too
    assert catalog_metadata.live_rows(head) != len(rows), "the totals alone are wrong"
    remove_useless_deletes(lambda: two.session, two.lake, _table(two), TableFiles())
    head = catalog_metadata.head(_table(two).metadata)
    assert catalog_metadata.live_rows(head) == len(rows)
    assert not TableFiles().has_useless_deletes(head)
    assert max(file.deleted for file in _files(two)) > 0, "files that were not rewritten keep their deletes"
    assert two.rows("wide") == rows
    _agree(two)


def test_from_2_to_3_and_back(two: Lab) -> None:
    _batch(two, 0)
    _batch(two, 1)
    before, derived = _kept(two), _derived(two)
    _change(two, 3)
    assert _formats(two) == {3}
    assert (_kept(two), _derived(two)) == (before, derived)
    _agree(two)
    _batch(two, 2)
    _agree(two)
    assert ".puffin" in _suffixes(two)
    before, derived = _kept(two), _derived(two)
    _change(two, 2)
    assert (_formats(two), _suffixes(two)) == ({2}, {".parquet"})
    assert (_kept(two), _derived(two)) == (before, derived)
    _agree(two)
    assert find_damage(two.lake, PIPELINE, files=True) == []
    _batch(two, 3)
    _agree(two)
    before |= {two.position: two.rows("wide")}
    assert _kept(two) == before
    for name in tables_to_maintain(two.lake, PIPELINE):
        maintain_table(lambda: two.session, two.lake, name, PIPELINE, _NOW)
    assert _kept(two) == before
    assert find_damage(two.lake, PIPELINE, files=True) == []


def test_analysts_queries_find_the_points_before_a_lower_format(two: Lab) -> None:
    _change(two, 3)
    _batch(two, 0)
    at, count = two.position, len(two.rows("wide"))
    _batch(two, 1)
    _change(two, 2)
    answer = query(two.session, two.lake, "SELECT count(*) FROM shop.wide", at)
    assert [tuple(row) for row in answer.rows] == [(str(count),)]


def test_a_table_that_came_from_format_2_numbers_all_of_its_rows(two: Lab) -> None:
    _batch(two, 0)
    _change(two, 3)
    data = two.lake.warehouse_path / "shop" / "wide" / "data"
    (first, *_) = sorted(data.glob("part*.parquet"))
    again = first.with_name("again.parquet")
    again.write_bytes(first.read_bytes())
    with open_catalog(two.lake) as catalog:
        table = _table(two)
        catalog.move([catalog.prepared(table, with_files(table.metadata, [Location(f"file://{again}")]))])
    rows = two.session.sql("SELECT _row_id FROM lake.shop.wide").collect()
    numbers = [row[0] for row in rows]
    assert None not in numbers
    assert len(set(numbers)) == len(numbers)
    assert max(numbers) < _table(two).metadata["next-row-id"]


def test_numbers_of_rows_are_not_given_twice(two: Lab) -> None:
    """Files that were rewritten in format 3 have the numbers in them."""
    _change(two, 3)
    _batch(two, 2)  # with it all rows get their numbers
    two.session.sql(
        "CALL lake.system.rewrite_data_files(table => 'shop.wide', options => map('rewrite-all', 'true'))"
    ).collect()
    _change(two, 2)
    _batch(two, 0)
    _change(two, 3)
    _batch(two, 1)
    numbers = [row[0] for row in two.session.sql("SELECT _row_id FROM lake.shop.wide").collect()]
    assert None not in numbers
    assert len(set(numbers)) == len(numbers) == len(_ours(two))


def test_a_scratch_copy_of_format_2(two: Lab) -> None:
    _batch(two, 0)
    prepare_scratch(ReadPoint.latest(two.lake), scratch_of(two.lake, "scratch"), PIPELINE)
    scratch = Lab(two.session, scratch_of(two.lake, "scratch"))
    assert scratch.rows("wide") == two.rows("wide")
    assert two.session.sql("SELECT count(*) FROM lake.scratch.wide").collect()[0][0] == len(two.rows("wide"))


def test_what_format_2_cannot_hold_is_refused(two: Lab) -> None:
    _change(two, 3)
    table = _table(two)
    for kind, what in (("timestamp_ns", "the type timestamp_ns"), ("variant", "the type variant")):
        with pytest.raises(LakeError, match=rf"cannot hold {what}.*\n?.*table shop.wide, column odd"):
            with_format(replace(table, metadata=_with_column(table.metadata, {"type": kind})), 2)
    with_default = _with_column(table.metadata, {"type": "int", "initial-default": 1})
    with pytest.raises(LakeError, match="a column's default value"):
        with_format(replace(table, metadata=with_default), 2)
    two.apply(two.batch(update(WIDE, id="1", v="staged")))
    with pytest.raises(LakeError, match="a batch is being applied"):
        with_format(_table(two), 2)


def test_what_others_wrote_is_not_taken_over(two: Lab) -> None:
    _change(two, 3)
    two.session.sql("INSERT INTO lake.shop.wide VALUES (77777, 'foreign')").collect()
    with pytest.raises(LakeError, match="written by something else"):
        with_format(_table(two), 2)


def _with_column(metadata: Metadata, field: dict[str, Any]) -> Metadata:
    (schema, *more) = metadata["schemas"]
    odd = {"id": 99, "name": "odd", "required": False, **field}
    return {**metadata, "schemas": [{**schema, "fields": [*schema["fields"], odd]}, *more]}


def test_on_a_rest_catalog_a_table_gets_the_higher_format(session: Any, rest: str, tmp_path: Path) -> None:
    namespace = "s" + "".join(c for c in tmp_path.name if c.isalnum())
    lake = LakeSettings("lake", rest, f"file://{tmp_path}/warehouse", namespace, table_format=2)
    lab = Lab.on(session, lake)
    _init(lab)
    _batch(lab, 0)
    rows = lab.rows("wide")
    names = [LakeName(namespace, name) for name in ("wide", "wide__changes", "wide__history")]
    with open_catalog(lake) as catalog:
        tables = [load(catalog.pointers(), name) for name in names]
        assert {table.metadata["format-version"] for table in tables} == {2}
        catalog.move([catalog.prepared(table, with_format(table, 3)) for table in tables])
        assert {load(catalog.pointers(), name).metadata["format-version"] for name in names} == {3}
    assert lab.rows("wide") == rows
    _batch(lab, 1)
    rows_of_spark = lab.session.sql(f"SELECT id, v FROM lake.{namespace}.wide").collect()
    assert sorted(tuple(row) for row in rows_of_spark) == _ours(lab)


def test_a_rest_catalog_cannot_lower_a_format() -> None:
    lake = LakeSettings("lake", "https://catalog", "file:///w", "shop")
    table = Loaded(LakeName("shop", "wide"), "", {"format-version": 3})
    point: Any = SimpleNamespace(lake=lake)
    with pytest.raises(LakeError, match="a REST catalog cannot give a table a lower format"):
        _plan(point, [table], {table.name: (3, 2)})


def test_no_type_of_a_column_needs_format_3() -> None:
    plain = {
        "boolean",
        "int",
        "bigint",
        "float",
        "double",
        "date",
        "timestamp",
        "timestamp_ntz",
        "string",
        "binary",
    }
    kinds = {column_type(oid, -1).spark for oid in type_table._TABLE}
    assert {kind for kind in kinds if not kind.startswith("decimal(")} <= plain


def test_a_file_that_is_no_position_delete_file_is_named(tmp_path: Path) -> None:
    damaged, other = tmp_path / "damaged.parquet", tmp_path / "other.parquet"
    damaged.write_bytes(b"PAR1 and no more")
    pq.write_table(pa.table({"pos": [1]}), other)
    for path, what in ((damaged, "cannot be read"), (other, "lacks the paths or the positions")):
        with pytest.raises(LakeError, match=what) as error:
            position_deletes.PositionDeletes().positions(f"file://{path}", "file:///a")
        assert path.name in str(error.value)
