"""Reads PostgreSQL's text of values into typed Arrow arrays.

It reads exactly the texts that the output functions print with DateStyle ISO, TimeZone UTC, bytea_output hex
(datetime.c EncodeDateTime, numeric.c numeric_out, bool.c boolout, varlena.c byteaout), and refuses
all others: a text that cannot be parsed raises `TextError`, it never becomes NULL.  A value that is
right but does not fit the typed column (infinity, BC, year 10000, NaN in a numeric) becomes NULL
there, and its text goes to the second array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from slotlake.decoder.compiled.arrays import arrow_buffer
from slotlake.decoder.compiled.jit import frozen, unsigned
from slotlake.decoder.types import moment_kernels as moments
from slotlake.decoder.types import text_kernels as kernels
from slotlake.decoder.types.slices import Slices, as_string, binary_array, gather, validity
from slotlake.decoder.types.text_error import TextError

Parsed = tuple[pa.Array, pa.Array | None]


def parse_string(slices: Slices, _: pa.DataType) -> Parsed:
    """The texts themselves, which must be UTF-8.

    Raises:
        TextError: a text is not UTF-8.
    """
    try:
        return as_string(gather(slices)), None
    except pa.ArrowInvalid:
        raise TextError("text that is not UTF-8") from None


def parse_bool(slices: Slices, _: pa.DataType) -> Parsed:
    """``t`` or ``f``."""
    out, valid = _empty(slices, np.uint8)
    _check(kernels.parse_bool(*_inputs(slices), out, valid), "boolean")
    return _flags(out, valid), None


def parse_int(slices: Slices, kind: pa.DataType) -> Parsed:
    """A decimal integer within the range of the Arrow type (int32, int64)."""
    out, valid = _empty(slices, np.int32 if kind.bit_width == 32 else np.int64)
    limit = 2 ** (kind.bit_width - 1) - 1
    _check(kernels.parse_int(*_inputs(slices), unsigned(limit), out, valid), "integer")
    return _fixed(out, valid, kind), None


def parse_float(slices: Slices, kind: pa.DataType) -> Parsed:
    """Floating point with shortest digits, NaN, Infinity, -Infinity.

    Raises:
        TextError: a text is not a number as the server prints it.
    """
    try:
        return as_string(gather(slices)).cast(kind), None
    except pa.ArrowInvalid:
        raise TextError("text that is not a valid floating-point number") from None


def parse_decimal(slices: Slices, kind: pa.DataType) -> Parsed:
    """A numeric with exactly the type's scale; NaN and numbers that do not fit go to the exact text."""
    assert isinstance(kind, pa.Decimal128Type)
    out = np.empty((len(slices), 2), dtype=np.uint64)
    valid, exact = np.empty(len(slices), np.uint8), np.empty(len(slices), np.uint8)
    bad = kernels.parse_decimal(*_inputs(slices), kind.precision, kind.scale, out, valid, exact)
    _check(bad, "numeric")
    return _fixed(out, valid, kind), _exact(slices, exact)


def parse_moment(slices: Slices, kind: pa.DataType) -> Parsed:
    """A date, timestamp or timestamptz; infinities and years outside 1-9999 go to the exact text."""
    out, valid = _empty(slices, np.int64)
    exact = np.empty(len(slices), np.uint8)
    form = moment_form(kind)
    bad = moments.parse_moment(*_inputs(slices), form, out, valid, exact)
    _check(bad, ("date", "timestamp", "timestamptz in UTC")[form])
    values = out.astype(np.int32) if form == moments.DATE else out
    return _fixed(values, valid, kind), _exact(slices, exact)


def parse_bytea(slices: Slices, _: pa.DataType) -> Parsed:
    r"""``\x`` and two hexadecimal digits per byte."""
    present = slices.present
    offsets = np.zeros(len(slices) + 1, dtype=np.int64)
    np.cumsum(np.where(present, np.maximum(slices.length.astype(np.int64) - 2, 0) // 2, 0), out=offsets[1:])
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    _check(kernels.parse_hex(*_inputs(slices), frozen(offsets), out), "bytea in hex format")
    return binary_array(out, offsets, present), None


def plain(kind: pa.DataType, values: npt.NDArray[np.uint8], valid: npt.NDArray[np.uint8]) -> pa.Array:
    """The array of values that `row_kernels` has read while it went over the rows.

    Args:
        kind: bool, int, date, timestamp or decimal.
        values: in Arrow's binary layout; bool one byte each.
        valid: uint8[n], 1 or 0 for each.
    """
    return _flags(values, valid) if pa.types.is_boolean(kind) else _fixed(values, valid, kind)


def moment_form(kind: pa.DataType) -> int:
    """Which of DATE, TIMESTAMP and TIMESTAMPTZ an Arrow type is."""
    if pa.types.is_date32(kind):
        return moments.DATE
    assert isinstance(kind, pa.TimestampType)
    return moments.TIMESTAMP if kind.tz is None else moments.TIMESTAMPTZ


def _inputs(slices: Slices) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    return frozen(slices.data), frozen(slices.start), frozen(slices.length)


def _empty(slices: Slices, dtype: type) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    return np.empty(len(slices), dtype=dtype), np.empty(len(slices), dtype=np.uint8)


def _check(bad_row: int, what: str) -> None:
    if bad_row >= 0:
        raise TextError(f"text that is not a valid {what}", bad_row)


def _fixed(values: npt.NDArray[np.generic], valid: npt.NDArray[np.uint8], kind: pa.DataType) -> pa.Array:
    bitmap, nulls = validity(valid)
    return pa.Array.from_buffers(kind, len(valid), [bitmap, arrow_buffer(values)], null_count=nulls)


def _flags(values: npt.NDArray[np.uint8], valid: npt.NDArray[np.uint8]) -> pa.Array:
    bitmap, nulls = validity(valid)
    bits = arrow_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(valid), [bitmap, bits], null_count=nulls)


def _exact(slices: Slices, exact: npt.NDArray[np.uint8]) -> pa.Array | None:
    if not exact.any():
        return None
    return as_string(gather(slices.only(exact)))
