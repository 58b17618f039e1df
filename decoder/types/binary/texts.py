"""Prints whole binary columns of the common types.

These are times, intervals, one-dimensional arrays of integers and texts, ranges of integers, dates and
timestamps.  Compiled code (`text_kernels`) prints the usual values.  The caller's printer prints the others
(infinities, other dimensions, damage) one by one.  Invariant: the texts are the same as from `binary_text`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.compiled.jit import frozen
from slotlake.decoder.types.binary import text_kernels as kernels
from slotlake.decoder.types.binary.reading import utf8
from slotlake.decoder.types.binary.values import binary_printer
from slotlake.decoder.types.catalog import Kind, TypeCatalog, TypeEntry
from slotlake.decoder.types.slices import Slices, as_string, binary_array
from slotlake.decoder.types.text_error import TextError

_BYTES_MAX = 1 << 30  # for a chunk's column; longer ones are printed value by value, with a check of the size
_CLOCKS = {"time": kernels.TIME, "timetz": kernels.TIMETZ, "interval": kernels.INTERVAL}
_INTEGERS = {"int2": kernels.INT2, "int4": kernels.INT4, "int8": kernels.INT8}
_BOUNDS = {
    "int4": kernels.INT4,
    "int8": kernels.INT8,
    "date": kernels.DATE,
    "timestamp": kernels.MOMENT,
    "timestamptz": kernels.MOMENT_UTC,
}


@dataclass(frozen=True)
class _Way:
    """How a type is printed: the kernel, its arguments for the type, and how long a text may be."""

    kernel: Callable[..., None]
    arguments: tuple[int, ...]
    each: int  # bytes of text per byte of a value
    more: int  # further bytes of text per value


def printed_columns(
    slices: Slices, oid: int, catalog: TypeCatalog, others: Callable[[Slices], pa.Array]
) -> pa.Array | None:
    """The canonical texts of a column, or None if its type is not one of those named above.

    Args:
        others: prints values one by one; raises TextError.
    """
    entry = catalog.resolved(oid)
    way = None if entry is None else _way(entry, catalog)
    if way is None:
        return None
    present = slices.present
    size = int(np.where(present, slices.length, 0).sum(dtype=np.int64)) * way.each + len(slices) * way.more
    if size > _BYTES_MAX:
        return None
    out, offsets = np.empty(size, np.uint8), np.empty(len(slices) + 1, np.int64)
    odd = np.empty(len(slices), np.uint8)
    inputs = (frozen(slices.data), frozen(slices.start), frozen(slices.length))
    way.kernel(*inputs, *way.arguments, out, offsets, odd)
    is_odd = odd.view(np.bool_)
    try:
        texts = as_string(binary_array(out[: offsets[-1]], offsets, present & ~is_odd))
    except pa.ArrowInvalid:
        return others(slices)  # it raises the error with the place of the text that is not UTF-8
    return _with_others(texts, others(slices.only(is_odd))) if is_odd.any() else texts


def _with_others(texts: pa.Array, others: pa.Array) -> pa.Array:
    if texts.type != others.type:
        texts, others = texts.cast(pa.large_string()), others.cast(pa.large_string())
    merged: pa.Array = pc.coalesce(texts, others)
    return merged


def _way(entry: TypeEntry, catalog: TypeCatalog) -> _Way | None:
    if entry.kind is Kind.BASE and entry.name in _CLOCKS:
        return _Way(kernels.print_clocks_or_ranges, (False, _CLOCKS[entry.name]), 0, kernels.CLOCK_BYTES_MAX)
    inner = catalog.resolved(entry.of) if entry.kind in {Kind.ARRAY, Kind.RANGE} else None
    if inner is None:
        return None
    if entry.kind is Kind.RANGE:
        form = _BOUNDS.get(inner.name)
        if form is None:
            return None
        return _Way(kernels.print_clocks_or_ranges, (True, form), 0, kernels.RANGE_BYTES_MAX)
    form = _INTEGERS.get(inner.name, kernels.TEXT if _is_text(entry.of, catalog) else None)
    if form is None or inner.delimiter != ",":
        return None
    arguments = (form, entry.of)
    return _Way(kernels.print_arrays, arguments, kernels.ARRAY_BYTES_EACH, kernels.ARRAY_BYTES_MORE)


def _is_text(oid: int, catalog: TypeCatalog) -> bool:
    try:
        printer: Any = binary_printer(oid, catalog)
    except TextError:
        return False
    return printer is utf8
