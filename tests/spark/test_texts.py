"""The text of a result's values: the plain printers and the compiled ones print the same."""

# ruff: noqa: E501 (values, one a line)

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotlake.decoder.errors import LakeError
from slotlake.spark.read import texts as module
from slotlake.spark.read.texts import rows_of, texts


def _both(values: pa.Array) -> list[str | None]:
    """What the plain printers print, after comparing with the compiled ones."""
    plain = texts(pa.chunked_array([values]))
    compiled = module._compiled(values)
    assert compiled is not None
    assert plain == compiled
    return plain


def _float(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def _double(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])


@settings(deadline=None)  # the first call loads compiled code
@given(st.lists(st.none() | st.integers(0, 2**32 - 1).map(_float)))
def test_float4(values: list[float | None]) -> None:
    _both(pa.array(values, pa.float32()))


@settings(deadline=None)
@given(st.lists(st.none() | st.integers(0, 2**64 - 1).map(_double) | st.floats()))
def test_float8(values: list[float | None]) -> None:
    _both(pa.array(values, pa.float64()))


@settings(deadline=None)
@given(st.lists(st.none() | st.decimals(-(10**30), 10**30, places=7)))
def test_decimal(values: list[Decimal | None]) -> None:
    _both(pa.array(values, pa.decimal128(38, 7)))


@settings(deadline=None)
@given(st.lists(st.none() | st.integers(-62135596800000000, 253402300799999999)))
def test_moments(values: list[int | None]) -> None:
    _both(pa.array(values, pa.timestamp("us")))
    _both(pa.array(values, pa.timestamp("us", "UTC")))


@settings(deadline=None)
@given(st.lists(st.none() | st.integers(-719162, 2932896)))
def test_dates(values: list[int | None]) -> None:
    _both(pa.array(values, pa.int32()).view(pa.date32()))


@settings(deadline=None)
@given(st.lists(st.none() | st.binary()), st.lists(st.none() | st.booleans()), st.lists(st.integers(-9, 9)))
def test_others(values: list[bytes | None], flags: list[bool | None], numbers: list[int]) -> None:
    _both(pa.array(values, pa.binary()))
    _both(pa.array(flags, pa.bool_()))
    _both(pa.array(numbers, pa.int16()))


def _intervals(*values: Any) -> pa.Array:
    kind: Any = pa.MonthDayNano
    made: pa.Array = pa.array([kind(value) for value in values])
    return made


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([-0.0, 1e15, 1e-5, float("nan"), float("-inf")]), ["-0", "1e+15", "1e-05", "NaN", "-Infinity"]),
        (pa.array([0.1, 1e6, 16777216.0], pa.float32()), ["0.1", "1e+06", "1.6777216e+07"]),
        (pa.array([Decimal("1.50"), Decimal("-0.01")], pa.decimal128(10, 2)), ["1.50", "-0.01"]),
        (pa.array([0, 500_000], pa.timestamp("us", "UTC")), ["1970-01-01 00:00:00+00", "1970-01-01 00:00:00.5+00"]),
        (pa.array([1_500], pa.timestamp("ms")), ["1970-01-01 00:00:01.5"]),
        (pa.array([2**31 - 1, -719_163, 2_932_897], pa.int32()).view(pa.date32()), ["infinity", "0001-12-31 BC", "10000-01-01"]),
        (pa.array([2**63 - 1], pa.timestamp("us")), ["infinity"]),
        (pa.array([3_600_000_001], pa.time64("us")), ["01:00:00.000001"]),
        (pa.array([2**64 - 1], pa.uint64()), [str(2**64 - 1)]),
        (_intervals((14, 3, 1_000_000)), ["1 year 2 mons 3 days 00:00:00.001"]),
        (pa.array([None, None]), [None, None]),
        (pa.array(["a", None, "b"]).dictionary_encode(), ["a", None, "b"]),
        (pa.array([[1, None], None, []], pa.list_(pa.int64())), ["[1,null]", None, "[]"]),
        (pa.array([[1, None], None, []], pa.list_(pa.int64())).slice(1), [None, "[]"]),
        (pa.array([[[1.5]], [None]], pa.list_(pa.list_(pa.float64()))), ["[[1.5]]", "[null]"]),
        (pa.array([[("a", 1), ("b", None)], []], pa.map_(pa.string(), pa.int64())), ['{"a":1,"b":null}', "{}"]),
        (pa.array([[("a", 1)], [("c", 2)]], pa.map_(pa.string(), pa.int64())).slice(1), ['{"c":2}']),
        (pa.array([{"a": 1, "b": 'x"y\n'}, None, {"a": None, "b": "ü"}]), ['{"a":1,"b":"x\\"y\\n"}', None, '{"a":null,"b":"ü"}']),
        (pa.array([{"f": True}, {"f": False}, {"f": None}]).slice(1), ['{"f":false}', '{"f":null}']),
        (pa.array([[float("nan"), 1e22]]), ['["NaN",1e+22]']),
        (pa.array([[b"\xff"]]), ['["\\\\xff"]']),
        (pa.array([[Decimal("1.50")]], pa.list_(pa.decimal128(4, 2))), ["[1.50]"]),
    ],
)  # fmt: skip
def test_what_is_printed(values: pa.Array, expected: list[str | None]) -> None:
    assert texts(pa.chunked_array([values])) == expected


def test_many_values_and_few_are_printed_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    columns: dict[str, Any] = {
        "f": pa.array([0.1 * i for i in range(50)]),
        "far": pa.array([2_932_896 + i for i in range(50)], pa.int32()).view(pa.date32()),
        "l": pa.array([[0.5 * i] for i in range(50)]),
    }
    few = rows_of(pa.table(columns))
    monkeypatch.setattr(module, "_COMPILED_FROM", 1)
    assert rows_of(pa.table(columns)) == few


def test_a_value_that_postgresql_has_not() -> None:
    with pytest.raises(LakeError, match="no text in PostgreSQL"):
        texts(pa.chunked_array([pa.array([2**31 - 3], pa.int32()).view(pa.date32())]))
