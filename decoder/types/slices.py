"""The spans of a column's values: the input of all type conversions.

A `Slices` is n values in one byte buffer.  Replication messages, COPY data and Arrow string arrays
become slices without a copy of their bytes.  Invariant: for every i with ``length[i] >= 0``,
``start[i] + length[i] <= len(data)``; the code that builds a `Slices` has checked it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from slotlake.decoder.compiled.arrays import arrow_buffer, elements
from slotlake.decoder.compiled.jit import Bytes, Ints, Lengths, compiled, frozen
from slotlake.decoder.compiled.memory import bare
from slotlake.decoder.compiled.wide import one_array
from slotlake.decoder.compiled.words import AHEAD, copy_bytes, fetch_ahead

NULL = -1  # the value is NULL
UNCHANGED = -2  # the server did not send the value: unchanged TOAST
MISSING = -3  # the row has no such tuple

_INT32_MAX = 2**31 - 1
_SPARE = 16  # bytes after a copy, because it is written in steps of sixteen bytes


@dataclass(frozen=True)
class Slices:
    """n byte strings: ``data[start[i] : start[i] + length[i]]``; a negative length means no value."""

    data: Bytes
    start: Ints
    length: Lengths

    def __len__(self) -> int:
        return len(self.length)

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Which values have bytes."""
        return self.length >= 0

    def only(self, mask: npt.NDArray[Any]) -> Slices:
        """The same values where the mask is set, NULL elsewhere."""
        return Slices(self.data, self.start, np.where(mask, self.length, np.int32(NULL)).astype(np.int32))


def slices_of(values: pa.Array | pa.ChunkedArray) -> Slices:
    """View an Arrow string or binary array (32 or 64 bit offsets) as slices.

    Raises:
        TypeError: the array is neither of text nor of bytes.
    """
    array = one_array(values)
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    if not wide and not (pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
        raise TypeError(f"text values expected, not {array.type}")
    buffers, count = array.buffers(), len(array)
    stored: npt.NDArray[Any] = elements(buffers[1], np.int64) if wide else elements(buffers[1], np.int32)
    offsets = stored[array.offset : array.offset + count + 1].astype(np.int64)
    if count == 0:
        offsets = np.zeros(1, dtype=np.int64)
    length = np.diff(offsets).astype(np.int32)
    if array.null_count:
        length[array.is_null().to_numpy(zero_copy_only=False)] = NULL
    return Slices(frozen(elements(buffers[2], np.uint8)), frozen(offsets[:-1]), frozen(length))


def validity(valid: npt.NDArray[Any]) -> tuple[pa.Buffer | None, int]:
    """Arrow's validity bitmap and null count from one flag per value; no bitmap if all are valid."""
    nulls = len(valid) - int(np.count_nonzero(valid))
    if nulls == 0:
        return None, 0
    return arrow_buffer(np.packbits(valid, bitorder="little")), nulls


def gather(slices: Slices) -> pa.Array:
    """Copy the values into one Arrow binary array; large_binary if they exceed 2 GiB."""
    length, count = frozen(slices.length), len(slices)
    size, nulls = _measure(length)
    wide = size > _INT32_MAX
    offsets: npt.NDArray[Any] = np.empty(count + 1, dtype=np.int64 if wide else np.int32)
    out = np.empty(size + _SPARE, dtype=np.uint8)
    _copy(frozen(slices.data), frozen(slices.start), length, offsets, out)
    bitmap = arrow_buffer(np.packbits(slices.present, bitorder="little")) if nulls else None
    buffers = [bitmap, arrow_buffer(offsets), arrow_buffer(out[:size])]
    return pa.Array.from_buffers(pa.large_binary() if wide else pa.binary(), count, buffers, null_count=nulls)


def binary_array(data: Bytes, offsets: Ints, valid: npt.NDArray[Any]) -> pa.Array:
    """Return an Arrow binary array over these buffers.

    Args:
        data: uint8[bytes].
        offsets: int64[n + 1].
        valid: bool[n], or uint8[n].
    """
    bitmap, nulls = validity(valid)
    wide = int(offsets[-1]) > _INT32_MAX
    kind = pa.large_binary() if wide else pa.binary()
    stored = offsets if wide else offsets.astype(np.int32)
    buffers = [bitmap, arrow_buffer(stored), arrow_buffer(data)]
    return pa.Array.from_buffers(kind, len(valid), buffers, null_count=nulls)


def as_string(values: pa.Array) -> pa.Array:
    """Binary to string without copying; raises pa.ArrowInvalid if a value is not UTF-8."""
    return values.cast(pa.large_string() if pa.types.is_large_binary(values.type) else pa.string())


@compiled
def _measure(length: Lengths) -> tuple[int, int]:
    """The size of all values in bytes, and the number of nulls."""
    size = nulls = 0
    for i in range(len(length)):
        size += max(length[i], 0)
        nulls += length[i] < 0
    return size, nulls


@compiled
def _copy(data: Bytes, start: Ints, length: Lengths, offsets: Ints, out: Bytes) -> None:
    """Copy the values one after the other, and note where each begins and the last ends (int32 or int64)."""
    count, data_end, out_end, at = len(length), len(data), len(out), 0
    data, start, length, offsets, out = bare(data), bare(start), bare(length), bare(offsets), bare(out)
    for i in range(count):
        offsets[i] = at
        fetch_ahead(data, start[min(i + AHEAD, count - 1)])
        size = length[i] if length[i] > 0 else 0  # noqa: FURB136 - one comparison for numba, not a call
        copy_bytes(data, start[i], start[i] + size, data_end, out, at, out_end)
        at += size
    offsets[count] = at
