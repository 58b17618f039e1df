"""What is remembered of all pointers, and of the snapshots of all tables, is what a new look says."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import IcebergTables
from sqlalchemy import delete, insert, update
from sqlalchemy.engine import create_engine

from slotlake.spark.catalog.listing import (
    _CHANGES_MAX,
    Listing,
    listing_of_pointers,
    listing_of_rows,
    listing_of_texts,
)
from slotlake.spark.catalog.open import open_catalog, read_listing
from slotlake.spark.catalog.sql.pointer_texts import PointerTexts
from slotlake.spark.lake import LakeSettings
from slotlake.spark.maintenance import integrity
from slotlake.spark.names import COMMITS, LakeName
from slotlake.spark.publish.pins import Pins
from slotlake.spark.read import newest
from slotlake.spark.read.newest import PinnedTable
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.schema import TableSchema
from tests.spark.lake_lab import relation

pytestmark = pytest.mark.fast
A, B, C = (LakeName("shop", name) for name in "abc")


@pytest.fixture
def lake(tmp_path: Path) -> LakeSettings:
    return LakeSettings("lake", f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/lake", "shop")


def _seen(lake: LakeSettings, pointers: Mapping[LakeName, str]) -> Listing:
    return listing_of_rows(lake, [(*name, location) for name, location in pointers.items()])


def test_a_listing_says_what_has_changed_since_another(lake: LakeSettings) -> None:
    first = _seen(lake, {A: "1", B: "1", LakeName("shop__s", "a"): "1"})
    assert _seen(lake, {B: "1", LakeName("shop__s", "a"): "1", A: "1"}) is first  # in another order
    others = {LakeName("other", "a"): "1", LakeName("shop__copying", "a"): "1"}
    assert _seen(lake, {**first.pointers, **others}) is first
    assert first.changed_since(first) == frozenset()
    second = _seen(lake, {**first.pointers, A: "2", **others})
    third = _seen(lake, {A: "2", C: "1", LakeName("shop__s", "a"): "1"})
    assert dict(third.pointers) == {A: "2", C: "1", LakeName("shop__s", "a"): "1"}
    assert second.changed_since(first) == {A}
    assert third.changed_since(second) == {B, C}
    assert third.changed_since(first) == {A, B, C}
    assert first.changed_since(third) is None
    assert dict(first.pointers)[A] == "1"


def test_what_is_long_ago_or_of_another_lake_is_not_known(lake: LakeSettings, tmp_path: Path) -> None:
    other = LakeSettings("lake", lake.uri, lake.warehouse, "elsewhere")
    first = _seen(lake, {A: "0"})
    assert first.changed_since(_seen(other, {})) is None
    for number in range(1, _CHANGES_MAX + 1):
        last = _seen(lake, {A: str(number)})
    assert last.changed_since(first) == {A}
    assert _seen(lake, {A: "x"}).changed_since(first) is None


def test_of_a_catalog_that_gives_one_by_one_commits_is_read_first(lake: LakeSettings) -> None:
    asked: list[Any] = []

    class Pointers(dict[LakeName, str]):
        def get(self, name: LakeName, default: Any = None) -> Any:
            asked.append(name)
            return super().get(name, default)

        def items(self) -> Any:
            asked.append("all")
            return super().items()

    commits = LakeName("shop", COMMITS)
    assert listing_of_pointers(lake, Pointers({A: "1"})).pointers == {}
    assert listing_of_pointers(lake, Pointers({A: "1", commits: "2"})).pointers == {A: "1", commits: "2"}
    assert asked == [commits, commits, "all"]


def test_both_readers_of_a_sql_catalog_see_the_same_listing(lake: LakeSettings) -> None:
    with open_catalog(lake) as catalog:
        catalog.make_namespace("shop")
        engine = create_engine(lake.sqlalchemy_uri)
        with engine.begin() as connection:
            rows = [
                {
                    "catalog_name": name,
                    "table_namespace": "shop",
                    "table_name": f"t{i}",
                    "metadata_location": "x",
                }
                for name in ("lake", "another")
                for i in range(3)
            ]
            connection.execute(insert(IcebergTables), rows)
        first = catalog.listing()
        assert read_listing(lake) is first
        assert (
            dict(first.pointers) == catalog.pointers() == {LakeName("shop", f"t{i}"): "x" for i in range(3)}
        )
        assert catalog.own_names(None) == first.pointers.keys()
        with engine.begin() as connection:
            connection.execute(
                update(IcebergTables).where(IcebergTables.table_name == "t1").values(metadata_location="y")
            )
            connection.execute(delete(IcebergTables).where(IcebergTables.table_name == "t2"))
        engine.dispose()
        second = read_listing(lake)
        assert catalog.listing() is second
        assert second.changed_since(first) == {LakeName("shop", "t1"), LakeName("shop", "t2")}


def _texts(pointers: Mapping[LakeName, str]) -> PointerTexts:
    columns = zip(*((*name, location) for name, location in pointers.items()), strict=True)
    return PointerTexts(len(pointers), *("\x1e".join(each) for each in columns))


@pytest.mark.parametrize("seed", range(5))
def test_texts_rows_and_a_new_look_give_the_same_listing(lake: LakeSettings, seed: int) -> None:
    rng = random.Random(seed)
    spaces = ["shop", "shop__s", "other", "shop__copying"]
    pointers = {LakeName(space, f"t{i}"): "0" for space in spaces for i in range(4)}
    listings: list[Listing] = []
    looks: list[dict[LakeName, str]] = []
    for step in range(80):
        names = rng.sample(list(pointers), len(pointers)) if rng.random() < 0.2 else list(pointers)
        pointers = {name: pointers[name] for name in names}  # perhaps in another order
        for name in rng.sample(names, rng.choice([0, 0, 1, 3])):
            pointers[name] = f"{step}"
        if rng.random() < 0.1:
            pointers.pop(names[0])
        if rng.random() < 0.1:
            pointers[LakeName(rng.choice(spaces), f"t{rng.randrange(9)}")] = f"new {step}"
        own = {name: location for name, location in pointers.items() if name.namespace in spaces[:2]}
        listing = _seen(lake, pointers) if rng.random() < 0.2 else listing_of_texts(lake, _texts(pointers))
        assert listing is not None
        assert dict(listing.pointers) == own
        for earlier, look in zip(listings[-20:], looks[-20:], strict=True):
            differ = {name for name in own.keys() | look.keys() if own.get(name) != look.get(name)}
            since = listing.changed_since(earlier)
            assert since is not None
            assert differ <= set(since)
            assert (listing is earlier) == (not since)
        listings.append(listing)
        looks.append(own)


def test_a_location_with_the_separator_is_read_in_rows(lake: LakeSettings) -> None:
    assert listing_of_texts(lake, _texts({A: "1", B: "1"})) is not None
    assert listing_of_texts(lake, _texts({A: "1", B: "2\x1e"})) is None
    assert dict(_seen(lake, {A: "1", B: "2\x1e"}).pointers) == {A: "1", B: "2\x1e"}


def test_names_that_texts_cannot_tell_apart_are_read_in_rows(lake: LakeSettings) -> None:
    names = ["a\x1eb", "plain", "\x1e"]
    with open_catalog(lake) as catalog:
        catalog.make_namespace("shop")
        engine = create_engine(lake.sqlalchemy_uri)
        rows = [
            {"catalog_name": "lake", "table_namespace": "shop", "table_name": name, "metadata_location": "x"}
            for name in names
        ]
        with engine.begin() as connection:
            connection.execute(insert(IcebergTables), rows)
        engine.dispose()
        assert dict(read_listing(lake).pointers) == {LakeName("shop", name): "x" for name in names}
        assert catalog.listing() is read_listing(lake)
        assert catalog.pointers() == catalog.listing().pointers


@pytest.mark.parametrize("seed", range(5))
def test_pins_are_those_of_a_plain_mapping(seed: int) -> None:
    rng = random.Random(seed)
    names = [LakeName(space, f"t{i}") for space in ("shop", "shop__s") for i in range(8)]
    model: dict[LakeName, int] = {}
    pins = Pins.of({})
    catalogs = [frozenset(names), *(frozenset(rng.sample(names, len(names) - 1)) for _ in range(2))]
    for _ in range(40):
        existing = rng.choice(catalogs)
        published = {name: rng.getrandbits(63) for name in rng.sample(sorted(existing), rng.randrange(4))}
        before, earlier = pins, model
        pins = pins.after(published, existing)
        model = {name: pin for name, pin in model.items() if name in existing} | published
        assert dict(pins) == model
        assert dict(before) == earlier  # unchanged
        texts = sorted((str(name), pin) for name, pin in model.items())
        assert pins.as_map().to_pylist() == [texts]
        assert pins.as_map().type == pa.map_(pa.string(), pa.int64())
        again = Pins.of(dict(texts))
        assert again.changed_since(pins) == []
        changed = again.changed_since(before)
        if model.keys() == earlier.keys():
            assert changed is not None
            assert set(changed) == {name for name in model if model[name] != earlier[name]}
        else:
            assert changed is None


class _Table:
    """A table as the lake has it: what its pointer says, or that nothing may be remembered of it."""

    def __init__(self, name: LakeName, pointer: str, shape: TableSchema | None) -> None:
        self.name, self.pointer, self.location, self.shape = name, pointer, pointer, shape


@pytest.mark.parametrize("seed", range(5))
def test_the_shapes_of_changed_tables_are_those_of_all(
    lake: LakeSettings, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    reached: dict[str, int | None] = {}

    def shape(table: _Table, _namespace: str) -> TableSchema | None:
        looked.append(table.pointer)
        return table.shape

    monkeypatch.setattr(newest, "_shape", shape)
    monkeypatch.setattr(catalog_metadata, "load_top", lambda pointer: pointer)
    monkeypatch.setattr(catalog_metadata, "newest_position", lambda pointer: reached[pointer])
    monkeypatch.setattr(catalog_metadata, "read_ahead", list)
    rng = random.Random(seed)
    shapes = [TableSchema.of(relation("t", ["id"], id="int4", **{f"c{i}": "int4"})) for i in range(3)]
    tables: dict[LakeName, PinnedTable] = {}
    position = 100
    for step in range(60):
        position += rng.choice([0, 10, 10])
        for number in rng.sample(range(30), rng.choice([0, 0, 1, 2])):
            name, pointer = LakeName("shop", f"t{number}"), f"{number}/{step}"
            reached[pointer] = rng.choice([position, position, position - 10, position + 10, None])
            if rng.random() < 0.2:
                tables.pop(name, None)
            else:
                table: Any = _Table(name, pointer, rng.choice([*shapes, None]))
                tables[name] = table
        listing = _seen(lake, {name: table.pointer for name, table in tables.items()})
        if rng.random() < 0.2:  # somebody reads an older point
            newest.mirrors(lake, dict(tables), position - 50, listing)
        looked.clear()
        found = newest.mirrors(lake, dict(tables), position, listing)
        of_all = {name: table.shape for name, table in tables.items() if table.shape is not None}
        assert found.shapes == of_all
        again = newest.mirrors(lake, dict(tables), position, listing)
        assert again is found
        assert len(looked) <= 2 + 2 * sum(
            reached[table.pointer] != position for table in tables.values()
        ) + 30 * (step == 0), step


def test_only_tables_that_changed_are_checked_for_damage(
    lake: LakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[LakeName] = []
    damaged = {B}

    def damage(
        pointers: Mapping[LakeName, str], name: LakeName, point: tuple[int, int], owner: tuple[str, str]
    ) -> Any:
        looked.append(name)
        return [integrity.Damage(integrity.WRITTEN, name, "")] if name in damaged else []

    monkeypatch.setattr(integrity, "_table_damage", damage)
    monkeypatch.setattr(catalog_metadata, "load_top", lambda pointer: pointer)
    monkeypatch.setattr(catalog_metadata, "newest_position", int)
    monkeypatch.setattr(catalog_metadata, "read_ahead", list)
    pointers = {A: "1", B: "1", C: "1"}

    def found(pins: Pins, position: int = 5) -> list[LakeName]:
        looked.clear()
        damages = integrity._damages_of_all(lake, "test", _seen(lake, pointers), pins, position)
        return [each.table for each in damages]

    pins = Pins.of({"shop.a": 1, "shop.b": 1, "shop.c": 1, "other.t": 1})
    assert found(pins) == [B]
    assert looked == [A, B, C]
    assert found(pins) == [B]
    assert looked == [B]
    damaged.clear()
    assert found(pins) == []
    assert found(pins) == looked == []
    pointers[A] = "9"  # it is ahead of `commits`: looked at until that has reached it
    assert found(pins) == []
    assert found(pins) == []
    assert looked == [A]
    assert found(pins.after({C: 2}, {*pins}), 9) == []
    assert looked == [A, C]
    del pointers[B]
    damaged.add(B)
    pins = pins.after({C: 2}, {*pins})
    assert found(pins, 9) == [B]
    assert looked == [B]
