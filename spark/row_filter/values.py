"""Values of a row filter while it is evaluated: one numpy array per expression, and which are NULL.

Invariant: a value here is PostgreSQL's value, infinities, NaN and years beyond 9999 included: where the
change log's typed column cannot hold it, its exact text is read.  Where a value is NULL, the array
holds something harmless of the same kind.

    bool                              numpy bool
    int2, int4, int8                  int64
    float4, float8                    float32, float64
    numeric                           Decimal objects; the exponent is the display scale
    text, bpchar, uuid                str objects; a bpchar keeps its blanks
    bytea                             bytes objects
    date                              int64: days since 2000-01-01, as PostgreSQL counts
    timestamp, timestamptz            int64: microseconds since 2000-01-01
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from slotlake.decoder.compiled.arrays import python_values
from slotlake.decoder.types import oids
from slotlake.spark.row_filter.parse import TypeName

Array = np.ndarray[Any, Any]

KINDS_BY_OID = {
    oids.BOOL: "bool", oids.BYTEA: "bytea", oids.INT8: "int8", oids.INT2: "int2", oids.INT4: "int4",
    oids.TEXT: "text", oids.FLOAT4: "float4", oids.FLOAT8: "float8", oids.BPCHAR: "bpchar",
    oids.VARCHAR: "text", oids.DATE: "date", oids.TIMESTAMP: "timestamp", oids.TIMESTAMPTZ: "timestamptz",
    oids.NUMERIC: "numeric", oids.UUID: "uuid",
}  # fmt: skip
KINDS_BY_NAME = {
    "boolean": "bool", "bytea": "bytea", "bigint": "int8", "smallint": "int2", "integer": "int4",
    "text": "text", "real": "float4", "double precision": "float8", "bpchar": "bpchar",
    "character": "bpchar", "character varying": "text", "date": "date",
    "timestamp without time zone": "timestamp", "timestamp with time zone": "timestamptz",
    "numeric": "numeric", "uuid": "uuid",
}  # fmt: skip
INTEGERS = ("int2", "int4", "int8")
FLOATS = ("float4", "float8")
MOMENTS = ("timestamp", "timestamptz")
TEXTS = ("text", "bpchar")
INTEGER_BITS = {"int2": 16, "int4": 32, "int8": 64}

_DTYPES: dict[str, Any] = {"bool": np.bool_, "float4": np.float32, "float8": np.float64}
_DTYPES |= dict.fromkeys((*INTEGERS, "date", *MOMENTS), np.int64)
_HARMLESS: dict[str, Any] = {"numeric": Decimal(1), "bytea": b""}
_POSTGRES_EPOCH_DAY = 10957  # 2000-01-01, counted from 1970-01-01
_DAY = 86_400_000_000
_POSTGRES_EPOCH = _POSTGRES_EPOCH_DAY * _DAY
_EPOCH_JULIAN = 2451545
# timestamp.h: what stands for the infinities; also of dates, which have 64 bits here.
FOREVER, NEVER = np.iinfo(np.int64).max, np.iinfo(np.int64).min
_ARRAY_ITEM = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[^",{}]*?)\s*(?:,|$)', re.DOTALL)
_MOMENT = re.compile(
    r"(\d+)-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:([+-])(\d\d)(?::(\d\d))?)?)?( BC)?"
)


@dataclass(frozen=True)
class Vector:
    """The values of one expression, and bool per value: it is NULL."""

    values: Array
    null: Array

    def __getitem__(self, rows: Array) -> Vector:
        return Vector(self.values[rows], self.null[rows])

    def __len__(self) -> int:
        return len(self.null)


@dataclass(frozen=True)
class Source:
    """A column as the change log has it: its kind, typed values, and exact texts where there are any."""

    kind: str
    typed: pa.Array
    exact: pa.Array | None = None

    @cached_property
    def vector(self) -> Vector:
        return read(self.kind, self.typed, self.exact)


class Frame:
    """Some rows; a column's values are read when an expression first needs them."""

    def __init__(self, size: int, sources: Mapping[str, Source], rows: Array | None = None) -> None:
        self.size, self._sources, self._rows = size, sources, rows

    def column(self, name: str) -> Vector:
        vector = self._sources[name].vector
        return vector if self._rows is None else vector[self._rows]

    def only(self, chosen: Array) -> Frame:
        """The rows where ``chosen`` (bool per row) is set."""
        rows = np.flatnonzero(chosen)
        return Frame(len(rows), self._sources, rows if self._rows is None else self._rows[rows])


def nothing(kind: str, size: int) -> Vector:
    """NULLs."""
    return Vector(_filled(kind, size), np.ones(size, np.bool_))


def constant(kind: str, value: Any, size: int) -> Vector:
    """Return one value for every row.

    Args:
        value: the value; None for NULL.
    """
    if value is None:
        return nothing(kind, size)
    values = _filled(kind, size)
    values[:] = value
    return Vector(values, np.zeros(size, np.bool_))


def empty(kind: str, size: int) -> Array:
    """Room for values, harmless ones so far."""
    return _filled(kind, size)


def _filled(kind: str, size: int) -> Array:
    if kind in _DTYPES:
        return np.zeros(size, _DTYPES[kind])
    values = np.empty(size, object)
    values[:] = _HARMLESS.get(kind, "")
    return values


def literal(kind: str, text: str) -> Any:
    """A value from the text that PostgreSQL prints for it (in its ISO style, time zone UTC)."""
    return _READERS[kind](text)


def kind_of(name: TypeName) -> str | None:
    """The kind of a type that can be evaluated here; None for others."""
    return None if name.array else KINDS_BY_NAME.get(name.name)


def read(kind: str, typed: pa.Array, exact: pa.Array | None) -> Vector:
    """Return a column of the change log as values.

    Args:
        exact: the exact texts of values that do not fit; None if all fit.
    """
    is_known = np.asarray(typed.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    values = _typed(kind, typed)
    if exact is not None:
        text_rows = np.flatnonzero(exact.is_valid().to_numpy(zero_copy_only=False))
        for row, text in zip(text_rows, python_values(exact.take(pa.array(text_rows))), strict=True):
            values[row] = literal(kind, text)
        is_known[text_rows] = True
    return Vector(values, ~is_known)


def _typed(kind: str, typed: pa.Array) -> Array:
    if kind == "numeric":
        return _through_dictionary(typed, Decimal, Decimal(1))
    if kind in ("text", "bpchar", "uuid", "bytea"):
        return _through_dictionary(typed, lambda value: value, _HARMLESS.get(kind, ""))
    if kind == "bool":
        return np.array(typed.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)
    if kind == "date":
        days = typed.cast(pa.int32()).fill_null(_POSTGRES_EPOCH_DAY)
        return np.array(days.to_numpy(zero_copy_only=False), np.int64) - _POSTGRES_EPOCH_DAY
    if kind in MOMENTS:
        microseconds = typed.cast(pa.int64()).fill_null(_POSTGRES_EPOCH)
        return np.array(microseconds.to_numpy(zero_copy_only=False), np.int64) - _POSTGRES_EPOCH
    return np.array(typed.fill_null(0).to_numpy(zero_copy_only=False), _DTYPES[kind])


def _through_dictionary(typed: pa.Array, convert: Callable[[Any], Any], harmless: Any) -> Array:
    """Objects, each distinct value made once."""
    encoded = typed.dictionary_encode()
    distinct = np.empty(len(encoded.dictionary) + 1, object)
    for at, value in enumerate(encoded.dictionary.to_pylist()):
        distinct[at] = convert(value)
    distinct[-1] = harmless
    indices = encoded.indices.fill_null(len(distinct) - 1).to_numpy(zero_copy_only=False)
    values: Array = distinct[indices]
    return values


def _julian(year: int, month: int, day: int) -> int:
    """Days since 2000-01-01 of a day of the proleptic Gregorian calendar (datetime.c date2j)."""
    year, month = (year + 4800, month + 1) if month > 2 else (year + 4799, month + 13)
    century = year // 100
    julian = year * 365 - 32167 + year // 4 - century + century // 4
    return julian + 7834 * month // 256 + day - _EPOCH_JULIAN


def _days(text: str) -> int:
    return _boundless(text) or _moment(text) // _DAY


def _boundless(text: str) -> int:
    return {"infinity": FOREVER, "-infinity": NEVER}.get(text, 0)


def _moment(text: str) -> int:
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise ValueError("not a date or time as PostgreSQL prints it")
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    fraction, sign, zone_hour, zone_minute, before_christ = match.groups()[6:]
    seconds = hour * 3600 + minute * 60 + second
    offset = int(zone_hour or 0) * 3600 + int(zone_minute or 0) * 60
    seconds -= -offset if sign == "-" else offset
    days = _julian(1 - year if before_christ else year, month, day)
    return days * _DAY + seconds * 1_000_000 + int((fraction or "").ljust(6, "0"))


def _microseconds(text: str) -> int:
    return _boundless(text) or _moment(text)


def _boolean(text: str) -> bool:
    return {"true": True, "t": True, "false": False, "f": False}[text]


def _bytes(text: str) -> bytes:
    if not text.startswith("\\x"):
        raise ValueError("not in the hex format")
    return bytes.fromhex(text[2:])


def _text(text: str) -> str:
    return text


def array_items(text: str) -> list[str | None] | None:
    """The elements of an array of one dimension as array_out prints it."""
    if not (text.startswith("{") and text.endswith("}")):
        return None
    body, at = text[1:-1], 0
    items: list[str | None] = []
    while body and at <= len(body):
        match = _ARRAY_ITEM.match(body, at)
        if match is None:
            return None
        item = match[1]
        quoted = item.startswith('"')
        items.append(
            re.sub(r"\\(.)", r"\1", item[1:-1], flags=re.DOTALL)
            if quoted
            else None
            if item == "NULL"
            else item
        )
        at = match.end()
        if not match[0].endswith(","):
            break
    return items if at == len(body) else None


_READERS: dict[str, Callable[[str], Any]] = {
    "bool": _boolean, "bytea": _bytes, "numeric": Decimal, "date": _days,
    "float4": np.float32, "float8": float, "text": _text, "bpchar": _text, "uuid": _text,
    **dict.fromkeys(INTEGERS, int), **dict.fromkeys(MOMENTS, _microseconds),
}  # fmt: skip
