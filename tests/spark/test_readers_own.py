"""Columns of the names that readers have of their own: written, changed and read like any other."""

from __future__ import annotations

from decimal import Decimal

import pytest

from slotlake.spark import names
from slotlake.spark.names import READERS_OWN, lake_columns
from tests.spark.lake_lab import UNCHANGED, Lab, Row, delete, insert, relation, update

OWN = sorted(READERS_OWN)
COLUMNS = {"id": "int4", **dict.fromkeys([*OWN, "_POS", "_Row_ID"], "int4"), "w": "text"}
# Names that Spark gets from us within a statement.
OURS = dict.fromkeys(["t", "s", "o", "l", "f", "p", "n0", "u1", "d", "is there"], "int4")
KEYED = relation("keyed", ["present", "__row_id"], present="int4", __row_id="int4", action="text", **OURS)


def test_all_of_them_in_each_kind_of_table(lab: Lab) -> None:
    keyed, bag = relation("all_keyed", ["id"], **COLUMNS), relation("all_bag", [], "f", **COLUMNS)
    rows = [_row(i) for i in range(4)]
    lab.init({keyed: rows, bag: rows}, modes={"public.all_keyed": ["append", "history"]})
    for table in (keyed, bag):
        whole = table is bag
        changed = [_row(1, "x"), _row(22, "w2")]
        unsent = {} if whole else {"w": UNCHANGED}
        lab.sync(
            update(table, rows[1] if whole else None, **changed[0]),
            update(table, rows[2] if whole else {"id": "2"}, **{**changed[1], **unsent}),
            delete(table, **rows[0] if whole else {"id": "0"}),
            insert(table, **_row(9)),
        )
        expected = [changed[0], changed[1], rows[3], _row(9)]
        assert lab.rows(table.table) == sorted((tuple(row.values()) for row in expected), key=repr)
    own = ", ".join(lake_columns(list(COLUMNS)))
    by_spark = lab.session.sql(f"SELECT {own} FROM lake.shop.all_keyed").collect()
    assert sorted((tuple(map(str, row)) for row in by_spark), key=repr) == lab.rows("all_keyed")
    assert lab.session.sql("SELECT * FROM lake.shop.all_keyed__history WHERE is_open").count() == 4
    assert (
        lab.session.sql("SELECT new.__x70_os FROM lake.shop.all_keyed__changes WHERE op = 'I'").count() == 1
    )


def test_names_that_our_statements_use(lab: Lab) -> None:
    row = {"present": "1", "__row_id": "1", "action": "a", **dict.fromkeys(OURS, "1")}
    lab.init({KEYED: [row]}, modes={"public.keyed": ["history"]})
    lab.sync(update(KEYED, {"present": "1", "__row_id": "1"}, **row | {"present": "2", "action": UNCHANGED}))
    assert lab.rows("keyed") == [tuple((row | {"present": "2"}).values())]


def test_a_lake_that_an_earlier_version_made(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    table = relation("old", ["id"], id="int4", _pos="int4", _deleted="numeric(10,2)", w="text")
    plain, added = (
        relation("added", ["id"], id="int4", **more) for more in ({}, {"_deleted": "numeric(10,2)"})
    )
    rows = [{"id": str(i), "_pos": "7", "_deleted": "NaN", "w": "a"} for i in range(3)]
    with monkeypatch.context() as patched:
        patched.setattr(names, "READERS_OWN", frozenset())
        lab.init({table: rows, plain: [{"id": "1"}]}, modes={"public.added": ["append", "history"]})
        lab.sync(insert(added, id="2", _deleted="NaN"))
    before = lab.position
    lab.sync(
        update(table, id="1", _pos="8", _deleted="NaN", w=UNCHANGED),
        delete(table, id="0"),
        update(added, id="2", _deleted="5.00"),
    )
    now = [("1", "8", "NaN", "a"), ("2", "7", "NaN", "a")]
    assert lab.rows("old") == now
    assert lab.rows("old", at=before) == [("0", "7", "NaN", "a"), ("1", "7", "NaN", "a"), now[1]]
    assert _told(lab, "__x70_os, __x64_eleted__exact FROM lake.shop.old WHERE id = 1") == [(8, "NaN")]
    assert lab.rows("added") == [("1", None), ("2", "5.00")]
    assert lab.rows("added", at=before) == [("1", None), ("2", "NaN")]
    versions = "__x64_eleted, __x64_eleted__exact FROM lake.shop.added__history WHERE id = 2 ORDER BY is_open"
    assert _told(lab, versions) == [(None, "NaN"), (Decimal("5.00"), None)]
    told = "new.__x64_eleted, new.__x64_eleted__exact FROM lake.shop.added__changes WHERE seq > 0"
    assert _told(lab, f"{told} ORDER BY lsn") == [(None, "NaN"), (Decimal("5.00"), None)]
    lab.sync(insert(table, id="5", _pos="9", _deleted="1.00", w="b"))
    assert lab.rows("old") == [*now, ("5", "9", "1.00", "b")]


def _told(lab: Lab, selected: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in lab.session.sql(f"SELECT {selected}").collect()]


def _row(i: int, w: str = "") -> Row:
    return {"id": str(i), **{name: str(i + 100) for name in list(COLUMNS)[1:-1]}, "w": w or f"w{i}"}
