"""The sequential passes of a history's fold, compiled: which versions a batch opens and closes.

They follow rows as `spark.fold.walk` does, and look at what a key holds whenever a transaction ends: what was
there only in the midst of one was never seen by anyone, and is no version.  So the outcome does not depend on
where batches end.  What the lake holds at the start is known, not guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slotlake.decoder.compiled.jit import Ints, compiled, frozen, inlined
from slotlake.spark.fold.walk import EMPTY, IN_LAKE, Array

_INSERT, _UPDATE, _DELETE = b"IUD"
_BATCH = -1


@dataclass(frozen=True)
class Events:
    """What keys held when a transaction that wrote to them ended; by key, then in the order of transactions.

    Attributes:
        key: which key (of a bag: which distinct row).
        txn: which transaction.
        next: the transaction of the same key's next event; -1 if there is none.
        first: it is the key's first event.
        last: the last change of the row it held; -1 if it held none. (Of a bag: how many rows it held.)
        origin: the key that the row has in the lake; -1 unless it came from there.
        previous: per change, the change of the same row before it, or -1.
    """

    key: Array
    txn: Array
    next: Array
    first: Array
    last: Array
    origin: Array
    previous: Array


@inlined
def _write_event(
    out: tuple[Ints, Ints, Ints, Ints], count: int, key: int, txn: int, last: int, origin: int
) -> int:
    out[0][count], out[1][count], out[2][count], out[3][count] = key, txn, last, origin
    return count + 1


@compiled
def _end_all_rows(row_at: Ints, txn: int, out: tuple[Ints, Ints, Ints, Ints], count: int) -> int:
    for key in range(len(row_at)):
        if row_at[key] != EMPTY:
            row_at[key] = EMPTY
            count = _write_event(out, count, key, txn, -1, _BATCH)
    return count


@inlined
def _is_passed_over(op: int, occupied: bool, whole: bool, target_occupied: bool, skip: bool) -> bool:
    """Return whether the change has no effect: there is nothing to do in this state, or it is skipped."""
    if op == _INSERT:
        return skip and occupied
    if not occupied:
        return op == _DELETE or skip or not whole
    return op == _UPDATE and target_occupied and skip


@compiled
def _walk(
    changes: tuple[Array, Ints, Ints, Array, Ints],
    truncates: tuple[Ints, Ints],
    skip: bool,
    row_at: Ints,
    rows: tuple[Ints, Ints, Ints],
    out: tuple[Ints, Ints, Ints, Ints],
) -> int:
    """Write down what a key holds each time that it is written to; how often that was."""
    op, key_new, key_old, whole, txn = changes
    origin, last, previous = rows
    count = next_truncate = 0
    for i in range(len(op)):
        while next_truncate < len(truncates[0]) and truncates[0][next_truncate] == i:
            count = _end_all_rows(row_at, truncates[1][next_truncate], out, count)
            next_truncate += 1
        new = key_new[i]
        key = key_old[i] if op[i] != _INSERT and key_old[i] >= 0 else new
        row = row_at[key]
        if _is_passed_over(op[i], row != EMPTY, whole[i], new != key and row_at[new] != EMPTY, skip):
            continue
        if op[i] == _DELETE or (new != key and row != EMPTY):
            row_at[key] = EMPTY
            count = _write_event(out, count, key, txn[i], -1, _BATCH)
        if op[i] == _DELETE:
            continue
        if op[i] == _UPDATE and row >= 0:
            previous[i] = last[row]
        else:
            origin[i] = key if op[i] == _UPDATE and row == IN_LAKE else _BATCH
            row = i
        last[row] = i
        row_at[new] = row
        count = _write_event(out, count, new, txn[i], i, origin[row])
    for rest in range(next_truncate, len(truncates[0])):
        count = _end_all_rows(row_at, truncates[1][rest], out, count)
    return count


def walk(
    changes: tuple[Array, Array, Array, Array, Array],
    truncates: tuple[Array, Array],
    in_lake: Array,
    *,
    skip: bool = False,
) -> Events:
    """Follow all changes of the dense keys 0, 1, 2 and so on.

    Args:
        changes: per change: op (int8), new and old key (int64, -1 for none), whether its tuples show the
            whole row, its transaction (int64).
        truncates: before which change the table was truncated, and in which transaction.
        in_lake: bool per key, whether the lake holds a row of it.
        skip: pass over changes that meet what they should not.
    """
    op, new, old, whole, txn = changes
    changes_count, keys = len(op), len(in_lake)
    row_at = np.where(in_lake, IN_LAKE, EMPTY).astype(np.int64)
    rows = (
        np.full(changes_count, _BATCH, np.int64),
        np.full(changes_count, -1, np.int64),
        np.full(changes_count, -1, np.int64),
    )
    # A change writes to two keys at most, and a truncation only ends what a change or the lake put there.
    out = tuple(np.empty(4 * changes_count + keys, np.int64) for _ in range(4))
    compiled_changes = (
        frozen(op),
        frozen(new),
        frozen(old),
        frozen(whole),
        frozen(np.asarray(txn, np.int64)),
    )
    compiled_truncates = (
        frozen(np.asarray(truncates[0], np.int64)),
        frozen(np.asarray(truncates[1], np.int64)),
    )
    count = _walk(compiled_changes, compiled_truncates, skip, row_at, rows, (out[0], out[1], out[2], out[3]))
    key, when, last, origin = (array[:count] for array in out)
    return _ordered(key, when, last, origin, rows[2])


def _ordered(key: Array, txn: Array, last: Array, origin: Array, previous: Array) -> Events:
    """Of what was written down, what held when a transaction ended."""
    order = np.argsort(key, kind="stable")
    same_key = key[order][1:] == key[order][:-1]
    final = np.ones(len(key), np.bool_)
    final[:-1] = ~(same_key & (txn[order][1:] == txn[order][:-1]))
    order = order[final]
    key, txn = key[order], txn[order]
    same = key[1:] == key[:-1]
    following = np.full(len(key), -1, np.int64)
    following[:-1][same] = txn[1:][same]
    first = np.ones(len(key), np.bool_)
    first[1:] = ~same
    return Events(key, txn, following, first, last[order], origin[order], previous)


@compiled
def _count(
    changes: tuple[Array, Ints, Ints, Ints],
    truncates: tuple[Ints, Ints],
    skip: bool,
    row_counts: Ints,
    out: tuple[Ints, Ints, Ints, Ints],
) -> int:
    """Write down how many of a row there are each time that changes."""
    op, row_new, row_old, txn = changes
    count = next_truncate = 0
    for i in range(len(op)):
        while next_truncate < len(truncates[0]) and truncates[0][next_truncate] == i:
            count = _remove_all_copies(row_counts, truncates[1][next_truncate], out, count)
            next_truncate += 1
        if op[i] != _INSERT:
            old = row_old[i]
            if row_counts[old] <= 0 and skip:
                continue
            if row_counts[old] > 0:
                row_counts[old] -= 1
                count = _write_event(out, count, old, txn[i], row_counts[old], _BATCH)
        if op[i] != _DELETE:
            new = row_new[i]
            row_counts[new] += 1
            count = _write_event(out, count, new, txn[i], row_counts[new], _BATCH)
    for rest in range(next_truncate, len(truncates[0])):
        count = _remove_all_copies(row_counts, truncates[1][rest], out, count)
    return count


@compiled
def _remove_all_copies(row_counts: Ints, txn: int, out: tuple[Ints, Ints, Ints, Ints], count: int) -> int:
    for row in range(len(row_counts)):
        if row_counts[row] > 0:
            row_counts[row] = 0
            count = _write_event(out, count, row, txn, 0, _BATCH)
    return count


def walk_bag(
    changes: tuple[Array, Array, Array, Array],
    truncates: tuple[Array, Array],
    lake_counts: Array,
    *,
    skip: bool = False,
) -> Events:
    """Count how many of each distinct row 0, 1, … there are whenever a transaction that wrote to it ends.

    Args:
        changes: per change: op, new and old row (-1 for none), its transaction.
        lake_counts: int64 per distinct row, how many the lake holds.
    """
    op, new, old, txn = changes
    out = tuple(np.empty(4 * len(op) + len(lake_counts), np.int64) for _ in range(4))
    compiled_changes = (frozen(op), frozen(new), frozen(old), frozen(np.asarray(txn, np.int64)))
    compiled_truncates = (
        frozen(np.asarray(truncates[0], np.int64)),
        frozen(np.asarray(truncates[1], np.int64)),
    )
    count = _count(
        compiled_changes,
        compiled_truncates,
        skip,
        np.array(lake_counts, np.int64),
        (out[0], out[1], out[2], out[3]),
    )
    key, when, row_counts, nothing = (array[:count] for array in out)
    return _ordered(key, when, row_counts, nothing, np.full(len(op), -1, np.int64))
