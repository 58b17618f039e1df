"""Small files of a table are packed when they have become many; sizes decide which, and no row changes."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.copy.initial import InitialCopy
from slotlake.spark.direct import packing, snapshot
from slotlake.spark.direct.packing import pack_directly
from slotlake.spark.lake import LakeSettings
from slotlake.spark.maintenance import small_files
from slotlake.spark.maintenance.expiry import Grace
from slotlake.spark.maintenance.integrity import find_damage
from slotlake.spark.maintenance.plan import Care
from slotlake.spark.maintenance.rewrite import maintain_table, rewrite_files
from slotlake.spark.maintenance.small_files import FILES_MIN, pack_table, plan_packing, tables_to_pack
from slotlake.spark.maintenance.table_files import DataFile, TableFiles
from slotlake.spark.names import LakeName
from slotlake.spark.publish.commits import Point
from slotlake.spark.tables.metadata import head, live_rows
from slotlake.spark.tables.schema import TableSchema
from tests.spark.lake_lab import PIPELINE, Lab, insert, relation, update, write_rows

_MIB = 1 << 20
_TARGET = 128 * _MIB
STOCK = relation("stock", ["id"], id="int4", v="text")
NAME = LakeName("shop", "stock")


def _file(name: str, size: int, rows: int = 1000, deleted: int = 0) -> DataFile:
    return DataFile(name, size, rows, deleted)


def _small(count: int, size: int = 20_000) -> list[DataFile]:
    return [_file(f"small-{i}", size) for i in range(count)]


def test_files_of_one_size_are_packed_and_larger_ones_stay() -> None:
    options = plan_packing([*_small(50), _file("large", 3 * _MIB), _file("largest", 500 * _MIB)], _TARGET)
    assert options is not None
    assert (options["max-files-to-rewrite"], options["min-file-size-bytes"]) == ("50", "20001")
    assert options["max-file-size-bytes"] == str(1000 * _MIB)
    assert float(options["delete-ratio-threshold"]) == 1.0


@pytest.mark.parametrize(("size", "packed"), [(1_000_000, 51), (1_000_001, 50)])
def test_a_file_is_packed_if_all_smaller_ones_are_as_large_together(size: int, packed: int) -> None:
    options = plan_packing([*_small(50), _file("earlier", size)], _TARGET)
    assert options is not None
    assert options["max-files-to-rewrite"] == str(packed)


def test_a_file_with_half_its_rows_deleted_counts_as_what_is_left_of_it() -> None:
    worn, less = _file("worn", 5 * _MIB, 1000, 900), _file("less", 5 * _MIB, 1000, 499)
    options = plan_packing([*_small(50), worn, less], _TARGET)
    assert options is not None
    assert options["max-files-to-rewrite"] == "51"
    assert float(options["delete-ratio-threshold"]) == 0.9
    assert options["min-file-size-bytes"] == "20001"
    # A larger file with as many deleted rows would be rewritten with it: then none is for that reason.
    options = plan_packing([*_small(50), worn, _file("huge", 900 * _MIB, 1000, 950)], _TARGET)
    assert options is not None
    assert float(options["delete-ratio-threshold"]) == 1.0


def test_what_is_not_worth_it() -> None:
    assert plan_packing([], _TARGET) is None
    assert plan_packing(_small(4), _TARGET) is None
    assert plan_packing([_file(str(i), 3 * _MIB) for i in range(100)], _TARGET) is None
    assert plan_packing([_file(str(i), 2**i) for i in range(30)], _TARGET) is None


def test_no_more_than_the_target_size_is_rewritten_at_once() -> None:
    options = plan_packing(_small(1000, _MIB), _TARGET)
    assert options is not None
    assert options["max-files-to-rewrite"] == "128"


@pytest.mark.parametrize(("smallest", "times"), [(10_000, 2), (1_000, 4)])
def test_files_stay_few_and_a_row_is_rewritten_a_logarithm_of_times(smallest: int, times: int) -> None:
    """Ten thousand batches of an insert-only table, as the plan sees them."""
    chance, files, written, rewritten, most = random.Random(1), list[DataFile](), 0, 0, 0
    since = 0
    for batch in range(10_000):
        size = chance.randint(smallest, 6 * smallest)
        files.append(_file(f"batch-{batch}", size))
        written, since = written + size, since + 1
        most = max(most, sum(file.size < _TARGET // 64 for file in files))
        if since < FILES_MIN:
            continue
        options = plan_packing(files, _TARGET)
        assert options is not None
        bound, since = int(options["min-file-size-bytes"]), 0
        packed = [file for file in files if file.size < bound]
        assert len(packed) == int(options["max-files-to-rewrite"])
        size = sum(file.size for file in packed)
        files = [*(file for file in files if file.size >= bound), _file(f"packed-{batch}", size)]
        rewritten += size
    assert most <= FILES_MIN + 10
    assert rewritten <= times * written, (most, rewritten / written)


_ways = {"by Spark": small_files._never, "without Spark": pack_directly}
_way = {"taken": "by Spark"}


@pytest.fixture(params=_ways)
def stock(lab: Lab, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Lab:
    """A lake with one table of eight small files, with its history and its change log."""
    monkeypatch.setattr(small_files, "FILES_MIN", 8)
    monkeypatch.setitem(_way, "taken", request.param)
    return _with_files(lab, 8)


def _with_files(lab: Lab, count: int) -> Lab:
    schema = TableSchema.of(STOCK)
    modes = {"public.stock": ["history", "append"]}
    copy = InitialCopy.begin(lab.session, lab.lake, PIPELINE, [schema], modes)
    for i in range(count):
        write_rows(copy.target(schema), STOCK, [{"id": str(i * 10 + j), "v": "0"} for j in range(10)])
    copy.register(schema)
    copy.publish(Point(PIPELINE, lab.position, "copy", "digest", "copy"))
    return lab


def _files(lab: Lab, name: LakeName = NAME) -> list[DataFile]:
    with open_catalog(lab.lake) as catalog:
        return TableFiles().data_files(head(load_one(catalog, name).metadata))


def _numbers(lab: Lab) -> list[tuple[Any, ...]]:
    """What Spark says of the rows' lineage."""
    columns = "id, v, _row_id, _last_updated_sequence_number"
    return sorted(map(tuple, lab.session.sql(f"SELECT {columns} FROM lake.shop.stock").collect()))


def _due(lab: Lab) -> list[str]:
    return [name.table for name in tables_to_pack(lab.lake, [NAME], _TARGET)]


def _pack(lab: Lab, name: LakeName = NAME) -> tuple[int, int] | None:
    asked = []

    def session() -> Any:
        asked.append(name)
        return lab.session

    packed = pack_table(session, lab.lake, name, PIPELINE, _TARGET, _ways[_way["taken"]])
    for_spark = _way["taken"] == "by Spark" or name.table.endswith("__changes")  # it has a list
    assert bool(asked) == (packed is not None and for_spark)
    return None if packed is None else (packed.rewritten_files, packed.written_files)


def test_a_table_of_format_2_is_packed_by_spark(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its manifests have no numbers of rows, and who packs without Spark looked for them."""
    monkeypatch.setattr(small_files, "FILES_MIN", 8)
    lab.lake = replace(lab.lake, table_format=2)
    stock = _with_files(lab, 8)
    before = stock.rows("stock")
    packed = pack_table(lambda: lab.session, lab.lake, NAME, PIPELINE, _TARGET, pack_directly)
    assert packed is not None
    assert (packed.rewritten_files, packed.written_files) == (8, 1)
    assert stock.rows("stock") == before


def test_packed_without_deleted_rows_and_every_kept_point_stays(stock: Lab) -> None:
    assert _due(stock) == ["stock"]
    stock.sync(*(update(STOCK, id=str(i * 10), v="1") for i in range(8)))
    before, first = stock.rows("stock"), stock.rows("stock", 0x1000)
    numbers = _numbers(stock)
    assert sum(file.deleted for file in _files(stock)) == 8
    assert _pack(stock) == (9, 1)
    assert _numbers(stock) == numbers
    assert [(file.rows, file.deleted) for file in _files(stock)] == [(80, 0)]
    assert (stock.rows("stock"), stock.rows("stock", 0x1000)) == (before, first)
    assert find_damage(stock.lake, PIPELINE, files=True) == []
    stock.sync(update(STOCK, id="3", v="2"), insert(STOCK, id="1000", v="2"))
    assert ("3", "2") in stock.rows("stock")
    assert (stock.rows("stock", stock.position - 0x100), _due(stock)) == (before, [])
    assert find_damage(stock.lake, PIPELINE, files=True) == []


def test_in_format_2_position_deletes_of_packed_files_go_too(
    session: Any, lake: LakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_files, "FILES_MIN", 8)
    lab = _with_files(Lab.on(session, replace(lake, table_format=2)), 8)
    for number in range(2):
        lab.sync(*(update(STOCK, id=str(i * 10 + number), v="1") for i in range(8)))
    before = lab.rows("stock")
    assert _pack(lab) == (10, 1)
    with open_catalog(lab.lake) as catalog:
        newest = head(load_one(catalog, NAME).metadata)
    assert not TableFiles().has_useless_deletes(newest)
    assert live_rows(newest) == 80
    assert (lab.rows("stock"), _due(lab)) == (before, [])
    assert find_damage(lab.lake, PIPELINE, files=True) == []


def test_derived_tables_are_packed_too_and_what_is_due_is_counted_from_the_last_time(stock: Lab) -> None:
    maintain_table(lambda: stock.session, stock.lake, NAME, PIPELINE, Care(Grace(300.0, 3600.0)))
    assert _due(stock) == []
    for i in range(8):
        stock.sync(update(STOCK, id=str(i), v=str(i)))
    assert set(_due(stock)) >= {"stock__history", "stock__changes"}
    for table in _due(stock):
        before = len(_files(stock, LakeName("shop", table)))
        packed = _pack(stock, LakeName("shop", table))
        assert packed is not None
        assert before >= 8 > len(_files(stock, LakeName("shop", table)))
    assert _due(stock) == []
    changes = "SELECT count(*) FROM lake.shop.stock__changes WHERE op = 'U'"
    assert stock.session.sql(changes).collect()[0][0] == 8
    held = "SELECT count(*) FROM lake.shop.stock__history WHERE is_open"
    assert stock.session.sql(held).collect()[0][0] == 80


def test_a_staged_batch_and_a_table_of_another_pipeline_are_left_alone(stock: Lab) -> None:
    batch = stock.batch(update(STOCK, id="1", v="staged"))
    stock.apply(batch)
    assert _pack(stock) is None
    stock.publish(batch)
    with pytest.raises(LakeError, match="belongs to pipeline"):
        pack_table(lambda: stock.session, stock.lake, NAME, "another", _TARGET)
    assert len(_files(stock)) == 9


def test_a_batch_that_comes_between_the_look_and_the_rewrite_is_not_undone(
    stock: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(*arguments: Any) -> None:
        stock.sync(update(STOCK, id="1", v="meanwhile"))
        rewrite_files(*arguments)

    def written_meanwhile(*arguments: Any) -> Any:
        stock.sync(update(STOCK, id="1", v="meanwhile"))
        return snapshot.with_packed_files(*arguments)

    monkeypatch.setattr(small_files, "rewrite_files", meanwhile)
    monkeypatch.setattr(packing, "with_packed_files", written_meanwhile)
    if _way["taken"] == "by Spark":
        _pack(stock)
    else:
        with pytest.raises(LakeError, match="changed by someone else"):
            _pack(stock)
    assert ("1", "meanwhile") in stock.rows("stock")
    assert len(stock.rows("stock")) == 80


@pytest.mark.parametrize("failpoint", ["compact.rewriting", "compact.rewritten"])
def test_ended_at_any_step_it_leaves_nothing_wrong(
    stock: Lab, monkeypatch: pytest.MonkeyPatch, failpoint: str
) -> None:
    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    def written_and_dead(*arguments: Any) -> None:
        snapshot.with_packed_files(*arguments)
        die()

    before = stock.rows("stock")
    if failpoint == "compact.rewriting":
        monkeypatch.setattr(small_files, "rewrite_files", die)
        monkeypatch.setattr(packing, "with_packed_files", written_and_dead)
    else:
        monkeypatch.setattr(small_files, "reach", die)
    with pytest.raises(KeyboardInterrupt):
        _pack(stock)
    monkeypatch.undo()
    assert stock.rows("stock") == before
    assert find_damage(stock.lake, PIPELINE, files=True) == []
    stock.sync(update(STOCK, id="1", v="after"))
    assert ("1", "after") in stock.rows("stock")
