"""Reads columns of binary values into typed Arrow arrays; the result is the same as from their text.

The counterpart of `parsing`: one reader for each typed row of the table of types, and one for all types
that the lake stores as text.  A value that does not fit the typed column becomes NULL there, and its exact
text goes to the second array.  Bytes that are not a value of the type raise `TextError` with their row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from slotlake.decoder.compiled.arrays import arrow_buffer, python_values
from slotlake.decoder.compiled.jit import frozen
from slotlake.decoder.types.binary import kernels, moments, network, numbers, numeric_kernels, search
from slotlake.decoder.types.binary.reading import utf8
from slotlake.decoder.types.binary.texts import printed_columns
from slotlake.decoder.types.binary.values import binary_printer
from slotlake.decoder.types.catalog import TypeCatalog
from slotlake.decoder.types.parsing import Parsed, parse_string
from slotlake.decoder.types.slices import Slices, as_string, binary_array, gather, validity
from slotlake.decoder.types.text_error import TextError

_PRINTED_ONCE_MAX = 1000
_TEXT_CHARS_MAX = 2**31 - 1  # for one column in one chunk: a few bytes can mean 131,072 digits


def read_bool(slices: Slices, _: pa.DataType) -> Parsed:
    """One byte."""
    out, valid = _empty(slices, np.uint8)
    _check(kernels.read_bool(*_inputs(slices), out, valid), "boolean")
    bitmap, nulls = validity(valid)
    bits = arrow_buffer(np.packbits(out, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(slices), [bitmap, bits], null_count=nulls), None


def read_int2(slices: Slices, kind: pa.DataType) -> Parsed:
    """Two bytes."""
    return _plain(slices, kind, 2, "smallint")


def read_int4(slices: Slices, kind: pa.DataType) -> Parsed:
    """Four bytes, signed."""
    return _plain(slices, kind, 4, "integer")


def read_unsigned4(slices: Slices, kind: pa.DataType) -> Parsed:
    """Four bytes, unsigned."""
    return _plain(slices, kind, -4, "number of 4 bytes")


def read_int8(slices: Slices, kind: pa.DataType) -> Parsed:
    """Eight bytes."""
    return _plain(slices, kind, 8, "bigint")


def read_float(slices: Slices, kind: pa.DataType) -> Parsed:
    """IEEE 754 of both widths; every NaN becomes the NaN that the text ``NaN`` gives."""
    double = kind.bit_width == 64
    out, valid = _empty(slices, np.int64 if double else np.int32)
    bad = kernels.read_integer(*_inputs(slices), 8 if double else 4, out, valid)
    _check(bad, "double precision" if double else "real")
    values = out.view(np.float64 if double else np.float32)
    values[np.isnan(values)] = np.nan
    return _fixed(values, valid, kind), None


def read_decimal(slices: Slices, kind: pa.DataType) -> Parsed:
    """A numeric with exactly the type's scale; NaN and numbers that do not fit go to the exact text."""
    assert isinstance(kind, pa.Decimal128Type)
    out = np.empty((len(slices), 2), dtype=np.uint64)
    valid, exact = np.empty(len(slices), np.uint8), np.empty(len(slices), np.uint8)
    bad = kernels.read_decimal(*_inputs(slices), kind.precision, kind.scale, out, valid, exact)
    _check(bad, "numeric")
    return _fixed(out, valid, kind), _exact(slices, exact, numbers.numeric)


def read_date(slices: Slices, kind: pa.DataType) -> Parsed:
    """Days; infinities and years outside 1-9999 go to the exact text."""
    out, valid = _empty(slices, np.int32)
    exact = np.empty(len(slices), np.uint8)
    _check(kernels.read_date(*_inputs(slices), out, valid, exact), "date")
    return _fixed(out, valid, kind), _exact(slices, exact, moments.date)


def read_moment(slices: Slices, kind: pa.DataType) -> Parsed:
    """Microseconds; infinities and years outside 1-9999 go to the exact text."""
    out, valid = _empty(slices, np.int64)
    exact = np.empty(len(slices), np.uint8)
    _check(kernels.read_moment(*_inputs(slices), out, valid, exact), "timestamp")
    assert isinstance(kind, pa.TimestampType)
    printer = moments.timestamp if kind.tz is None else moments.timestamptz
    return _fixed(out, valid, kind), _exact(slices, exact, printer)


def read_bytea(slices: Slices, _: pa.DataType) -> Parsed:
    """The bytes themselves."""
    return gather(slices), None


def read_as_text(slices: Slices, oid: int, catalog: TypeCatalog) -> pa.Array:
    """Return the canonical texts of a type that the lake stores as text."""
    printer = _printer(slices, oid, catalog)
    if printer is utf8:
        return parse_string(slices, pa.string())[0]
    if printer is search.versioned:
        return parse_string(_behind_version(slices), pa.string())[0]
    if printer is network.uuid:
        return _uuids(slices)
    if printer is numbers.numeric:
        return _numerics(slices)
    fast = printed_columns(slices, oid, catalog, lambda some: _printed(some, printer))
    return _printed(slices, printer) if fast is None else fast


def _printer(slices: Slices, oid: int, catalog: TypeCatalog) -> Callable[[bytes], str]:
    try:
        return binary_printer(oid, catalog)
    except TextError as error:
        present = np.flatnonzero(slices.present)
        if len(present) == 0:  # only NULLs can be read if the type is not known
            return str
        raise TextError(error.reason, int(present[0])) from None


def _behind_version(slices: Slices) -> Slices:
    present = slices.present
    odd = present & (slices.length < 1)
    first = slices.data[np.where(present & ~odd, slices.start, 0)] if len(slices.data) else np.zeros(1)
    odd |= present & (first != 1)
    if odd.any():
        raise TextError("a binary value with an unknown version", int(np.argmax(odd)))
    length = np.where(present, slices.length - 1, slices.length).astype(np.int32)
    return Slices(slices.data, slices.start + 1, length)


def _uuids(slices: Slices) -> pa.Array:
    present = slices.present
    offsets = np.zeros(len(slices) + 1, dtype=np.int64)
    np.cumsum(np.where(present, 36, 0), out=offsets[1:])
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    _check(kernels.print_uuid(*_inputs(slices), frozen(offsets), out), "uuid")
    return as_string(binary_array(out, offsets, present))


def _numerics(slices: Slices) -> pa.Array:
    sizes = np.zeros(len(slices), dtype=np.int64)
    _check(numeric_kernels.measure(*_inputs(slices), sizes), "numeric")
    offsets = np.zeros(len(slices) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    if offsets[-1] > _TEXT_CHARS_MAX:
        raise _too_long(int(np.searchsorted(offsets, _TEXT_CHARS_MAX)) - 1)
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    numeric_kernels.print_numerics(*_inputs(slices), frozen(offsets), out)
    return as_string(binary_array(out, offsets, slices.present))


def _too_long(row: int) -> TextError:
    return TextError("binary values whose texts are together longer than 2 GiB", row)


def _printed(slices: Slices, printer: Callable[[bytes], str]) -> pa.Array:
    """Print values one by one; equal neighbours, which are frequent, are printed once."""
    data, chars = slices.data, 0
    texts: list[str | None] = []
    before, text = None, ""
    for row, (start, length) in enumerate(zip(slices.start.tolist(), slices.length.tolist(), strict=True)):
        if length < 0:
            texts.append(None)
            continue
        value = data[start : start + length].tobytes()
        if value != before:
            text, before = _one(printer, value, row), value
        chars += len(text)
        if chars > _TEXT_CHARS_MAX:
            raise _too_long(row)
        texts.append(text)
    wide = 4 * chars > _TEXT_CHARS_MAX and sum(len((t or "").encode()) for t in texts) > _TEXT_CHARS_MAX
    return pa.array(texts, pa.large_string() if wide else pa.string())


def _one(printer: Callable[[bytes], str], value: bytes, row: int) -> str:
    try:
        return printer(value)
    except TextError as error:
        raise TextError(error.reason, row) from None


def _exact(slices: Slices, exact: npt.NDArray[np.uint8], printer: Callable[[bytes], str]) -> pa.Array | None:
    """The exact texts of a typed column; there may be many, but few different ones (infinity, NaN)."""
    if not exact.any():
        return None
    values = gather(slices.only(exact)).dictionary_encode()
    if len(values.dictionary) > _PRINTED_ONCE_MAX:
        return _printed(slices.only(exact), printer)
    try:
        texts = [_one(printer, value, code) for code, value in enumerate(python_values(values.dictionary))]
    except TextError as error:
        raise TextError(error.reason, values.indices.index(error.row).as_py()) from None
    if len(slices) * max(map(len, texts)) > _TEXT_CHARS_MAX:
        return _printed(slices.only(exact), printer)
    return pa.array(texts, pa.string()).take(values.indices)


def _plain(slices: Slices, kind: pa.DataType, size: int, what: str) -> Parsed:
    out, valid = _empty(slices, kind.to_pandas_dtype())
    _check(kernels.read_integer(*_inputs(slices), size, out, valid), what)
    return _fixed(out, valid, kind), None


def _inputs(slices: Slices) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    return frozen(slices.data), frozen(slices.start), frozen(slices.length)


def _empty(slices: Slices, dtype: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    return np.empty(len(slices), dtype=dtype), np.empty(len(slices), dtype=np.uint8)


def _check(bad_row: int, what: str) -> None:
    if bad_row >= 0:
        raise TextError(f"a binary value that is not a valid {what}", bad_row)


def _fixed(values: npt.NDArray[Any], valid: npt.NDArray[np.uint8], kind: pa.DataType) -> pa.Array:
    bitmap, nulls = validity(valid)
    return pa.Array.from_buffers(kind, len(valid), [bitmap, arrow_buffer(values)], null_count=nulls)
