"""Dense integers for keys: equal keys, and only those, share one.

Equality is the lake's: typed value and exact text both the same, floats with NaN = NaN and, as keys,
-0 = 0.  Whole rows are told apart by -0 too: PostgreSQL prints it differently, so it is another row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.compiled.wide import joined
from slotlake.spark.fold.columns import Values

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class KeyCodes:
    """Codes 0..count-1.

    Attributes:
        new: int64 per change, the code of the new tuple's key; of a delete, a code of no key.
        old: int64 per change, the code of the old tuple's key; -1 where there is none.
        representative: int64 per code, a tuple holding that key: change i for a new tuple,
            number of changes + i for an old one.
    """

    new: Array
    old: Array
    count: int
    representative: Array


def codes_of(columns: Sequence[Values], has_old: Array, *, one_zero: bool = True) -> KeyCodes:
    """Number the keys of all changes.

    Args:
        has_old: bool per change, whether it has an old tuple.
        one_zero: -0 and 0 are the same.
    """
    changes = len(has_old)
    olds = np.flatnonzero(has_old)
    codes = np.zeros(changes + len(olds), np.int64)
    for values in columns:
        for array in _both_sides(values, olds):
            codes = _combine(codes, _dense(array, one_zero))
    new, old = codes[:changes].copy(), np.full(changes, -1, np.int64)
    old[olds] = codes[changes:]
    count = int(codes.max()) + 1 if len(codes) else 0
    representative = np.empty(count, np.int64)
    representative[old[olds]] = olds + changes
    representative[new] = np.arange(changes)
    return KeyCodes(new, old, count, representative)


def row_codes(columns: Sequence[pa.Array], *, one_zero: bool = True) -> Array:
    """Number rows: equal ones, and only those, share a number; NULL is NULL.

    Args:
        columns: at least one; all of the same length, none of them nested.
        one_zero: -0 and 0 are the same.
    """
    codes = _dense(columns[0], one_zero)
    for column in columns[1:]:
        codes = _combine(codes, _dense(column, one_zero))
    return codes


def _both_sides(values: Values, olds: Array) -> list[pa.Array]:
    """New keys of all changes, then the old keys there are: typed values, and exact texts if any."""
    sides = []
    for new, old in ((values.new, values.old), (values.exact_new, values.exact_old)):
        present = [side for side in (new, old) if side is not None]
        if not present:
            continue
        kind, changes = present[0].type, len(present[0])
        new_keys = new if new is not None else pa.nulls(changes, kind)
        old_keys = old.take(pa.array(olds)) if old is not None else pa.nulls(len(olds), kind)
        sides.append(joined([new_keys, old_keys]) if len(olds) else new_keys)
    return sides


def _dense(array: pa.Array, one_zero: bool) -> Array:
    """Codes of one array's values in the order they first appear; NULL is 0."""
    if pa.types.is_floating(array.type):
        array = _float_bits(array, one_zero)
    indices = array.dictionary_encode().indices
    if indices.null_count:
        indices = pc.fill_null(pc.add(indices, pa.scalar(1, pa.int32())), 0)
    return np.asarray(indices.to_numpy(zero_copy_only=False), np.int64)


def _float_bits(array: pa.Array, one_zero: bool) -> pa.Array:
    """Floats as integers: all NaNs one NaN, and if asked for all zeros one, as in btree's comparison."""
    values = np.array(array.fill_null(0).to_numpy(zero_copy_only=False))
    values[np.isnan(values)] = np.nan
    if one_zero:
        values[values == 0] = 0.0
    bits = values.view(f"i{values.itemsize}")
    integers: pa.Array = pa.array(bits, mask=np.asarray(array.is_null()))
    return integers


def _combine(left: Array, right: Array) -> Array:
    """Codes of pairs. Both sides are below 2^31, so the product fits."""
    if not left.any():
        return right
    pairs = left * (int(right.max(initial=0)) + 1) + right
    return np.asarray(pa.array(pairs).dictionary_encode().indices.to_numpy(), np.int64)
