"""Fold a batch of row changes into one action per key, exactly as a subscriber would end up.

The rule is PostgreSQL's own (worker.c: apply_handle_insert/update/delete/truncate): the outcome of
a fold is what a table holds after the changes were applied one after the other.  Rows are followed
through the batch by lineage: a row is either inserted here, or it came from the lake under some key.

* an insert puts a row under its key, replacing what is known to be there (a conflict, counted);
* an update or delete of a key known to hold no row is skipped and counted;
* an update that changes the key takes the row along, through chains and swaps;
* a value sent as "unchanged" is the latest one known of *that row*, from the new or the old tuple of
  an earlier change; if the batch never showed it, it stays in the lake (at the row's key there);
* TRUNCATE ends all earlier lives; only what follows the last one is folded.

Which key is which: two keys are the same if the lake would call them equal, that is the same value
of the typed column (-0 = 0 and NaN = NaN for floats, as in PostgreSQL and Spark) and the same exact
text.  That is finer than PostgreSQL's ``=`` for numeric (1.0 = 1.00), bpchar, citext,
nondeterministic collations, interval and jsonb, and must be: the server names the old row byte for
byte whenever the bytes of its key change (heapam.c: ExtractReplicaIdentity compares with
datumIsEqual), and the lake holds just those bytes.

Exact for every history that a server can produce, on a lake equal to the source at the start or
lacking rows of it.  If the lake lacks the row that a key change takes along, nothing is left under
the new key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from decoder.errors import ApplyError
from spark.fold_columns import OLD_NONE, Merged, fold_key, merge
from spark.fold_keys import KeyCodes, codes_of
from spark.fold_segments import Segment, segments
from spark.fold_walk import chase, walk
from spark.shapes import BatchColumn, BatchRelation

INSERT, UPDATE, DELETE = b"IUD"
ACTIONS = {"delete": ord("D"), "whole": ord("I"), "in_place": ord("U"), "moved": ord("M")}


@dataclass(frozen=True)
class FoldCounts:
    """What happened on the way. Counts of row changes, after the last TRUNCATE unless said.

    Attributes:
        changes: all row changes given, those before a TRUNCATE and the TRUNCATEs themselves included.
        conflicts: an insert, or a key change, onto a key known to hold a row, which was replaced.
        updates_missing: updates of a key known to hold no row.
        deletes_missing: deletes of a key known to hold no row.
    """

    changes: int
    conflicts: int = 0
    updates_missing: int = 0
    deletes_missing: int = 0


@dataclass(frozen=True)
class Folded:
    """What to do to one lake table. Positions in ``rows`` index ``columns``.

    Attributes:
        columns: the columns of the newest relation version folded here.
        key: names of the identifying columns; empty for a table without a key.
        truncated: all rows that the lake holds go first.
        rows: one row per touched key (without a key: one per inserted row):
            ``action`` int8: 68 'D' the key goes, if it is there; 73 'I' the whole row is known: update
            if the key is there, else insert; 85 'U' the lake's row of this key: update if there, else
            nothing; 77 'M' the lake's row of another key ``m*`` (which has its own action here):
            if the lake has it, as 'I'; if not, as 'D'.
            ``n<i>`` values and ``xn<i>`` exact texts; 'U' and 'M' set key columns too.
            ``u<i>`` bool, only if any: the value stays the lake's: for 'U' of the same row, for 'M' of
            the row at ``m*``.
            ``m<i>``/``xm<i>`` for key columns, only if any 'M': the row's key in the lake.
            An 'M' may take its row from a key that another row of ``rows`` replaces, so all of them
            are to be read from one snapshot of the lake.
    """

    table: str
    columns: tuple[BatchColumn, ...]
    key: tuple[str, ...]
    truncated: bool
    rows: pa.Table
    counts: FoldCounts


def fold(changes: Sequence[tuple[BatchRelation, pa.Table]]) -> list[Folded]:
    """Fold all changes of one table in a batch.

    Args:
        changes: (relation version, its rows as in the change log) of one table, each in ``seq`` order.

    Returns:
        The folds to apply one after the other: one, unless the table's key changed within the batch.

    Raises:
        ApplyError: a row was updated or deleted in a table without a key.
    """
    return [_fold_segment(segment) for segment in segments(changes)]


def _fold_segment(segment: Segment) -> Folded:
    merged = merge(segment.parts)
    relation = segment.parts[-1][0]
    key = fold_key(relation)
    rows, counts = _fold_keyed(merged, key, segment) if key else _plain_inserts(merged, segment)
    return Folded(merged.table, merged.columns, key, segment.truncated, rows, counts)


def _plain_inserts(merged: Merged, segment: Segment) -> tuple[pa.Table, FoldCounts]:
    if np.any(merged.op != INSERT):
        raise ApplyError(
            "a row of a table without a key was updated or deleted",
            where=f"table {merged.table}",
            way_out="give the table a primary key, or a unique index on NOT NULL columns and "
            "ALTER TABLE … REPLICA IDENTITY USING INDEX …, then take it anew with `slotlake backfill`",
        )
    everything = np.arange(len(merged.op), dtype=np.int64)
    action = np.full(len(everything), INSERT, np.int8)
    arrays: dict[str, pa.Array] = {"action": pa.array(action)}
    for position in range(len(merged.columns)):
        arrays.update(merged.take(position, everything))
    return pa.table(arrays), FoldCounts(segment.changes)


def _fold_keyed(merged: Merged, key: tuple[str, ...], segment: Segment) -> tuple[pa.Table, FoldCounts]:
    positions = [merged.position(name) for name in key]
    for position in positions:
        merged.complete_key(position)
    _require_identity(merged, positions)
    codes = codes_of([merged.values[position] for position in positions], merged.old != OLD_NONE)
    result = walk(merged.op, codes.new, codes.old, codes.count, segment.truncated)
    action, _, origin, _, _, tallies = result
    arrays: dict[str, pa.Array] = {"action": pa.array(action)}
    for position in range(len(merged.columns)):
        arrays.update(_final_column(merged, position, positions, result[:5], codes))
    arrays.update(_moved_from(merged, positions, action, origin, codes))
    counts = FoldCounts(segment.changes, *(int(tally) for tally in tallies))
    return pa.table(arrays), counts


def _require_identity(merged: Merged, positions: list[int]) -> None:
    """Every delete must name its row, by columns that its old tuple carries."""
    nameless = np.any((merged.op == DELETE) & (merged.old == OLD_NONE))
    carried = [merged.carried[position] for position in positions]
    if nameless or any(np.any((merged.old != OLD_NONE) & ~of) for of in carried):
        raise ApplyError(
            "an update or delete does not carry the columns that identify its row",
            where=f"table {merged.table}",
            way_out="ALTER TABLE … REPLICA IDENTITY FULL (or DEFAULT, with a primary key), "
            "then take the table anew with `slotlake backfill`",
        )


_Walked = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _final_column(
    merged: Merged, position: int, key_positions: list[int], walked: _Walked, codes: KeyCodes
) -> dict[str, pa.Array]:
    action, key_code, origin, last, previous = walked
    source = last
    unchanged = merged.unchanged[position]
    if unchanged is not None:
        source = chase(last, previous, unchanged, merged.carried[position])
    if position in key_positions:
        source = np.where(action == ACTIONS["delete"], codes.representative[key_code], source)
    arrays = merged.take(position, source)
    if unchanged is not None:
        from_lake = (source < 0) & (origin >= 0) & (action != ACTIONS["delete"])
        if np.any(from_lake):
            arrays[f"u{position}"] = pa.array(from_lake)
    return arrays


def _moved_from(
    merged: Merged, positions: list[int], action: np.ndarray, origin: np.ndarray, codes: KeyCodes
) -> dict[str, pa.Array]:
    moved = action == ACTIONS["moved"]
    if not np.any(moved):
        return {}
    source = np.where(moved, codes.representative[origin], -1)
    arrays: dict[str, pa.Array] = {}
    for position in positions:
        for name, values in merged.take(position, source).items():
            arrays[name.replace("n", "m", 1)] = values
    return arrays
