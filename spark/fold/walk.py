"""The two sequential passes of a fold, compiled.

``walk`` follows each row through the batch.  A row is named by the number of the change at which it
was first seen; its changes form a list linked backwards.  A key is in one of four states: untouched
(the lake has what the first change of it expects), untouched though known to hold a row, empty, or
holding a row of the batch.  ``chase`` walks such a list back to the change that last showed a column's
value.  Every change belongs to at most one row, so both are linear.  ``walk_bag`` counts rows instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slotlake.decoder.compiled.jit import Ints, compiled, frozen, inlined

_INSERT, _UPDATE, _DELETE = b"IUD"
_ACTION_DELETE, _ACTION_WHOLE, _ACTION_IN_PLACE, _ACTION_MOVED = b"DIUM"
# Below EMPTY: what the lake holds under the key stays as it is.
UNTOUCHED, EMPTY, IN_LAKE = -2, -1, -3
_BATCH = -1
_INSERT_EXISTS, _UPDATE_EXISTS, _UPDATE_MISSING, _DELETE_MISSING = 0, 1, 2, 3

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Walked:
    """What a walk found.

    Attributes:
        action: int8 per key to act on, in key order.
        key: int64, which key.
        expected: bool, whether the first change of the key counts on a row in the lake.
        origin: int64, the key that its row has in the lake; -1 unless it came from there.
        last: int64, the last change of its row; -1 if the key goes.
        previous: int64 per change, the change of the same row before it, or -1.
        conflicts: changes that met what they should not, in the order of `spark.fold.conflicts.Conflicts`.
    """

    action: Array
    key: Array
    expected: Array
    origin: Array
    last: Array
    previous: Array
    conflicts: tuple[int, ...]


@inlined
def _holds_row(row: int) -> bool:
    return row >= 0 or row == IN_LAKE


@compiled
def _apply(
    changes: tuple[Array, Ints, Ints, Array],
    skip: bool,
    row_at: Ints,
    expected: Array,
    rows: tuple[Ints, Ints, Ints],
    tallies: Ints,
) -> None:
    op, key_new, key_old, whole = changes
    origin, last, previous = rows
    for i in range(len(op)):
        new = key_new[i]
        if op[i] == _INSERT:
            occupied = _holds_row(row_at[new])
            tallies[_INSERT_EXISTS] += occupied
            if not (occupied and skip):
                row_at[new] = i
                origin[i] = _BATCH
                last[i] = i
            continue
        key = key_old[i] if key_old[i] >= 0 else new
        row = row_at[key]
        expected[key] |= row == UNTOUCHED
        if op[i] == _DELETE:
            tallies[_DELETE_MISSING] += row == EMPTY
            row_at[key] = EMPTY
            continue
        tallies[_UPDATE_MISSING] += row == EMPTY
        if row == EMPTY and (skip or not whole[i]):
            continue
        if new != key:
            occupied = _holds_row(row_at[new])
            tallies[_UPDATE_EXISTS] += occupied
            if occupied and skip:
                continue
            row_at[key] = EMPTY
        if row >= 0:
            previous[i] = last[row]
        else:
            origin[i] = _BATCH if row == EMPTY else key
            row = i
        last[row] = i
        row_at[new] = row


@compiled
def _collect(row_at: Ints, state: Ints, origin: Ints, action: Array, key_code: Ints, row_origin: Ints) -> int:
    """Fill in the keys to act on; how many they are."""
    out = 0
    for key in range(len(row_at)):
        row = row_at[key]
        if row < EMPTY or (row == EMPTY and state[key] == EMPTY):
            continue
        key_code[out] = key
        row_origin[out] = _BATCH
        if row == EMPTY:
            action[out] = _ACTION_DELETE
        else:
            row_origin[out] = origin[row]
            if origin[row] == _BATCH:
                action[out] = _ACTION_WHOLE
            elif origin[row] == key:
                action[out] = _ACTION_IN_PLACE
            else:
                action[out] = _ACTION_MOVED
        out += 1
    return out


def walk(
    op: Array,
    key_new: Array,
    key_old: Array,
    whole: Array,
    state: Array,
    *,
    skip: bool = False,
) -> Walked:
    """Apply all changes in order to the dense keys 0, 1, 2 and so on.

    Args:
        op: int8 per change, 'I' 'U' 'D'.
        key_new, key_old: int64 per change; -1 where there is no such tuple.
        whole: bool per change: new and old tuple show all values of the new row.
        state: int64 per key, what is known of it at the start: UNTOUCHED, EMPTY or HELD. A key that was and
            is empty needs no action.
        skip: pass over changes that meet what they should not; else apply them as far as they tell.
    """
    changes, keys = len(op), len(state)
    row_at = np.array(state, np.int64)
    expected = row_at == IN_LAKE
    origin = np.full(changes, _BATCH, np.int64)
    last = np.full(changes, -1, np.int64)
    previous = np.full(changes, -1, np.int64)
    tallies = np.zeros(4, np.int64)
    compiled_changes = (frozen(op), frozen(key_new), frozen(key_old), frozen(whole))
    _apply(compiled_changes, skip, row_at, expected, (origin, last, previous), tallies)
    action, key_code = np.empty(keys, np.int8), np.empty(keys, np.int64)
    row_origin = np.empty(keys, np.int64)
    count = _collect(row_at, frozen(np.asarray(state, np.int64)), origin, action, key_code, row_origin)
    key_code = key_code[:count]
    rows = row_at[key_code]
    row_last = np.where(rows >= 0, last[np.maximum(rows, 0)], -1) if changes else rows
    conflicts = tuple(int(tally) for tally in tallies)
    return Walked(
        action[:count], key_code, expected[key_code], row_origin[:count], row_last, previous, conflicts
    )


@compiled
def _count(
    changes: tuple[Array, Ints, Ints], lake_counts: Ints, skip: bool, net: Ints, low: Ints, tallies: Ints
) -> None:
    op, row_new, row_old = changes
    for i in range(len(op)):
        if op[i] != _INSERT:
            old = row_old[i]
            if lake_counts[old] >= 0 and lake_counts[old] + net[old] <= 0:
                tallies[_DELETE_MISSING if op[i] == _DELETE else _UPDATE_MISSING] += 1
                if skip:
                    continue
            else:
                net[old] -= 1
                low[old] = min(low[old], net[old])
        if op[i] != _DELETE:
            net[row_new[i]] += 1


def walk_bag(
    op: Array, row_new: Array, row_old: Array, lake_counts: Array, *, skip: bool = False
) -> tuple[Array, Array, tuple[int, ...]]:
    """Count how many of each distinct row 0, 1, … go from the lake and come to it.

    Args:
        row_new, row_old: int64 per change: which row; -1 where there is no such tuple.
        lake_counts: int64 per distinct row: how many the lake has; -1 for as many as are asked of it.

    Returns:
        Rows to remove, and rows to add after that, per distinct row (a row that is removed and comes back
        counts in both); and the conflicts, as `walk` has them.
    """
    net, low = np.zeros(len(lake_counts), np.int64), np.zeros(len(lake_counts), np.int64)
    tallies = np.zeros(4, np.int64)
    _count((frozen(op), frozen(row_new), frozen(row_old)), frozen(lake_counts), skip, net, low, tallies)
    return -low, net - low, tuple(int(tally) for tally in tallies)


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
