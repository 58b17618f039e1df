"""Fold a batch into the versions of rows that it closes and opens.

A version is what a row was from the end of one transaction that wrote it to the end of the next one that did.
Its values are followed as in `spark.fold.batch`: what the server did not send is the value that the row had,
in the batch or in the lake.  A TRUNCATE ends all versions.  In a bag equal rows are one another's like: of
those that go, the oldest go first, so that the outcome does not depend on where batches end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from slotlake.decoder.compiled.arrays import distinct
from slotlake.spark.fold.batch import SegmentFold
from slotlake.spark.fold.columns import Array, Part, is_bag
from slotlake.spark.fold.segments import TRUNCATE, Segment
from slotlake.spark.fold.walk import chase
from slotlake.spark.history.walk import Events, walk, walk_bag
from slotlake.spark.tables.shapes import BatchColumn


@dataclass(frozen=True)
class Versions:
    """What a stretch of changes does to a table's versions. Numbers of columns index ``columns``.

    Attributes:
        rows: ``close`` bool. If true: the open version of the key ``n*`` ends (of a bag, instead: of the
            row ``code``, the ``number``-th oldest).  If false: a version begins, with values ``n<i>``,
            ``xn<i>``; where ``u<i>`` is true the value is that of the open version of the key ``m*``.
            ``from_lsn``, ``from_time``, ``to_lsn``, ``to_time``; NULL where there is none.
        lookup_rows: of a bag, the distinct rows of which versions end: ``code``, ``n<i>``, ``xn<i>``.
        truncated: LSN and time at which all versions that are open still, and no row closes, end.
    """

    columns: tuple[BatchColumn, ...]
    key: tuple[str, ...]
    bag: bool
    rows: pa.Table
    lookup_rows: pa.Table | None
    truncated: tuple[int, Any] | None

    @property
    def closes(self) -> int:
        """How many rows end a version; they come first."""
        return int(np.count_nonzero(self.rows["close"].to_numpy(zero_copy_only=False)))


class HistoryFold(SegmentFold):
    """Changes that name their row by the same columns, TRUNCATEs among them."""

    def __init__(self, parts: Sequence[Part]) -> None:
        row_changes = [(relation, rows.filter(_is(rows, TRUNCATE, other=True))) for relation, rows in parts]
        truncates = [rows.filter(_is(rows, TRUNCATE)) for _, rows in parts]
        changes = sum(rows.num_rows for _, rows in row_changes)
        super().__init__(Segment((*row_changes, *_widest(row_changes)), truncated=False, changes=changes))
        seq, self._txn = _in_order([rows for _, rows in row_changes])
        truncate_seq, truncate_txn = _in_order(truncates)
        self._truncates = (np.searchsorted(seq, truncate_seq), truncate_txn)

    @property
    def truncates(self) -> bool:
        """Whether a TRUNCATE is among the changes."""
        return len(self._truncates[1]) > 0

    def versions(
        self, open_counts: pa.Table | None, transactions: pa.Table, *, skip: bool = False
    ) -> Versions:
        """What the changes do to a history whose open versions are the lake's rows.

        Args:
            open_counts: ``code`` of `lookup_rows`, and how many open versions there are (``held``); a missing
                code means 0.
            transactions: as `decoder.changelog.batches.Batch.transaction_table` has them.
        """
        merged, codes = self._merged, self._codes
        if codes is None:
            return self._insert_versions(transactions)
        if self.bag:
            counted = walk_bag(
                (merged.op, codes.new, codes.old, self._txn),
                self._truncates,
                self._state(0, open_counts),
                skip=skip,
            )
            return self._bag_versions(counted, self._state(0, open_counts), transactions)
        has_open = self._state(0, open_counts) > 0
        changes = (merged.op, codes.new, codes.old, merged.whole, self._txn)
        return self._keyed_versions(
            walk(changes, self._truncates, has_open, skip=skip), has_open, transactions
        )

    def without_versions(self, lookup: pa.Table) -> Versions:
        """No versions: only the columns of a table from `lookup_rows`."""
        return Versions(self._merged.columns, self.key, self.bag, lookup, None, None)

    def _insert_versions(self, transactions: pa.Table) -> Versions:
        """Of a table without a key all changes are inserts."""
        begun = np.arange(len(self._merged.op))
        ends = np.searchsorted(self._truncates[0], begun, side="right")
        until = np.append(self._truncates[1], -1)[ends]
        begun = begun[until != self._txn]
        arrays: dict[str, pa.Array] = {"close": pa.array(np.zeros(len(begun), np.bool_))}
        arrays |= _times(transactions, self._txn[begun], until[begun])
        return self._versions(arrays, begun, transactions)

    def _bag_versions(self, events: Events, open_counts: Array, transactions: pa.Table) -> Versions:
        assert self._codes is not None
        representative = self._codes.representative
        ended, ending, opened, until = _paired(events, open_counts, self._truncates[1])
        nothing = np.full(len(ended), -1, np.int64)
        begun = np.concatenate([nothing, events.txn[opened]])
        codes = events.key[ended]
        arrays: dict[str, pa.Array] = {
            "close": pa.array(np.arange(len(begun)) < len(ended)),
            "code": pa.array(np.concatenate([codes, np.full(len(opened), -1, np.int64)])),
            "number": pa.array(np.concatenate([ending, np.zeros(len(opened), np.int64)])),
        }
        arrays |= _times(transactions, begun, np.concatenate([events.txn[ended], until]))
        known = distinct(codes)
        lookup: dict[str, pa.Array] = {"code": pa.array(known)}
        for position in range(len(self._merged.columns)):
            lookup |= self._merged.take(position, representative[known])
        source = np.concatenate([nothing, representative[events.key[opened]]])
        return self._versions(arrays, source, transactions, pa.table(lookup))

    def _keyed_versions(self, events: Events, has_open: Array, transactions: pa.Table) -> Versions:
        merged, codes = self._merged, self._codes
        assert codes is not None
        closes = np.flatnonzero(events.first & has_open[events.key])
        begins = np.flatnonzero(events.last >= 0)
        arrays: dict[str, pa.Array] = {"close": pa.array(np.arange(len(closes) + len(begins)) < len(closes))}
        begun = np.concatenate([np.full(len(closes), -1, np.int64), events.txn[begins]])
        arrays |= _times(transactions, begun, np.concatenate([events.txn[closes], events.next[begins]]))
        last, origin = events.last[begins], events.origin[begins]
        nothing = np.full(len(closes), -1, np.int64)
        ended = codes.representative[events.key[closes]]
        keys = [merged.position(name) for name in self.key]
        for position in range(len(merged.columns)):
            source, unchanged = last, merged.unchanged[position]
            if unchanged is not None:
                source = chase(last, events.previous, unchanged, merged.carried[position])
                from_lake = np.concatenate([nothing >= 0, (source < 0) & (origin >= 0)])
                arrays |= {f"u{position}": pa.array(from_lake)} if from_lake.any() else {}
            head = ended if position in keys else nothing
            arrays |= merged.take(position, np.concatenate([head, source]))
        came = np.concatenate([nothing, np.where(origin >= 0, codes.representative[origin], -1)])
        for position in keys if (came >= 0).any() else ():
            taken = merged.take(position, came)
            arrays |= {name.replace("n", "m", 1): values for name, values in taken.items()}
        return Versions(
            merged.columns, self.key, False, pa.table(arrays), None, self._truncation(transactions)
        )

    def _versions(
        self,
        arrays: dict[str, pa.Array],
        source: Array,
        transactions: pa.Table,
        lookup: pa.Table | None = None,
    ) -> Versions:
        for position in range(len(self._merged.columns)):
            arrays |= self._merged.take(position, source)
        when = self._truncation(transactions)
        return Versions(self._merged.columns, (), self.bag, pa.table(arrays), lookup, when)

    def _truncation(self, transactions: pa.Table) -> tuple[int, Any] | None:
        if not len(self._truncates[1]):
            return None
        first = int(self._truncates[1][0])
        return transactions["end_lsn"][first].as_py(), transactions["commit_time"][first].as_py()


def _is(rows: pa.Table, op: int, *, other: bool = False) -> pa.Array:
    flags: pa.Array = pa.array((rows["op"].to_numpy() == op) != other)
    return flags


def _in_order(tables: Sequence[pa.Table]) -> tuple[Array, Array]:
    """``seq`` and ``txn`` of all rows, by ``seq``."""
    seq, txn = (
        np.concatenate([np.empty(0, np.int64), *(rows[name].to_numpy() for rows in tables)]).astype(np.int64)
        for name in ("seq", "txn")
    )
    order = np.argsort(seq, kind="stable")
    return seq[order], txn[order]


def _widest(parts: Sequence[Part]) -> list[Part]:
    """A version with the columns of all, if the newest lacks some: versions from before had them."""
    relation: Any = parts[-1][0]
    names = {column.name for column in relation.columns}
    missing: dict[str, Any] = {c.name: c for older, _ in parts for c in older.columns if c.name not in names}
    if not missing or is_bag(relation):
        return []
    past = (replace(column, in_key=False) for column in missing.values())
    return [(replace(relation, columns=(*relation.columns, *past)), parts[-1][1].slice(0, 0))]


def _paired(events: Events, open_counts: Array, truncating: Array) -> tuple[Array, Array, Array, Array]:
    """Of a bag: which copies of a row begin and end, the oldest ending first.

    A transaction ends or begins as many as it leaves less or more; one that truncates ends all there were.

    Returns:
        The events that end a copy which the lake has, and which of its copies (1 is the oldest); the events
        that begin one, and the transaction that ends it (-1: none).
    """
    before = np.where(
        events.first, open_counts[events.key], np.append(0, events.last[:-1])[: len(events.key)]
    )
    change = events.last - before
    truncates = np.isin(events.txn, truncating)
    opens = np.repeat(np.arange(len(change)), np.where(truncates, events.last, np.maximum(change, 0)))
    closes = np.repeat(np.arange(len(change)), np.where(truncates, before, np.maximum(-change, 0)))
    closed = events.key[closes]
    rank = _rank(closed)
    in_batch = rank >= open_counts[closed]
    until = np.full(len(opens), -1, np.int64)
    place = (
        np.searchsorted(events.key[opens], closed[in_batch]) + rank[in_batch] - open_counts[closed[in_batch]]
    )
    until[place] = events.txn[closes[in_batch]]
    return closes[~in_batch], rank[~in_batch] + 1, opens, until


def _rank(keys: Array) -> Array:
    """0, 1, … within each run of equal keys."""
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    return np.arange(len(keys)) - np.repeat(starts, np.diff(np.append(starts, len(keys))))


def _times(transactions: pa.Table, begun: Array, ended: Array) -> dict[str, pa.Array]:
    """LSN and time at which versions begin and end; NULL where -1."""
    arrays = {}
    for side, txn in (("from", begun), ("to", ended)):
        at = pa.array(txn, pa.int64(), mask=txn < 0)
        arrays[f"{side}_lsn"] = transactions["end_lsn"].take(at).combine_chunks()
        arrays[f"{side}_time"] = transactions["commit_time"].take(at).combine_chunks()
    return arrays
