"""Pinned views: plain names that stay at one point, or follow the lake; every reader reads them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog import view_spaces
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import KeepPoints
from slotlake.spark.maintenance.expiry import Grace
from slotlake.spark.maintenance.plan import Care
from slotlake.spark.maintenance.removal import drop_tables
from slotlake.spark.maintenance.rewrite import maintain_table
from slotlake.spark.names import LakeName
from slotlake.spark.read.point import ReadPoint
from tests.catalogs import postgres_uri
from tests.conftest import Database
from tests.spark.lake_lab import PIPELINE, Lab, delete, insert, relation, update
from tests.spark.test_read_others import _duckdb

ONE = relation("one", ["id"], id="int8", v="int8")
TWO = relation("two", ["id"], id="int8", v="int8")
SALES = relation("sales.three", ["id"], id="int8", v="int8")
WIDE = relation("one", ["id"], id="int8", v="int8", more="text")
TOTAL = 1000
LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
BATCHES = 100 if LONG else 6
FIRST = {ONE: [{"id": str(i), "v": str(TOTAL // 4)} for i in (1, 2)],
         TWO: [{"id": str(i), "v": str(TOTAL // 4)} for i in (1, 2)]}  # fmt: skip


@pytest.fixture(params=["sqlite", "postgresql"] if LONG else ["sqlite"])
def viewed(lab: Lab, request: pytest.FixtureRequest) -> Lab:
    """A lake with views that keeps four points."""
    lake = replace(lab.lake, views=True, keep=KeepPoints(4))
    if request.param == "postgresql":
        database: Database = request.getfixturevalue("database")
        lake = replace(lake, uri=postgres_uri(database))
    return Lab.on(lab.session, lake)


@pytest.fixture
def at_every_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each point gets a namespace that stays."""
    monkeypatch.setattr(view_spaces, "SECONDS_APART", 0.0)


@contextmanager
def _catalog(lab: Lab) -> Iterator[SqlCatalog]:
    catalog = SqlCatalog("lake", uri=lab.lake.uri, warehouse=lab.lake.warehouse)
    yield catalog
    catalog.engine.dispose()


def _spaces(lab: Lab) -> list[str]:
    with _catalog(lab) as catalog:
        return sorted(name for (name,) in catalog.list_namespaces())


def _values(lab: Lab, namespace: str, table: str) -> list[tuple[int, ...]]:
    with _catalog(lab) as catalog:
        rows = catalog.load_table((namespace, table)).scan().to_arrow().to_pylist()
    return sorted(tuple(value for value in row.values() if isinstance(value, int)) for row in rows)


def _move(value: int) -> list[Any]:
    """A change that keeps the sum over both tables."""
    return [update(ONE, id="1", v=str(TOTAL // 4 - value)), update(TWO, id="2", v=str(TOTAL // 4 + value))]


@pytest.mark.usefixtures("at_every_point")
def test_views_show_each_point_and_follow_the_lake(viewed: Lab) -> None:
    lab = viewed
    lab.init({**FIRST, SALES: [{"id": "7", "v": "7"}]})
    expected = {lab.position: (_values(lab, "shop", "one"), _values(lab, "shop", "two"))}
    assert _spaces(lab) == ["shop", "shop__at", "shop__at_00000000_00001000", *_of_sales("00000000_00001000")]
    for changes in (_move(10), [insert(TWO, id="9", v="0")], [delete(TWO, id="9"), *_move(20)], _move(30)):
        lab.sync(*changes)
        expected[lab.position] = _values(lab, "shop", "one"), _values(lab, "shop", "two")
        assert (_values(lab, "shop__at", "one"), _values(lab, "shop__at", "two")) == expected[lab.position]
    with _catalog(lab) as catalog:
        catalog.drop_table("shop__sales.three")  # by somebody's hand
    lab.sync(update(WIDE, id="2", v="5", more="x"))
    with _catalog(lab) as catalog:
        assert catalog.list_tables("shop__sales__at") == []
    del expected[0x1000], expected[0x1100]  # kept no more
    for position, (one, two) in expected.items():
        space = view_spaces.point_namespace("shop", position)
        assert (_values(lab, space, "one"), _values(lab, space, "two")) == (one, two)
        assert _values(lab, space.replace("shop", "shop__sales"), "three") == [(7, 7)]
        by_spark = lab.session.sql(
            f"SELECT sum(o.v), count(*) FROM lake.{space}.one o JOIN lake.{space}.two t ON t.id = o.id"
        ).collect()
        assert tuple(by_spark[0]) == (sum(v for _, v in one), 2)
    points = [f"shop__at_00000000_{position:08x}" for position in [*expected, lab.position]]
    assert [name for name in _spaces(lab) if name.startswith("shop__at_")] == points
    with _catalog(lab) as catalog:
        shown = catalog.load_table("shop__at.one")
        assert shown.scan().to_arrow().column_names == ["id", "v", "more"]
    cut = ReadPoint.latest(lab.lake)
    assert {str(name) for name in cut.pinned} == {"shop.commits", "shop.one", "shop.two"}
    with open_catalog(lab.lake) as own:
        spaces = {space.name: space.position for space in own.view_namespaces()}
    assert spaces["shop__at"] == lab.position
    with _duckdb() as connection:
        scan = f"SELECT sum(v) FROM iceberg_scan('{shown.metadata_location}')"
        assert connection.execute(scan).fetchone() == (225,)


def _of_sales(*points: str) -> list[str]:
    return ["shop__sales", "shop__sales__at", *(f"shop__sales__at_{point}" for point in points)]


@pytest.mark.usefixtures("at_every_point")
def test_maintenance_leaves_what_views_read(viewed: Lab) -> None:
    lab = viewed
    lab.init(FIRST)
    for value in range(1, 4):
        lab.sync(*_move(value))
    spaces = [name for name in _spaces(lab) if name != "shop"]
    before = {name: (_values(lab, name, "one"), _values(lab, name, "two")) for name in spaces}
    assert len({str(rows) for rows in before.values()}) == 4
    for table in ("one", "two"):
        maintain_table(
            lambda: lab.session, lab.lake, LakeName("shop", table), PIPELINE, Care(Grace(0.0, 0.0))
        )
    assert {name: (_values(lab, name, "one"), _values(lab, name, "two")) for name in spaces} == before


def test_turned_off_and_on_and_dropped(viewed: Lab) -> None:
    lab = viewed
    lab.init(FIRST)
    lab.sync(*_move(1))
    assert _spaces(lab) == ["shop", "shop__at", "shop__at_00000000_00001000"], "a minute has not passed"
    without = Lab.on(lab.session, replace(lab.lake, views=False))
    with open_catalog(without.lake) as catalog:
        catalog.bring_views()
    assert _spaces(lab) == ["shop"]
    with open_catalog(lab.lake) as catalog:
        catalog.bring_views()
    assert _spaces(lab) == ["shop", "shop__at", "shop__at_00000000_00001100"]
    drop_tables(lab.lake, PIPELINE, [LakeName("shop", "one")])
    with _catalog(lab) as pyiceberg:
        assert [table for _, table in pyiceberg.list_tables("shop__at")] == ["commits", "two"]
    drop_tables(lab.lake, PIPELINE)
    assert _spaces(lab) == []


def test_tables_that_are_where_views_are_to_be(lab: Lab) -> None:
    there = relation("at.here", ["id"], id="int8", v="int8")
    lab.init({**FIRST, there: []})
    viewing = Lab(lab.session, replace(lab.lake, views=True), lab.position)
    with open_catalog(viewing.lake) as catalog:
        with pytest.raises(LakeError, match=r"tables in the namespace that lake\.views needs"):
            catalog.require_room_for_views()
        with pytest.raises(LakeError, match=r"tables in the namespace that lake\.views needs"):
            catalog.bring_views()
    batch = viewing.batch(*_move(1))
    viewing.apply(batch)
    before = lab.rows("one")
    with pytest.raises(LakeError, match="nothing was changed"):
        viewing.publish(batch)
    assert lab.rows("one") == before


def test_a_join_through_views_is_never_torn(viewed: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum over two tables is always the same; the views that follow the lake are read for comparison."""
    lab = viewed
    monkeypatch.setattr(view_spaces, "SECONDS_APART", 1.0)
    lab.init(FIRST)
    stop = threading.Event()
    torn: dict[str, list[int]] = {"stays": [], "follows": []}
    reader = threading.Thread(target=_read, args=(lab, stop, torn))
    reader.start()
    try:
        value = 0
        while value < BATCHES or (len(torn["stays"]) <= BATCHES and reader.is_alive()):
            value += 1
            lab.sync(*_move(value))
    finally:
        stop.set()
        reader.join()
    print({kind: (len(sums), sum(each != TOTAL for each in sums)) for kind, sums in torn.items()})
    assert len(torn["stays"]) > BATCHES  # batches were published between reads
    assert set(torn["stays"]) == {TOTAL}


def _read(lab: Lab, stop: threading.Event, sums: dict[str, list[int]]) -> None:
    with _catalog(lab) as catalog:
        while not stop.is_set():
            newest = max(name for (name,) in catalog.list_namespaces() if name.startswith("shop__at_"))
            for kind, space in (("stays", newest), ("follows", "shop__at")):
                tables = [catalog.load_table(f"{space}.{name}").scan().to_arrow() for name in ("one", "two")]
                sums[kind].append(
                    sum(int(str(value)) for table in tables for value in table["v"].to_pylist())
                )
