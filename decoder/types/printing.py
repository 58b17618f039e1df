"""Prints typed Arrow arrays with the same text as PostgreSQL.

The settings are fixed: TimeZone UTC, DateStyle ISO, extra_float_digits 1, bytea_output hex.  A text that
`parsing` reads and this module prints again is the same to the last byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.compiled.arrays import elements
from slotlake.decoder.compiled.jit import frozen
from slotlake.decoder.types import printing_kernels as kernels
from slotlake.decoder.types.parsing import moment_form
from slotlake.decoder.types.shortest import laid_out, nearest_digits
from slotlake.decoder.types.slices import as_string, binary_array, slices_of

_FLOATS = {32: (24, 6), 64: (53, 15)}  # bits of the mantissa; first exponent printed scientifically


def print_string(values: pa.Array) -> pa.Array:
    """The texts themselves."""
    return values


def print_bool(values: pa.Array) -> pa.Array:
    """``t`` or ``f``."""
    letters: pa.Array = pc.if_else(values, pa.scalar("t"), pa.scalar("f"))
    return letters


def print_int(values: pa.Array) -> pa.Array:
    """Decimal digits."""
    return values.cast(pa.string())


def print_decimal(values: pa.Array) -> pa.Array:
    """With exactly as many digits after the point as the type's scale."""
    words = _fixed_width(values, np.uint64, 2).reshape(-1, 2)
    out, offsets = _room(len(values), kernels.DECIMAL_BYTES_MAX)
    valid = _valid(values)
    kernels.print_decimal(frozen(words), frozen(valid), values.type.scale, out, offsets)
    return _strings(out, offsets, valid)


def print_moment(values: pa.Array) -> pa.Array:
    """Print dates, timestamps or timestamptz.

    Raises:
        ValueError: one is outside the years 1 to 9999.
    """
    dtype = np.int32 if pa.types.is_date32(values.type) else np.int64
    numbers = _fixed_width(values, dtype, 1).astype(np.int64)
    out, offsets = _room(len(values), kernels.MOMENT_BYTES_MAX)
    valid = _valid(values)
    bad = kernels.print_moment(frozen(numbers), frozen(valid), moment_form(values.type), out, offsets)
    if bad >= 0:
        raise ValueError(f"row {bad}: a date or timestamp outside the years 1 to 9999")
    return _strings(out, offsets, valid)


def print_float(values: pa.Array) -> pa.Array:
    """Shortest digits that give the same value again and are nearer to it than to any other."""
    bits, fixed_below = _FLOATS[values.type.bit_width]
    shortest = slices_of(values.cast(pa.string()))
    out, offsets = _room(len(values), kernels.FLOAT_BYTES_MAX)
    midpoint = np.zeros(len(values), dtype=np.uint8)
    inputs = (frozen(shortest.data), frozen(shortest.start), frozen(shortest.length))
    kernels.print_float(*inputs, bits, fixed_below, out, offsets, midpoint)
    printed = _strings(out, offsets, shortest.present)
    return _reprinted(values, printed, midpoint, bits, fixed_below) if midpoint.any() else printed


def print_bytea(values: pa.Array) -> pa.Array:
    r"""``\x`` and two hexadecimal digits per byte."""
    slices = slices_of(values)
    offsets = np.zeros(len(slices) + 1, dtype=np.int64)
    np.cumsum(np.where(slices.present, 2 + 2 * slices.length.astype(np.int64), 0), out=offsets[1:])
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    inputs = (frozen(slices.data), frozen(slices.start), frozen(slices.length))
    kernels.print_hex(*inputs, frozen(offsets), out)
    return as_string(binary_array(out, offsets, slices.present))


def _reprinted(
    values: pa.Array, printed: pa.Array, midpoint: npt.NDArray[np.uint8], bits: int, fixed_below: int
) -> pa.Array:
    again: list[Any] = values.filter(pa.array(midpoint == 1)).to_pylist()
    texts_of = {value: _nearest(value, bits, fixed_below) for value in set(again)}  # one takes long
    texts = [texts_of[value] for value in again]
    reprinted: pa.Array = pc.replace_with_mask(printed, pa.array(midpoint == 1), pa.array(texts, pa.string()))
    return reprinted


def _nearest(value: float, bits: int, fixed_below: int) -> str:
    """One value's text, from `nearest_digits`."""
    sign = "-" if value < 0 else ""
    return sign + laid_out(*nearest_digits(abs(value), bits), fixed_below)


def _room(count: int, bytes_max: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    return np.empty(count * bytes_max, dtype=np.uint8), np.zeros(count + 1, dtype=np.int64)


def _valid(values: pa.Array) -> npt.NDArray[np.uint8]:
    flags: npt.NDArray[np.uint8] = values.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    return flags


def _fixed_width(values: pa.Array, dtype: type, words: int) -> npt.NDArray[np.generic]:
    data = values.buffers()[1]
    if data is None:
        return np.zeros(len(values) * words, dtype=dtype)
    first = values.offset * words
    return elements(data, np.dtype(dtype))[first : first + len(values) * words]


def _strings(
    out: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], valid: npt.NDArray[np.generic]
) -> pa.Array:
    return as_string(binary_array(out[: int(offsets[-1])].copy(), offsets, valid))
