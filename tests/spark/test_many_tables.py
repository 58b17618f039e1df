"""What a table or a batch costs does not grow with the tables that the lake has besides."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotlake.spark.catalog import looks
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.catalog.rest.catalog import RestPointers
from slotlake.spark.catalog.rest.session import Answered
from slotlake.spark.catalog.sql.catalog import SqlPointers
from slotlake.spark.catalog.sql.pointer_texts import PointerTexts
from slotlake.spark.lake import LakeSettings
from slotlake.spark.maintenance.expiry import Grace
from slotlake.spark.maintenance.integrity import WRITTEN, find_damage
from slotlake.spark.maintenance.plan import Care
from slotlake.spark.maintenance.rewrite import maintain_table, tables_to_maintain
from slotlake.spark.maintenance.small_files import tables_to_pack
from slotlake.spark.names import LakeName
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.tables import metadata as catalog_metadata
from tests.spark.lake_lab import PIPELINE, Lab, insert, relation, update

_FEW, _MORE = 1, 3
_CARE = Care(Grace(0.0, 0.0))


def _tables(count: int) -> list[Any]:
    return [relation(f"t{i}", ["id"], id="int8", v="int4") for i in range(count)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often all pointers are read, and how often each table is asked for on REST."""
    counts: Counter[str] = Counter()
    texts, answered = SqlPointers._texts, RestPointers.answered

    def counted_texts(self: SqlPointers) -> PointerTexts:
        counts["all"] += 1
        return texts(self)

    def counted_answered(self: RestPointers, name: LakeName) -> Answered | None:
        counts[name.table] += 1
        return answered(self, name)

    names = RestPointers.names

    def counted_names(self: RestPointers) -> frozenset[LakeName]:
        counts["list of names"] += 1
        return names(self)

    monkeypatch.setattr(RestPointers, "names", counted_names)
    monkeypatch.setattr(SqlPointers, "_texts", counted_texts)
    monkeypatch.setattr(RestPointers, "answered", counted_answered)
    return counts


def _taken(asked: Counter[str]) -> int:
    """How often all pointers were read since the last time that this was asked."""
    return asked.pop("all", 0)


def test_all_pointers_are_read_as_often_for_three_tables_as_for_one(
    session: Any, lake: LakeSettings, asked: Counter[str]
) -> None:
    read = []
    for count in (_FEW, _MORE):
        lab = Lab.on(session, replace(lake, namespace=f"shop{count}"))
        tables = _tables(count)
        lab.init({table: [{"id": "1", "v": "0"}] for table in tables})
        copied = _taken(asked)
        lab.apply(batch := lab.batch(*(update(table, id="1", v="1") for table in tables)))
        lab.publish(batch)
        touched = _taken(asked)
        tables_to_pack(lab.lake, [LakeName(lab.lake.namespace, "t0")], 1 << 20)
        packed = _taken(asked)
        names = tables_to_maintain(lab.lake, PIPELINE)
        looked = _taken(asked)
        assert len(names) == count + 1
        for name in names[:1]:
            maintain_table(lab.engine.session, lab.lake, name, PIPELINE, _CARE)
        read.append((copied, touched, packed, looked, _taken(asked)))
        assert lab.rows("t0") == [("1", "1")]
    assert read[0] == read[1]
    assert read[1][1:] == (1, 0, 1, 0)  # a point's row names all tables


def test_on_rest_a_batch_asks_for_its_own_tables(
    session: Any, rest: str, tmp_path: Path, asked: Counter[str]
) -> None:
    lake = LakeSettings("lake", rest, f"file://{tmp_path}/warehouse", "many" + tmp_path.name.replace("-", ""))
    lab = Lab.on(session, lake)
    tables = _tables(3)
    lab.init({table: [] for table in tables})
    asked.clear()
    lab.sync(insert(tables[0], id="1", v="1"))
    assert asked["t0"] > 0
    assert asked["t1"] == asked["t2"] == 0


def test_chosen_pointers(lake: LakeSettings, lab: Lab, asked: Counter[str]) -> None:
    lab.init({table: [] for table in _tables(1)})
    with open_catalog(lake) as catalog:
        every = catalog.pointers()
        asked.clear()
        one, absent = LakeName("shop", "t0"), LakeName("elsewhere", "t0")
        assert catalog.pointers_of([one, absent]) == {one: every[one]}
        assert catalog.pointers_of([]) == {}
        assert not asked
        very_many = [LakeName("shop", f"x{i}") for i in range(40_000)]  # more than SQLite takes by name
        assert catalog.pointers_of([*very_many, one]) == {one: every[one]}


def test_the_tops_of_ten_thousand_tables_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch looks at all of them in turn: with room for fewer, none would be there when it is needed."""
    tops = catalog_metadata._Recent(
        catalog_metadata._RECENT_TOPS_BYTES_MAX, catalog_metadata._RECENT_TOPS_OF_A_TABLE
    )
    monkeypatch.setattr(catalog_metadata, "_recent_tops", tops)
    read: Counter[str] = Counter()
    properties = {"slotlake.schema": "x" * 4000}

    def load(location: str) -> dict[str, Any]:
        read[location] += 1
        return {"format-version": 3, "properties": properties, "snapshots": [], "refs": {}}

    monkeypatch.setattr(catalog_metadata, "load", load)
    locations = [f"file://{tmp_path}/t{i}/metadata/1.json" for i in range(10_000)]
    for location in [*locations, *locations]:
        catalog_metadata.load_top(location)
    assert set(read.values()) == {1}
    for version in range(2, 200):  # a table's older files make room for its newer ones
        catalog_metadata.load_top(f"file://{tmp_path}/t0/metadata/{version}.json")
    assert tops._bytes < 10_100 * (2048 + 4000)


def test_on_rest_a_sync_asks_again_for_what_was_changed_only(
    session: Any, rest: str, tmp_path: Path, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a sync looks: before a batch and after it, by `find_damage` and by a read point."""
    monkeypatch.setattr(looks, "TABLES_MIN", 1)
    lake = LakeSettings("lake", rest, f"file://{tmp_path}/warehouse", "look" + tmp_path.name.replace("-", ""))
    lab = Lab.on(session, lake)
    tables = _tables(4)
    lab.init({table: [] for table in tables})

    def look() -> int:
        """How many tables besides `commits` are asked for in a look."""
        asked.clear()
        assert find_damage(lake, PIPELINE) == []
        assert len(ReadPoint.latest(lake).tables()) == len(tables)
        return sum(count for name, count in asked.items() if name not in {"commits", "list of names"})

    every = look()
    assert every >= 2 * len(tables)
    with looks.sparing():
        assert look() == len(tables)
        assert look() == 0
        asked.clear()
        lab.sync(insert(tables[0], id="1", v="1"))
        assert asked["list of names"] == 0, "the list of thousands of tables is a long answer"
        with open_catalog(lake) as catalog:
            own, head = catalog.own_names(None), lake.memory.of(looks.Looks).head
            assert asked.pop("list of names") == 1, "of another point than this process's last one"
            assert catalog.own_names(head) == own
            assert not asked["list of names"]
        assert look() == 1
        lab.session.sql(f"DELETE FROM lake.{lake.namespace}.t0")  # by somebody else
        assert look() == 0
        (damage,) = find_damage(lake, PIPELINE, only=[LakeName(lake.namespace, "t0")])
        assert damage.kind == WRITTEN
        monkeypatch.setattr(looks, "LIFE_SECONDS_MIN", 0.0)
        monkeypatch.setattr(looks, "LIFE_TIMES", 1_000_000)
        assert find_damage(lake, PIPELINE) == [], "a look that takes long lives longer"
        monkeypatch.setattr(looks, "LIFE_TIMES", 0)
        assert [each.kind for each in find_damage(lake, PIPELINE)] == [WRITTEN]
    assert not looks.is_sparing()
