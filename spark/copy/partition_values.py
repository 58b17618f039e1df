"""What Iceberg's transforms make of the values of a column, for all rows at once.

Source: the Iceberg table specification, "Partition Transforms" and "Appendix B: 32-bit Hash Requirements".
Times count from 1970 and round down, also before it; a truncated number is rounded down too; a text is
truncated to so many code points; a bucket is a hash without its sign, modulo the number of buckets.  NULL
becomes NULL.

Invariant: the values are those that Spark computes for the same row, or a reader would leave out a file that
has rows for it (tests compare them type by type).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import transforms
from pyiceberg.types import BinaryType, DecimalType, PrimitiveType, StringType

from slotlake.spark.layout import IDENTITY, Term

_MICROS = {"hour": 3_600_000_000, "day": 86_400_000_000}
_CALENDAR = {"year": "datetime64[Y]", "month": "datetime64[M]"}
_DIGITS_MAX = 76
_Ints = npt.NDArray[np.int64]


def transformed(values: pa.Array | pa.ChunkedArray, term: Term) -> pa.Array:
    """What a term makes of a column.

    Args:
        values: the column, in the Arrow type of the lake's files.
        term: the transform, of which the column's type is one that suits.

    Returns:
        As many values, NULL for NULL: numbers for times and buckets, else the column's type.
    """
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if term.transform == IDENTITY:
        return array
    if term.kind == "bucket":
        return _bucket(array, term.number)
    if term.kind == "truncate":
        return _truncated(array, term.number)
    return _with_nulls(array, _time(array, term.kind))


def _time(array: pa.Array, kind: str) -> _Ints:
    """Whole units since 1970, rounded down."""
    is_date = pa.types.is_date(array.type)
    numbers = _numbers(array)
    if kind in _MICROS and not is_date:
        return numbers // _MICROS[kind]
    days = numbers if is_date else numbers // _MICROS["day"]
    if kind == "day":
        return days
    return days.astype("datetime64[D]").astype(_CALENDAR[kind]).astype(np.int64)


def _numbers(array: pa.Array) -> _Ints:
    """Integers, dates (days) or moments (microseconds) as numbers; 0 for NULL."""
    width = pa.int32() if array.type.bit_width == 32 else pa.int64()
    whole = pc.fill_null(array.view(width), 0)
    return np.asarray(whole.to_numpy(zero_copy_only=False), np.int64)


def _with_nulls(array: pa.Array, numbers: npt.NDArray[Any], kind: pa.DataType | None = None) -> pa.Array:
    return pa.array(numbers, kind or pa.int32(), mask=array.is_null().to_numpy(zero_copy_only=False))


def _bucket(array: pa.Array, buckets: int) -> pa.Array:
    kind = array.type
    if pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        hashed = _murmur_of_longs(_numbers(array)).astype(np.int64)
        return _with_nulls(array, (hashed & 0x7FFFFFFF) % buckets)
    of_one: Any = transforms.BucketTransform(buckets).transform(_iceberg(kind))
    return _of_distinct(array, of_one, pa.int32())


def _iceberg(kind: pa.DataType) -> PrimitiveType:
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return StringType() if is_text else BinaryType()


def _of_distinct(array: pa.Array, of_one: Callable[[Any], Any], kind: pa.DataType) -> pa.Array:
    """A function of each value, called once for equal ones; NULL for NULL."""
    encoded = array.dictionary_encode()
    results = pa.array([of_one(value) for value in encoded.dictionary.to_pylist()], kind)
    return results.take(encoded.indices)


def _murmur_of_longs(numbers: _Ints) -> npt.NDArray[np.int32]:
    """Murmur3 (x86, 32 bits, seed 0) of eight bytes, the lowest first."""
    with np.errstate(over="ignore"):
        whole = numbers.view(np.uint64)
        hashed = np.zeros(len(numbers), np.uint32)
        for half in (whole & np.uint64(0xFFFFFFFF), whole >> np.uint64(32)):
            block = half.astype(np.uint32) * np.uint32(0xCC9E2D51)
            block = _rotated(block, 15) * np.uint32(0x1B873593)
            hashed = _rotated(hashed ^ block, 13) * np.uint32(5) + np.uint32(0xE6546B64)
        hashed ^= np.uint32(8)
        hashed = (hashed ^ (hashed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        hashed = (hashed ^ (hashed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        return (hashed ^ (hashed >> np.uint32(16))).view(np.int32)


def _rotated(numbers: npt.NDArray[np.uint32], by: int) -> npt.NDArray[np.uint32]:
    return (numbers << np.uint32(by)) | (numbers >> np.uint32(32 - by))


def _truncated(array: pa.Array, width: int) -> pa.Array:
    kind = array.type
    if pa.types.is_integer(kind):
        numbers = _numbers(array)
        # A number next to the smallest of its type goes round, as in Java.
        rounded = (numbers - numbers % width).astype(kind.to_pandas_dtype())
        return _with_nulls(array, rounded, kind)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts: pa.Array = pc.utf8_slice_codeunits(array, 0, width)
        return texts
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        first_bytes: pa.Array = pc.binary_slice(array, 0, width)
        return first_bytes
    of_one: Any = transforms.TruncateTransform(width).transform(_iceberg(kind))
    return _of_distinct(array, of_one, pa.decimal256(_DIGITS_MAX, kind.scale))  # -99 becomes -100


def in_manifest(values: pa.Array) -> list[Any]:
    """Values as a manifest has them: dates as days, moments as microseconds since 1970."""
    if pa.types.is_date(values.type):
        values = values.view(pa.int32())
    elif pa.types.is_timestamp(values.type):
        values = values.view(pa.int64())
    return list(values.to_pylist())
