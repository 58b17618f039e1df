"""The sequential passes of a history's fold, compiled: which versions a batch opens and closes.

They follow rows as `spark.fold.walk` does, and look at what a key holds whenever a transaction ends: what was
there only in the midst of one was never seen by anyone, and is no version.  So the outcome does not depend on
where batches end.  What the lake holds at the start is known, not guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slotlake.decoder.compiled.jit import Ints, compiled, frozen, inlined
from slotlake.spark.fold.walk import EMPTY, HELD, Array

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
def _note(out: tuple[Ints, Ints, Ints, Ints], found: int, key: int, txn: int, last: int, origin: int) -> int:
    out[0][found], out[1][found], out[2][found], out[3][found] = key, txn, last, origin
    return found + 1


@compiled
def _empty(at: Ints, txn: int, out: tuple[Ints, Ints, Ints, Ints], found: int) -> int:
    for key in range(len(at)):
        if at[key] != EMPTY:
            at[key] = EMPTY
            found = _note(out, found, key, txn, -1, _BATCH)
    return found


@inlined
def _passes(op: int, there: bool, whole: bool, blocked: bool, skip: bool) -> bool:
    """Is the change passed over: it meets what it should not, and there is nothing it could do then?"""
    if op == _INSERT:
        return skip and there
    if not there:
        return op == _DELETE or skip or not whole
    return op == _UPDATE and blocked and skip


@compiled
def _walk(
    changes: tuple[Array, Ints, Ints, Array, Ints],
    cuts: tuple[Ints, Ints],
    skip: bool,
    at: Ints,
    rows: tuple[Ints, Ints, Ints],
    out: tuple[Ints, Ints, Ints, Ints],
) -> int:
    """Write down what a key holds each time that it is written to; how often that was."""
    op, key_new, key_old, whole, txn = changes
    origin, last, previous = rows
    found = cut = 0
    for i in range(len(op)):
        while cut < len(cuts[0]) and cuts[0][cut] == i:
            found = _empty(at, cuts[1][cut], out, found)
            cut += 1
        new = key_new[i]
        key = key_old[i] if op[i] != _INSERT and key_old[i] >= 0 else new
        row = at[key]
        if _passes(op[i], row != EMPTY, whole[i], new != key and at[new] != EMPTY, skip):
            continue
        if op[i] == _DELETE or (new != key and row != EMPTY):
            at[key] = EMPTY
            found = _note(out, found, key, txn[i], -1, _BATCH)
        if op[i] == _DELETE:
            continue
        if op[i] == _UPDATE and row >= 0:
            previous[i] = last[row]
        else:
            origin[i] = key if op[i] == _UPDATE and row == HELD else _BATCH
            row = i
        last[row] = i
        at[new] = row
        found = _note(out, found, new, txn[i], i, origin[row])
    for rest in range(cut, len(cuts[0])):
        found = _empty(at, cuts[1][rest], out, found)
    return found


def walk(
    changes: tuple[Array, Array, Array, Array, Array],
    cuts: tuple[Array, Array],
    held: Array,
    *,
    skip: bool = False,
) -> Events:
    """Follow all changes of the dense keys 0, 1, 2 and so on.

    Args:
        changes: per change: op (int8), new and old key (int64, -1 for none), whether its tuples show the
            whole row, its transaction (int64).
        cuts: before which change the table was truncated, and in which transaction.
        held: bool per key, whether the lake holds a row of it.
        skip: pass over changes that meet what they should not.
    """
    op, new, old, whole, txn = changes
    count, keys = len(op), len(held)
    at = np.where(held, HELD, EMPTY).astype(np.int64)
    rows = (
        np.full(count, _BATCH, np.int64),
        np.full(count, -1, np.int64),
        np.full(count, -1, np.int64),
    )
    # A change writes to two keys at most, and a truncation only ends what a change or the lake put there.
    out = tuple(np.empty(4 * count + keys, np.int64) for _ in range(4))
    given = (frozen(op), frozen(new), frozen(old), frozen(whole), frozen(np.asarray(txn, np.int64)))
    where = (frozen(np.asarray(cuts[0], np.int64)), frozen(np.asarray(cuts[1], np.int64)))
    found = _walk(given, where, skip, at, rows, (out[0], out[1], out[2], out[3]))
    key, when, last, origin = (array[:found] for array in out)
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
    cuts: tuple[Ints, Ints],
    skip: bool,
    has: Ints,
    out: tuple[Ints, Ints, Ints, Ints],
) -> int:
    """Write down how many of a row there are each time that changes."""
    op, row_new, row_old, txn = changes
    found = cut = 0
    for i in range(len(op)):
        while cut < len(cuts[0]) and cuts[0][cut] == i:
            found = _take_all(has, cuts[1][cut], out, found)
            cut += 1
        if op[i] != _INSERT:
            old = row_old[i]
            if has[old] <= 0 and skip:
                continue
            if has[old] > 0:
                has[old] -= 1
                found = _note(out, found, old, txn[i], has[old], _BATCH)
        if op[i] != _DELETE:
            new = row_new[i]
            has[new] += 1
            found = _note(out, found, new, txn[i], has[new], _BATCH)
    for rest in range(cut, len(cuts[0])):
        found = _take_all(has, cuts[1][rest], out, found)
    return found


@compiled
def _take_all(has: Ints, txn: int, out: tuple[Ints, Ints, Ints, Ints], found: int) -> int:
    for row in range(len(has)):
        if has[row] > 0:
            has[row] = 0
            found = _note(out, found, row, txn, 0, _BATCH)
    return found


def walk_bag(
    changes: tuple[Array, Array, Array, Array],
    cuts: tuple[Array, Array],
    held: Array,
    *,
    skip: bool = False,
) -> Events:
    """Count how many of each distinct row 0, 1, … there are whenever a transaction that wrote to it ends.

    Args:
        changes: per change: op, new and old row (-1 for none), its transaction.
        held: int64 per distinct row, how many the lake holds.
    """
    op, new, old, txn = changes
    out = tuple(np.empty(4 * len(op) + len(held), np.int64) for _ in range(4))
    given = (frozen(op), frozen(new), frozen(old), frozen(np.asarray(txn, np.int64)))
    where = (frozen(np.asarray(cuts[0], np.int64)), frozen(np.asarray(cuts[1], np.int64)))
    found = _count(given, where, skip, np.array(held, np.int64), (out[0], out[1], out[2], out[3]))
    key, when, has, nothing = (array[:found] for array in out)
    return _ordered(key, when, has, nothing, np.full(len(op), -1, np.int64))
