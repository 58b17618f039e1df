"""Bounds of data files hold for every row, at the limits of every type; no file with a key is left out."""

from __future__ import annotations

import decimal
import io
import math
import struct
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.manifest import DataFile

from slotlake.spark.copy.files import description_of_files, text_above
from slotlake.spark.direct import positions
from slotlake.spark.direct.live import Live, LiveFile
from slotlake.spark.direct.positions import KeyColumn, candidates
from slotlake.spark.storage.location import Location

pytestmark = pytest.mark.fast
_MICROS = (-62_135_596_800_000_000, 253_402_300_799_999_999)  # the years 1 to 9999
_CHARACTERS = st.sampled_from("\x01a\x7f\x80\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff")


def _near(*limits: int) -> st.SearchStrategy[int]:
    """Whole numbers between the first limit and the last, most of them next to one."""
    close = [limit + step for limit in (*limits, 0) for step in (-1, 0, 1)]
    between = st.integers(limits[0], limits[-1])
    return st.sampled_from([n for n in close if limits[0] <= n <= limits[-1]]) | between


def _decimals(precision: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    most = 10**precision - 1
    limits = _near(-most, *(10**n for n in (9, 18, 28) if n < precision), most)
    return limits.map(lambda n: decimal.Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)))


def _wide(items: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """What bounds cut off after sixteen, or leave out."""
    return st.lists(items, max_size=3) | items.map(lambda i: [i] * 17) | items.map(lambda i: [i] * 5_000)


KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "boolean": (pa.bool_(), st.booleans()),
    "int": (pa.int32(), _near(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), _near(-(2**63), -(2**53), 2**53, 2**63 - 1)),
    "float": (pa.float32(), st.floats(width=32) | st.sampled_from([math.nan, -0.0, 0.0, math.inf])),
    "double": (pa.float64(), st.floats() | st.sampled_from([math.nan, -0.0, 0.0, -math.inf])),
    "date": (pa.date32(), _near(-719_162, -141_428, 2_932_896)),
    "timestamp": (pa.timestamp("us"), _near(_MICROS[0], -12_219_292_800_000_000, _MICROS[1])),
    "timestamptz": (pa.timestamp("us", "UTC"), _near(*_MICROS)),
    "string": (pa.string(), _wide(_CHARACTERS).map("".join)),
    "binary": (pa.binary(), _wide(st.sampled_from([0, 0x7F, 0x80, 0xFE, 0xFF])).map(bytes)),
    **{
        f"decimal({precision}, {scale})": (pa.decimal128(precision, scale), _decimals(precision, scale))
        for precision, scale in ((1, 0), (9, 2), (10, 2), (18, 2), (19, 19), (38, 0), (38, 10), (38, 38))
    },
}


def _typed(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if pa.types.is_date(kind) else pa.int64()).view(kind)
    return pa.array(values, kind)


def _described(
    name: str, kind: pa.DataType, column: pa.Array, rows_per_group: int, *, as_int: bool
) -> DataFile:
    table = pa.Table.from_arrays(
        [column], schema=pa.schema([pa.field("k", kind, metadata={"PARQUET:field_id": "1"})])
    )
    content = io.BytesIO()
    pq.write_table(table, content, row_group_size=rows_per_group, store_decimal_as_integer=as_int)
    fields = [{"id": 1, "name": "k", "type": name, "required": False}]
    metadata = {
        "format-version": 3,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": fields}],
        "current-schema-id": 0,
    }
    footer = pq.read_metadata(io.BytesIO(content.getvalue()))
    return description_of_files(metadata)(Location("file:///k"), footer, len(content.getvalue()), None)


def _ordered(value: Any, name: str) -> Any:
    """A value as the order of its type has it: decimals by their digits, texts by their bytes."""
    if isinstance(value, decimal.Decimal):
        sign, digits, _ = value.as_tuple()
        return (-1 if sign else 1) * int("".join(map(str, digits)))
    return value.encode() if name == "string" else value


def _read_bound(stored: bytes, name: str) -> Any:
    """As the specification writes it ("Appendix D: Single-value serialization")."""
    codes = {"boolean": "<?", "int": "<i", "long": "<q", "float": "<f", "double": "<d", "date": "<i"}
    if name in codes or name.startswith("timestamp"):
        (value,) = struct.unpack(codes.get(name, "<q"), stored)
        return value
    if name.startswith("decimal"):
        return int.from_bytes(stored, "big", signed=True)
    if name == "string":
        stored.decode()
    return stored


def _holds(lower: bytes | None, value: Any, upper: bytes | None, name: str) -> bool:
    own = _ordered(value, name)
    return (lower is None or _read_bound(lower, name) <= own) and (
        upper is None or own <= _read_bound(upper, name)
    )


@pytest.mark.parametrize("name", KINDS)
@settings(deadline=None)
@given(data=st.data())
def test_bounds_hold_for_every_row(name: str, data: st.DataObject) -> None:
    kind, strategy = KINDS[name]
    values = data.draw(st.lists(strategy, min_size=1, max_size=6), label="values")
    stored = [*values, None] if data.draw(st.booleans(), label="with NULL") else values
    column = _typed(stored, kind)
    rows_per_group = data.draw(st.integers(1, len(stored)), label="rows of a group")
    file = _described(name, kind, column, rows_per_group, as_int=data.draw(st.booleans()))
    lower, upper = ((ends or {}).get(1) for ends in (file.lower_bounds, file.upper_bounds))
    assert all(_holds(lower, value, upper, name) for value in values)
    short = not isinstance(values[0], str | bytes) or all(len(value) <= 16 for value in values)
    if pa.types.is_floating(kind):
        assert lower is upper is None
    elif short:
        ordered = [_ordered(value, name) for value in values]
        assert lower is not None
        assert upper is not None
        assert (_read_bound(lower, name), _read_bound(upper, name)) == (min(ordered), max(ordered))
    live = Live([], {"k": LiveFile(file, "m", 0, 1, 1, 1, 0)}, {}, {})
    absent = data.draw(st.lists(strategy, max_size=2), label="other keys")
    with patch.object(positions, "_ALL_COMPARED_MAX", data.draw(st.sampled_from([0, 10_000]), label="most")):
        for value in values:
            assert candidates(live, [KeyColumn(1, _typed([*absent, value], kind), False)]) == ["k"]


@settings(deadline=None)
@given(_wide(_CHARACTERS).map("".join), st.integers(1, 17))
@example("a" * 15 + "\ud7ff" + "b", 16)
@example("\U0010ffff" * 17, 16)
def test_no_text_with_the_same_beginning_comes_after(text: str, length: int) -> None:
    above = text_above(text, length)
    if above is None:
        assert set(text[:length]) == {"\U0010ffff"}
    elif len(text) <= length:
        assert above == text
    else:
        assert len(above) <= length
        assert above.encode() > (text[:length] + "\U0010ffff" * 20).encode()
