"""The text of a result's values: what PostgreSQL prints for them, whichever engine gave them.

Arrays, maps and structs are JSON: a number and a boolean as JSON has them, NULL as null (of a struct's fields
too), anything else as a string of its text.  A small column is printed by the plain printers, a large one by
the compiled ones, which take a second to import; both give the same text, and a test holds them equal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from slotlake.decoder.errors import LakeError
from slotlake.decoder.types import oids
from slotlake.decoder.types.binary.moments import (
    EPOCH_DAYS,
    date_text,
    duration_text,
    interval_text,
    moment_text,
)
from slotlake.decoder.types.binary.numbers import float4_text, float8_text
from slotlake.decoder.types.text_error import TextError

Texts = list[str | None]
_COMPILED_FROM = 20_000  # values of one column
_EPOCH_MICROSECONDS = EPOCH_DAYS * 86_400_000_000
# The infinities of DuckDB's dates and timestamps.
_DAYS_INFINITE, _MOMENT_INFINITE = 2**31 - 1, 2**63 - 1
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def rows_of(result: pa.Table) -> list[tuple[str | None, ...]]:
    """Return the rows of a result as text, None for NULL.

    Raises:
        LakeError: a value has no text of PostgreSQL's.
    """
    return list(zip(*(texts(column) for column in result.columns), strict=True))


def texts(column: pa.ChunkedArray) -> Texts:
    """Return the text of each value of a column.

    Raises:
        LakeError: a value has no text of PostgreSQL's.
    """
    return [text for chunk in column.chunks for text in _printed(chunk)]


def _printed(array: pa.Array) -> Texts:
    array = _plain(array)
    if _is_nested(array.type):
        return _json(array)
    if len(array) >= _COMPILED_FROM:
        compiled = _compiled(array)
        if compiled is not None:
            return compiled
    try:
        return _leaf(array)
    except TextError as error:
        raise LakeError(
            f"a value of the result has no text in PostgreSQL: {error.reason}",
            where=f"a column of type {array.type}",
            way_out="convert the column in the query to a type that it fits, for example to text",
        ) from None


def _plain(array: pa.Array) -> pa.Array:
    """Without what Arrow adds to a type: a name of an extension, a dictionary."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind))


# -- one value ----------------------------------------------------------------------------------------------


def _leaf(array: pa.Array) -> Texts:
    kind = array.type
    if pa.types.is_date32(kind):
        return _each(array.view(pa.int32()).to_pylist(), _date)
    if pa.types.is_timestamp(kind):
        zone = "" if kind.tz is None else "+00"
        numbers = array.view(pa.int64()).to_pylist()
        return _each(numbers, lambda number: _moment(number, kind.unit, zone))
    if pa.types.is_time64(kind):
        return _each(array.view(pa.int64()).to_pylist(), lambda number: _time(number, kind.unit))
    values = array.to_pylist()
    return values if _is_text(kind) else _each(values, _printer(kind))


def _each(values: Iterable[Any], printer: Callable[[Any], str]) -> Texts:
    return [None if value is None else printer(value) for value in values]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind))


def _printer(kind: pa.DataType) -> Callable[[Any], str]:
    """How a Python value of an Arrow type is printed; ``str`` for types that PostgreSQL does not have."""
    return next((printer for test, printer in _PRINTERS if test(kind)), str)


def _date(days: int) -> str:
    if abs(days) == _DAYS_INFINITE:
        return "infinity" if days > 0 else "-infinity"
    return date_text(days - EPOCH_DAYS)


def _moment(number: int, unit: str, zone: str) -> str:
    if abs(number) == _MOMENT_INFINITE:
        return "infinity" if number > 0 else "-infinity"
    return moment_text(number * 1_000_000 // _PER_SECOND[unit] - _EPOCH_MICROSECONDS, zone)


def _time(number: int, unit: str) -> str:
    return duration_text(number * 1_000_000 // _PER_SECOND[unit])


def _months_days_nanoseconds(value: Any) -> str:
    return interval_text(value.nanoseconds // 1000, value.days, value.months)


_PRINTERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], str]], ...] = (
    (pa.types.is_boolean, lambda value: "t" if value else "f"),
    (pa.types.is_integer, str),
    (pa.types.is_float64, float8_text),
    (pa.types.is_float32, float4_text),
    (pa.types.is_decimal, lambda value: f"{value:f}"),
    (pa.types.is_binary, lambda value: f"\\x{value.hex()}"),
    (pa.types.is_large_binary, lambda value: f"\\x{value.hex()}"),
    (pa.types.is_interval, _months_days_nanoseconds),
)


# -- many values --------------------------------------------------------------------------------------------


def _compiled(array: pa.Array) -> Texts | None:
    """The same by the loops of the decoder; None for a type, or values, that they do not print."""
    from slotlake.decoder.types.table import column_type, to_text

    oid, typmod = _postgres_type(array.type)
    if oid is None:
        return None
    target = column_type(oid, typmod)
    try:
        return list(to_text(array.cast(target.arrow), None, target).to_pylist())
    except ValueError:  # a year beyond 1 to 9999
        return None


def _postgres_type(kind: pa.DataType) -> tuple[int | None, int]:
    if pa.types.is_decimal128(kind):
        return oids.NUMERIC, ((kind.precision << 16) | kind.scale) + 4
    if pa.types.is_timestamp(kind):
        moment = oids.TIMESTAMP if kind.tz is None else oids.TIMESTAMPTZ
        return (moment if kind.unit == "us" else None), -1
    if pa.types.is_signed_integer(kind):
        return oids.INT8, -1
    return next((oid for test, oid in _OIDS if test(kind)), None), -1


_OIDS: tuple[tuple[Callable[[pa.DataType], bool], int], ...] = (
    (pa.types.is_boolean, oids.BOOL),
    (pa.types.is_binary, oids.BYTEA),
    (pa.types.is_large_binary, oids.BYTEA),
    (pa.types.is_float32, oids.FLOAT4),
    (pa.types.is_float64, oids.FLOAT8),
    (pa.types.is_date32, oids.DATE),
)


# -- arrays, maps, structs ----------------------------------------------------------------------------------


def _json(values: pa.Array) -> Texts:
    """JSON of each value; None for NULL."""
    array: Any = _plain(values)
    kind = array.type
    if pa.types.is_map(kind):
        return _lists(array, _entries(array), "{}")
    if pa.types.is_struct(kind):
        return _structs(array)
    if pa.types.is_fixed_size_list(kind):
        array = array.cast(pa.list_(kind.value_type))
    if _is_nested(array.type):
        return _lists(array, _json(array.values), "[]")
    return _json_leaf(array)


def _json_leaf(array: pa.Array) -> Texts:
    kind = array.type
    values = _printed(array)
    if pa.types.is_boolean(kind):
        return _each(values, {"t": "true", "f": "false"}.__getitem__)
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return values
    if pa.types.is_floating(kind):
        return _each(values, lambda text: text if math.isfinite(float(text)) else json.dumps(text))
    return _each(values, lambda text: json.dumps(text, ensure_ascii=False))


def _lists(array: Any, inside: Texts, brackets: str) -> Texts:
    """Each list, or map, of the texts of what is inside; ``inside`` belongs to all of the values' buffer."""
    offsets = array.offsets.to_pylist()
    bounds = zip(offsets, offsets[1:], array.is_valid().to_pylist(), strict=False)
    return [
        f"{brackets[0]}{','.join(text or 'null' for text in inside[start:end])}{brackets[1]}"
        if valid
        else None
        for start, end, valid in bounds
    ]


def _entries(array: Any) -> Texts:
    keys = [json.dumps(key, ensure_ascii=False) for key in _printed(array.keys)]
    return [f"{key}:{value or 'null'}" for key, value in zip(keys, _json(array.items), strict=True)]


def _structs(array: Any) -> Texts:
    names = [json.dumps(field.name, ensure_ascii=False) for field in array.type]
    columns = [_json(array.field(number)) for number in range(array.type.num_fields)]
    values = zip(*columns, strict=True) if columns else ((),) * len(array)
    return [
        "{" + ",".join(f"{name}:{text or 'null'}" for name, text in zip(names, row, strict=True)) + "}"
        if valid
        else None
        for row, valid in zip(values, array.is_valid().to_pylist(), strict=True)
    ]
