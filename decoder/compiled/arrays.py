"""numpy arrays as Arrow arrays, without a copy.

``pyarrow.array`` and ``Array.to_numpy`` look whether pandas is there, and so import it: over a second in the
first batch of every process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_TYPES = {
    np.dtype(kind): pa.from_numpy_dtype(kind)
    for kind in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint32, np.uint64)
}

_NUMPY = {arrow_type: kind for kind, arrow_type in _TYPES.items()}


def arrow(values: npt.NDArray[np.generic]) -> pa.Array:
    """An Arrow array without nulls over the same memory (bool: packed, so copied).

    Args:
        values: one-dimensional, of integers or bool.
    """
    if values.dtype == np.bool_:
        packed = np.packbits(values.astype(np.bool_), bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(packed)])
    whole = np.ascontiguousarray(values)
    return pa.Array.from_buffers(_TYPES[values.dtype], len(values), [None, pa.py_buffer(whole)])


def integers(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """The opposite, for integers without nulls: a view of the same memory, read-only."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    kind = _NUMPY[values.type]
    buffer = values.buffers()[1]
    if len(values) == 0 or buffer is None:
        return np.empty(0, kind)
    return np.frombuffer(buffer, kind, len(values), values.offset * kind.itemsize)


def valid(values: pa.Array) -> npt.NDArray[np.bool_]:
    """bool per value: it is not null."""
    if values.null_count == 0:
        return np.ones(len(values), np.bool_)
    bitmap = np.frombuffer(values.buffers()[0], np.uint8)
    bits = np.unpackbits(bitmap, bitorder="little", count=values.offset + len(values))
    return bits[values.offset :].astype(np.bool_)
