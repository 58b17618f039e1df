"""The two sequential passes of a fold, compiled.

``walk`` follows each row through the batch.  A row is named by the number of the change at which it
was first seen; its changes form a list linked backwards.  A key is in one of three states: untouched
(whatever the lake has), empty, or holding a row.  ``chase`` walks such a list back to the change that
last showed a column's value.  Every change belongs to at most one row, so both are linear.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from decoder.compiled import Ints, compiled, frozen

_INSERT, _UPDATE, _DELETE = b"IUD"
_ACTION_DELETE, _ACTION_WHOLE, _ACTION_IN_PLACE, _ACTION_MOVED = b"DIUM"
_UNTOUCHED = -2
_EMPTY = -1
_BATCH = -1

Array = np.ndarray[Any, Any]


@compiled
def _apply(
    op: Array, key_new: Ints, key_old: Ints, at: Ints, origin: Ints, last: Ints, previous: Ints
) -> tuple[int, int, int]:
    conflicts = updates_missing = deletes_missing = 0
    for i in range(len(op)):
        if op[i] == _INSERT:
            conflicts += at[key_new[i]] >= 0
            at[key_new[i]] = i
            origin[i] = _BATCH
            last[i] = i
            continue
        key = key_old[i] if key_old[i] >= 0 else key_new[i]
        row = at[key]
        if op[i] == _DELETE:
            deletes_missing += row == _EMPTY
            at[key] = _EMPTY
            continue
        if row == _EMPTY:
            updates_missing += 1
            continue
        if row == _UNTOUCHED:
            row = i
            origin[i] = key
        else:
            previous[i] = last[row]
        last[row] = i
        if key_new[i] != key:
            at[key] = _EMPTY
            conflicts += at[key_new[i]] >= 0
        at[key_new[i]] = row
    return conflicts, updates_missing, deletes_missing


@compiled
def _collect(at: Ints, origin: Ints, last: Ints, truncated: bool) -> tuple[Array, Ints, Ints, Ints]:
    count = 0
    for key in range(len(at)):
        count += at[key] >= 0 or (at[key] == _EMPTY and not truncated)
    action = np.empty(count, np.int8)
    key_code = np.empty(count, np.int64)
    row_origin = np.full(count, -1, np.int64)
    row_last = np.full(count, -1, np.int64)
    out = 0
    for key in range(len(at)):
        row = at[key]
        if row == _UNTOUCHED or (row == _EMPTY and truncated):
            continue
        key_code[out] = key
        if row == _EMPTY:
            action[out] = _ACTION_DELETE
        else:
            row_origin[out] = origin[row]
            row_last[out] = last[row]
            if origin[row] == _BATCH:
                action[out] = _ACTION_WHOLE
            elif origin[row] == key:
                action[out] = _ACTION_IN_PLACE
            else:
                action[out] = _ACTION_MOVED
        out += 1
    return action, key_code, row_origin, row_last


def walk(
    op: Array, key_new: Array, key_old: Array, keys: int, truncated: bool
) -> tuple[Array, Array, Array, Array, Array, tuple[int, int, int]]:
    """Apply all changes in order to the dense keys 0..keys-1.

    Args:
        op: int8 per change, 'I' 'U' 'D'.
        key_new, key_old: int64 per change; -1 where there is no such tuple.
        truncated: the lake holds nothing, so an untouched key is an empty one.

    Returns:
        Per key to act on, in key order: action (int8), key, key in the lake of its row (-1 unless it
        came from there), last change of its row (-1 for 'D'); then per change the change of the same
        row before it, or -1; and (conflicts, updates of missing rows, deletes of missing rows).
    """
    changes = len(op)
    at = np.full(keys, _EMPTY if truncated else _UNTOUCHED, np.int64)
    origin = np.full(changes, _BATCH, np.int64)
    last = np.full(changes, -1, np.int64)
    previous = np.full(changes, -1, np.int64)
    tallies = _apply(frozen(op), frozen(key_new), frozen(key_old), at, origin, last, previous)
    action, key_code, row_origin, row_last = _collect(at, origin, last, truncated)
    return action, key_code, row_origin, row_last, previous, tallies


@compiled
def _chase(last: Ints, previous: Ints, unchanged: Array, carried: Array) -> Ints:
    changes = len(previous)
    source = np.empty(len(last), np.int64)
    for out in range(len(last)):
        i = last[out]
        while i >= 0 and unchanged[i]:
            if carried[i]:
                i += changes
                break
            i = previous[i]
        source[out] = i
    return source


def chase(last: Array, previous: Array, unchanged: Array, carried: Array) -> Array:
    """Find for each row the tuple that last showed a column's value.

    Args:
        last: per row its last change, or -1.
        previous: per change the one before it of the same row, or -1.
        unchanged: bool per change: the new tuple does not show the value.
        carried: bool per change: the old tuple does.

    Returns:
        int64 per row: i for the new tuple of change i, len(previous) + i for its old tuple, -1 if the
        batch never showed it.
    """
    return _chase(*(frozen(array) for array in (last, previous, unchanged, carried)))
