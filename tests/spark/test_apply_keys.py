"""Keys of every type that can be one find their row, and only their row."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.spark.lake_lab import UNCHANGED, Lab, delete, insert, relation, update

KEYS: dict[str, tuple[str, list[str]]] = {
    "int4": ("int4", ["-2147483648", "0", "2147483647"]),
    "int8": ("int8", ["-9223372036854775808", "5", "9223372036854775807"]),
    "text": ("text", ["", 'it\'s \\ `q` "d"', "größe"]),
    "long text": ("text", ["a" * 300, "b" * 300, "c" * 300]),
    "uuid": ("uuid", [f"{i:08x}-0000-0000-0000-000000000000" for i in (1, 2, 0xFFFFFFFF)]),
    "numeric": ("numeric", ["1.0", "1.00", "NaN"]),
    "decimal": ("numeric(10,2)", ["-99999999.99", "0.00", "NaN"]),
    "float8": ("float8", ["NaN", "0", "1.5"]),
    "date": ("date", ["0001-01-01", "2024-02-29", "infinity"]),
    "timestamp": ("timestamp", ["1969-12-31 23:59:59.999999", "2024-05-01 10:00:00", "-infinity"]),
    "timestamptz": (
        "timestamptz",
        ["2024-05-01 10:00:00.1+00", "9999-12-31 23:59:59.999999+00", "0044-03-15 00:00:00+00 BC"],
    ),
    "bytea": ("bytea", ["\\x", "\\x00ff", "\\x2725"]),
    "bool": ("bool", ["f", "t"]),
}


@pytest.mark.parametrize("name", KEYS)
def test_update_delete_and_key_change_by_key(lab: Lab, name: str) -> None:
    kind, values = KEYS[name]
    table = relation("keyed", ["k"], k=kind, v="text", w="int4")
    lab.init({table: [{"k": value, "v": f"v{i}", "w": str(i)} for i, value in enumerate(values)]})
    lab.sync(
        update(table, k=values[0], v=UNCHANGED, w="10"),
        delete(table, k=values[-1]),
    )
    expected = [(values[0], "v0", "10"), *[(v, f"v{i}", str(i)) for i, v in enumerate(values[:-1])][1:]]
    assert lab.rows("keyed") == sorted(expected, key=repr)
    lab.sync(update(table, {"k": values[0]}, k=values[-1], v=UNCHANGED, w="11"))
    assert (values[-1], "v0", "11") in lab.rows("keyed")
    assert len(lab.rows("keyed")) == len(values) - 1


def test_minus_zero_is_zero_as_a_key(lab: Lab) -> None:
    table = relation("floats", ["k"], k="float8", v="int4")
    lab.init({table: [{"k": "0", "v": "1"}, {"k": "1", "v": "1"}]})
    lab.sync(update(table, k="-0", v="2"))
    assert [row[1] for row in lab.rows("floats")] == ["2", "1"]


def test_composite_keys(lab: Lab) -> None:
    table = relation("pairs", ["b", "a"], a="int4", v="text", b="text")
    rows = [{"a": str(a), "b": b, "v": f"{a}{b}"} for a in (1, 2) for b in ("x", "y")]
    lab.init({table: rows})
    lab.sync(
        update(table, a="1", b="y", v="new"),
        delete(table, a="2", b="x"),
        update(table, {"a": "2", "b": "y"}, a="3", b="y", v=UNCHANGED),
    )
    assert lab.rows("pairs") == [("1", "1x", "x"), ("1", "new", "y"), ("3", "2y", "y")]


def test_identity_by_an_index_instead_of_the_primary_key(lab: Lab) -> None:
    table = relation("indexed", ["code"], id="int4", code="text", v="int4")
    indexed = type(table)(**{**vars(table), "replica_identity": "i"})
    lab.init({indexed: [{"id": "1", "code": "a", "v": "1"}, {"id": "2", "code": "b", "v": "2"}]})
    lab.sync(update(indexed, id="9", code="a", v="3"), delete(indexed, code="b"))
    assert lab.rows("indexed") == [("9", "a", "3")]


@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_a_thousand_columns(lab: Lab) -> None:
    names = {f"c{i}": ("numeric(10,2)" if i % 10 == 0 else "int4") for i in range(999)}
    table = relation("wide", ["the_key"], **names, the_key="int4")
    row: dict[str, Any] = dict.fromkeys(names, "1")
    row |= {name: "1.00" for name, kind in names.items() if kind != "int4"}
    lab.init({table: [{**row, "the_key": str(i)} for i in range(3)]})
    lab.sync(
        update(table, **{**row, "the_key": "1", "c7": "7", "c8": UNCHANGED}),
        insert(table, **{**row, "the_key": "5", "c10": "NaN"}),
        delete(table, the_key="0"),
    )
    found = {found[-1]: found for found in lab.rows("wide")}
    assert sorted(key for key in found if key) == ["1", "2", "5"]
    assert (found["1"][7], found["1"][8], found["5"][10]) == ("7", "1", "NaN")
