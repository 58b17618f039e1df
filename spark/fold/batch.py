"""Fold a batch of row changes into one action per key, exactly as a subscriber would end up.

The rule is PostgreSQL's own (worker.c: apply_handle_insert/update/delete/truncate): the outcome of
a fold is what a table holds after the changes were applied one after the other.  Rows are followed
through the batch by lineage: a row is either inserted here, or it came from the lake under some key.

* an insert puts a row under its key, an update that changes the key takes the row along, through chains
  and swaps; each replaces what is known to be there (a conflict, counted);
* an update of a key known to hold no row inserts its new row if all of it is known (a conflict, counted);
* or, by choice, changes that meet what they should not are passed over (`spark.fold.conflicts`);
* a value sent as "unchanged" is the latest one known of *that row*, from the new or the old tuple of
  an earlier change; if the batch never showed it, it stays in the lake (at the row's key there);
* TRUNCATE ends all earlier lives; only what follows the last one is folded.

Which key is which: two keys are the same if the lake would call them equal, that is the same value
of the typed column (-0 = 0 and NaN = NaN for floats, as in PostgreSQL and Spark) and the same exact
text.  That is finer than PostgreSQL's ``=`` for numeric (1.0 = 1.00), bpchar, citext,
nondeterministic collations, interval and jsonb, and must be: the server names the old row byte for
byte whenever the bytes of its key change (heapam.c: ExtractReplicaIdentity compares with
datumIsEqual), and the lake holds just those bytes.

Exact for every history that a server can produce, on a lake equal to the source at the start; on any
other once it is said where the lake is not what the changes count on (``held``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.compiled.arrays import distinct
from slotlake.decoder.errors import ApplyError
from slotlake.spark.fold.columns import OLD_NONE, OLD_WHOLE, Merged, fold_key, is_bag, merge
from slotlake.spark.fold.conflicts import Conflicts
from slotlake.spark.fold.keys import KeyCodes, codes_of
from slotlake.spark.fold.segments import Segment, segments
from slotlake.spark.fold.walk import EMPTY, IN_LAKE, UNTOUCHED, Array, Walked, chase, walk, walk_bag
from slotlake.spark.tables.shapes import BatchColumn, BatchRelation

INSERT, UPDATE, DELETE = b"IUD"
_LARGE_BYTES = 1 << 20
ACTIONS = {"delete": ord("D"), "whole": ord("I"), "in_place": ord("U"), "moved": ord("M")}


@dataclass(frozen=True)
class FoldCounts:
    """What happened on the way.

    Attributes:
        changes: all row changes given, those before a TRUNCATE and the TRUNCATEs themselves included.
        conflicts: changes after the last TRUNCATE that met what they should not, as far as the batch and
            what is known of the lake tell.
    """

    changes: int
    conflicts: Conflicts


@dataclass(frozen=True)
class Folded:
    """What to do to one lake table. Positions in ``rows`` index ``columns``.

    Attributes:
        columns: the columns of the newest relation version folded here.
        key: names of the identifying columns; empty for a table without a key.
        bag: rows are named by all their values (without a key, under REPLICA IDENTITY FULL).
        truncated: all rows that the lake holds go first.
        rows: one row per touched key (without a key: one per inserted row; of a bag: see `fold_bag`):
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
        expected: per row, how many rows with its key (of a bag: equal to it) the changes count on in the
            lake: 0 or 1, of a bag at least so many.
    """

    table: str
    columns: tuple[BatchColumn, ...]
    key: tuple[str, ...]
    truncated: bool
    rows: pa.Table
    counts: FoldCounts
    expected: Array
    bag: bool = False


def _has_large_values(rows: pa.Table) -> bool:
    columns = [c for c in rows.columns if pa.types.is_binary(c.type) or pa.types.is_string(c.type)]
    return any((pc.max(pc.binary_length(each)).as_py() or 0) >= _LARGE_BYTES for each in columns)


class SegmentFold:
    """Changes of one table that name their row by the same columns, ready to be folded.

    Attributes:
        changes: how many there are.
        has_large_rows: a value of a bag's row has a megabyte or more.

    Raises:
        ApplyError: an update or delete does not name its row.
    """

    def __init__(self, segment: Segment) -> None:
        relation = segment.parts[-1][0]
        self.changes = segment.changes
        self._merged = merge(segment.parts)
        self.key = fold_key(relation)
        self.bag = is_bag(relation)
        self.has_large_rows = self.bag and any(_has_large_values(rows) for _, rows in segment.parts)
        self.truncated = segment.truncated
        self._codes = self._numbered()

    def _numbered(self) -> KeyCodes | None:
        merged = self._merged
        if self.bag:
            return bag_codes(merged)
        if not self.key:
            _require_inserts(merged)
            return None
        positions = [merged.position(name) for name in self.key]
        for position in positions:
            merged.complete_key(position)
        _require_identity(merged, positions)
        return codes_of([merged.values[position] for position in positions], merged.old != OLD_NONE)

    def unfolded(self) -> Folded:
        """What the changes are of, with no row: columns and key."""
        counts = FoldCounts(self.changes, Conflicts())
        return self._folded(pa.table({}), counts, np.empty(0, np.int64))

    def lookup_rows(self) -> pa.Table:
        """What to ask the lake before folding for one that may not have all that the changes count on.

        Returns:
            ``code`` (int64) and the columns that name a row (``n<i>``, ``xn<i>``), one row per key; of a
            bag per distinct row that an update or delete names. No rows if the answer does not matter.
        """
        merged, codes = self._merged, self._codes
        if codes is None or self.truncated:
            return pa.table({"code": pa.array([], pa.int64())})
        olds = codes.old[codes.old >= 0]
        named_codes = olds if self.bag else np.concatenate([codes.new[merged.op != DELETE], olds])
        lookup_codes = distinct(named_codes)
        arrays: dict[str, pa.Array] = {"code": pa.array(lookup_codes)}
        for position in range(len(merged.columns)) if self.bag else map(merged.position, self.key):
            arrays.update(merged.take(position, codes.representative[lookup_codes]))
        return pa.table(arrays)

    def fold(self, lake_counts: pa.Table | None = None, *, skip: bool = False) -> Folded:
        """What the changes come to.

        Args:
            lake_counts: ``code`` of `lookup_rows`, and how many such rows the lake has (``held``); a missing
                code means 0.
                None: the lake is assumed to have the row that the first change of each key needs.
            skip: pass over changes that meet what they should not (see `spark.fold.conflicts`).
        """
        changes = self.changes
        if self._codes is None:
            rows = _plain_inserts(self._merged)
            return self._folded(rows, FoldCounts(changes, Conflicts()), np.zeros(rows.num_rows, np.int64))
        if self.bag:
            state = self._state(-1, lake_counts)
            rows, conflicts = fold_bag(self._merged, self._codes, state, skip=skip)
            return self._folded(rows, FoldCounts(changes, Conflicts(*conflicts)), rows["remove"].to_numpy())
        state = self._state(UNTOUCHED, lake_counts)
        if lake_counts is not None or self.truncated:
            state = np.where(state > 0, IN_LAKE, EMPTY)
        rows, walked = _fold_keyed(self._merged, self.key, self._codes, state, skip)
        counts = FoldCounts(changes, Conflicts(*walked.conflicts))
        return self._folded(rows, counts, walked.expected.astype(np.int64))

    def _state(self, initial: int, lake_counts: pa.Table | None) -> Array:
        assert self._codes is not None
        answered = self.truncated or lake_counts is not None
        state = np.full(self._codes.count, 0 if answered else initial, np.int64)
        if lake_counts is not None and not self.truncated:
            state[lake_counts["code"].to_numpy()] = lake_counts["held"].to_numpy()
        return state

    def _folded(self, rows: pa.Table, counts: FoldCounts, expected: Array) -> Folded:
        merged, key = self._merged, self.key
        return Folded(merged.table, merged.columns, key, self.truncated, rows, counts, expected, self.bag)


def segment_folds(changes: Sequence[tuple[BatchRelation, pa.Table]]) -> list[SegmentFold]:
    """All changes of one table in a batch, to be folded and applied one after the other.

    Args:
        changes: (relation version, its rows as in the change log) of one table, each in ``seq`` order.

    Returns:
        One, unless the table's key or replica identity changed within the batch.

    Raises:
        ApplyError: a row was updated or deleted that nothing names.
    """
    return [SegmentFold(segment) for segment in segments(changes)]


def fold(changes: Sequence[tuple[BatchRelation, pa.Table]]) -> list[Folded]:
    """The same folded, for a lake that has all that the changes count on."""
    return [segment_fold.fold() for segment_fold in segment_folds(changes)]


def _require_inserts(merged: Merged) -> None:
    if np.any(merged.op != INSERT):
        raise ApplyError(
            "a row of a table without a key was updated or deleted",
            where=f"table {merged.table}",
            way_out="give the table a primary key, or a unique index on NOT NULL columns and "
            "ALTER TABLE … REPLICA IDENTITY USING INDEX …, or REPLICA IDENTITY FULL (of a partitioned "
            "table: its own and its partitions'), then copy it again with `slotlake backfill`",
        )


def _plain_inserts(merged: Merged) -> pa.Table:
    everything = np.arange(len(merged.op), dtype=np.int64)
    arrays: dict[str, pa.Array] = {"action": pa.array(np.full(len(everything), INSERT, np.int8))}
    for position in range(len(merged.columns)):
        arrays.update(merged.take(position, everything))
    return pa.table(arrays)


def _fold_keyed(
    merged: Merged, key: tuple[str, ...], codes: KeyCodes, state: Array, skip: bool
) -> tuple[pa.Table, Walked]:
    positions = [merged.position(name) for name in key]
    walked = walk(merged.op, codes.new, codes.old, merged.whole, state, skip=skip)
    arrays: dict[str, pa.Array] = {"action": pa.array(walked.action)}
    for position in range(len(merged.columns)):
        arrays.update(_final_column(merged, position, positions, walked, codes))
    arrays.update(_moved_from(merged, positions, walked, codes))
    return pa.table(arrays), walked


def _require_identity(merged: Merged, positions: list[int]) -> None:
    """Every delete must name its row, by columns that its old tuple carries."""
    nameless = np.any((merged.op == DELETE) & (merged.old == OLD_NONE))
    carried = [merged.carried[position] for position in positions]
    if nameless or any(np.any((merged.old != OLD_NONE) & ~of) for of in carried):
        raise ApplyError(
            "an update or delete does not carry the columns that identify its row",
            where=f"table {merged.table}",
            way_out="ALTER TABLE … REPLICA IDENTITY FULL (or DEFAULT, with a primary key), "
            "then copy the table again with `slotlake backfill`",
        )


def _final_column(
    merged: Merged, position: int, key_positions: list[int], walked: Walked, codes: KeyCodes
) -> dict[str, pa.Array]:
    source = walked.last
    unchanged = merged.unchanged[position]
    if unchanged is not None:
        source = chase(walked.last, walked.previous, unchanged, merged.carried[position])
    deleted = walked.action == ACTIONS["delete"]
    if position in key_positions:
        source = np.where(deleted, codes.representative[walked.key], source)
    arrays = merged.take(position, source)
    if unchanged is not None:
        from_lake = (source < 0) & (walked.origin >= 0) & ~deleted
        if np.any(from_lake):
            arrays[f"u{position}"] = pa.array(from_lake)
    return arrays


def _moved_from(merged: Merged, positions: list[int], walked: Walked, codes: KeyCodes) -> dict[str, pa.Array]:
    moved = walked.action == ACTIONS["moved"]
    if not np.any(moved):
        return {}
    source = np.where(moved, codes.representative[walked.origin], -1)
    arrays: dict[str, pa.Array] = {}
    for position in positions:
        for name, values in merged.take(position, source).items():
            arrays[name.replace("n", "m", 1)] = values
    return arrays


# Fold the changes of a table without a key: how many rows of each kind go and come.
#
# Under REPLICA IDENTITY FULL every update and delete carries the whole old row, and a subscriber removes
# one row equal to it, whichever (worker.c, FindReplTupleInLocalRel; execReplication.c, tuples_equal).  So
# a batch comes down to two numbers per distinct row: how many go, and how many come then.  A row that was
# removed and put back counts in both, so that the number that goes is what the lake must have.
#
# NULL equals NULL.  Rows are told apart as PostgreSQL prints them: numeric 1.0 and 1.00, or float -0 and 0,
# are two rows, though ``=`` holds them equal.  That is finer than a subscriber, and right: the server names
# the old row by its own bytes, so the lake ends with the source's rows, where a subscriber may keep 1.00
# in place of 1.0.


def bag_codes(merged: Merged) -> KeyCodes:
    """Number the distinct rows of all changes.

    Raises:
        ApplyError: an update or delete does not carry the whole old row.
    """
    if np.any((merged.op != INSERT) & (merged.old != OLD_WHOLE)):
        raise ApplyError(
            "a change of a table without a key does not carry the whole old row",
            where=f"table {merged.table}",
            way_out="ALTER TABLE … REPLICA IDENTITY FULL (of a partitioned table: on its partitions too), "
            "or a primary key; then `slotlake backfill`",
        )
    for position in range(len(merged.columns)):
        merged.complete_key(position)
    return codes_of(merged.values, merged.op != INSERT, one_zero=False)


def fold_bag(
    merged: Merged, codes: KeyCodes, lake_counts: Array, *, skip: bool = False
) -> tuple[pa.Table, tuple[int, ...]]:
    """Fold all changes.

    Args:
        lake_counts: int64 per code, how many such rows the lake has; -1 for enough.
        skip: see `spark.fold.conflicts`.

    Returns:
        Per distinct row that goes or comes: ``remove`` and ``add`` (int64; remove first), ``n<i>`` and
        ``xn<i>`` as in a fold by key; and conflicts as `fold_walk.walk_bag` has them.
    """
    remove, add, conflicts = walk_bag(merged.op, codes.new, codes.old, lake_counts, skip=skip)
    changed_codes = np.flatnonzero((remove > 0) | (add > 0))
    arrays: dict[str, pa.Array] = {
        "remove": pa.array(remove[changed_codes]),
        "add": pa.array(add[changed_codes]),
    }
    for position in range(len(merged.columns)):
        arrays.update(merged.take(position, codes.representative[changed_codes]))
    return pa.table(arrays), conflicts
