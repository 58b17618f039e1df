"""Cuts a table's changes into slices that follow each other, so that memory does not grow with a batch.

A slice is folded and applied as if it were a batch of its own, on what the slices before it left.  It may end
within a transaction.  What one slice cannot know of the others is in the `Outline`: the last TRUNCATE, and
which relation version was the newest, whose columns and types the rows of all slices get.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from slotlake.spark.fold.batch import SegmentFold
from slotlake.spark.fold.columns import Array, Part, naming
from slotlake.spark.fold.segments import Segment, between, last_truncate

# What a fold needs per change beside its values: codes of keys, links between changes, actions.
_CHANGE_BYTES = 100
# Number of the relation version → its changes.
Slice = dict[int, pa.Table]
NO_ROWS = pa.table(
    {
        "seq": pa.array([], pa.int64()),
        "op": pa.array([], pa.int8()),
        "txn": pa.array([], pa.int32()),
        "lsn": pa.array([], pa.int64()),
        "old": pa.array([], pa.int8()),
    }
)


@dataclass(frozen=True)
class ChangeSlice:
    """Changes of one table that follow each other.

    Attributes:
        segments: the changes, TRUNCATEs among them, cut where they begin to name their row by other columns.
        transactions: row i is the transaction of changes whose ``txn`` is i.
        first_transaction: the number in the batch of the first row of ``transactions``.
    """

    segments: Sequence[Sequence[Part]]
    transactions: pa.Table
    first_transaction: int = 0

    @property
    def parts(self) -> list[Part]:
        """Relation versions with their changes."""
        return [part for segment in self.segments for part in segment if part[1].num_rows]


def weight(rows: pa.Table) -> int:
    """Return about how many bytes folding changes takes per copy of them that is made."""
    return weight_of(rows.nbytes, rows.num_rows)


def weight_of(values_bytes: int, rows: int) -> int:
    """As `weight`, of changes that are not in memory."""
    return values_bytes + rows * _CHANGE_BYTES


class _Cursor:
    """Reads the changes of one relation version, in ``seq`` order."""

    def __init__(self, version: int, pieces: Iterator[pa.Table]) -> None:
        self.version = version
        self._pieces = pieces
        self._rows, self._seq, self._at = NO_ROWS, np.empty(0, np.int64), 0
        self._fill()

    @property
    def ended(self) -> bool:
        return self._at == len(self._seq)

    @property
    def next_seq(self) -> int:
        return int(self._seq[self._at])

    def _fill(self) -> None:
        while self.ended:
            rows = next(self._pieces, None)
            if rows is None:
                self._rows = NO_ROWS
                return
            self._rows, self._seq, self._at = rows, rows["seq"].to_numpy(), 0

    def take(self, until: int | None, weight_left: int) -> pa.Table:
        """Take rows before ``until``: so many as the weight allows, at least one."""
        stop = len(self._seq) if until is None else int(np.searchsorted(self._seq, until))
        per_row = weight(self._rows) / len(self._seq)
        stop = min(stop, self._at + max(1, int(weight_left / per_row)))
        rows = self._rows.slice(self._at, stop - self._at)
        self._at = stop
        self._fill()
        return rows


def slices(pieces: Sequence[Iterator[pa.Table]], weight_max: int) -> Iterator[dict[int, pa.Table]]:
    """Cut the changes of several relation versions of one table into slices, in ``seq`` order.

    Args:
        pieces: per relation version its changes, in pieces.
        weight_max: how much a slice may weigh; it has one change at least.

    Returns:
        Per slice: number of the relation version → its changes.
    """
    cursors = [cursor for cursor in (_Cursor(i, each) for i, each in enumerate(pieces)) if not cursor.ended]
    taken: dict[int, list[pa.Table]] = {}
    left = weight_max
    while cursors:
        cursor = min(cursors, key=lambda each: each.next_seq)
        until = min((each.next_seq for each in cursors if each is not cursor), default=None)
        rows = cursor.take(until, left)
        taken.setdefault(cursor.version, []).append(rows)
        left -= weight(rows)
        if cursor.ended:
            cursors.remove(cursor)
        if left <= 0 or not cursors:
            del rows
            yield {
                version: pa.concat_tables(parts, promote_options="default")
                for version, parts in taken.items()
            }
            taken, left = {}, weight_max


def by_transactions(slices_in_order: Iterable[Slice], carried_max: int) -> Iterator[Slice]:
    """Cut slices anew, so that each has whole transactions, or changes of a single one.

    Args:
        slices_in_order: as `slices` gives them.
        carried_max: the weight up to which the last transaction's changes wait for the next slice.
    """
    carried: Slice = {}
    divided = -1  # the transaction of which the last slice had a part
    for each in slices_in_order:
        rows = _joined(carried, each)
        first, last = _transactions(rows)
        if first == divided != last:
            part, rows = _parted(rows, first + 1)
            yield part
        whole, carried = _parted(rows, last)
        if whole:
            yield whole
        if sum(map(weight, carried.values())) > carried_max:
            yield carried
            divided, carried = last, {}
        # Not a view: that would keep the whole slice in memory.
        carried = {version: each.take(np.arange(each.num_rows)) for version, each in carried.items()}
        del rows, whole, each
    if carried:
        yield carried


def _joined(carried: Slice, more: Slice) -> Slice:
    versions = sorted({*carried, *more})
    parts = {version: [each[version] for each in (carried, more) if version in each] for version in versions}
    return {version: pa.concat_tables(each, promote_options="default") for version, each in parts.items()}


def _transactions(rows: Slice) -> tuple[int, int]:
    """The first and the last transaction of a slice."""
    numbers = [each["txn"].to_numpy() for each in rows.values()]
    return min(int(each[0]) for each in numbers), max(int(each[-1]) for each in numbers)


def _parted(rows: Slice, transaction: int) -> tuple[Slice, Slice]:
    """What comes before a transaction, and the rest."""
    starts = {
        version: int(np.searchsorted(each["txn"].to_numpy(), transaction)) for version, each in rows.items()
    }
    before = {version: each.slice(0, starts[version]) for version, each in rows.items() if starts[version]}
    rest = {v: each.slice(starts[v]) for v, each in rows.items() if starts[v] < each.num_rows}
    return before, rest


@dataclass
class _Run:
    """Changes that name their row by the same columns; ``last``: relation version → its last ``seq``."""

    kind: int
    start: int
    last: dict[int, int] = field(default_factory=dict)


class Outline:
    """What must be known of all changes of a table before the first slice of them is folded.

    Attributes:
        last_truncate: ``seq`` of the last TRUNCATE; -1 if there is none.
    """

    def __init__(self, relations: Sequence[Any]) -> None:
        kinds: dict[frozenset[tuple[Any, ...]], int] = {}
        self._kinds = [kinds.setdefault(frozenset(naming(each)), len(kinds)) for each in relations]
        self._runs: list[_Run] = []
        self._last = dict.fromkeys(range(len(relations)), -1)
        self.last_truncate = -1

    def add(self, sent: Mapping[int, pa.Table], rows: Mapping[int, pa.Table]) -> None:
        """Look at the next slice.

        Args:
            sent: number of the relation version → its changes as they came.
        """
        self._last |= {version: int(each["seq"][-1].as_py()) for version, each in sent.items()}
        self.last_truncate = max(self.last_truncate, *(last_truncate(each) for each in rows.values()), -1)
        seq = np.concatenate([np.empty(0, np.int64), *(each["seq"].to_numpy() for each in rows.values())])
        version = np.concatenate(
            [np.empty(0, np.int64), *(np.full(each.num_rows, number) for number, each in rows.items())]
        )
        order = np.argsort(seq, kind="stable")
        self._extend(seq[order], version[order])

    def _extend(self, seq: Array, version: Array) -> None:
        kinds = np.array(self._kinds)[version.astype(np.int64)]
        starts = [0, *(np.flatnonzero(np.diff(kinds)) + 1), len(seq)] if len(seq) else []
        for start, stop in pairwise(starts):
            if not self._runs or self._runs[-1].kind != kinds[start]:
                self._runs.append(_Run(int(kinds[start]), int(seq[start])))
            for each in np.unique(version[start:stop]):
                last = int(seq[start:stop][version[start:stop] == each][-1])
                self._runs[-1].last[int(each)] = last

    def segments(self, parts: Sequence[Part], *, after: int = -1) -> list[list[Part]]:
        """Cut a slice where its changes begin to name their row by something else.

        Args:
            parts: all relation versions with what the slice has of them.
            after: only changes with a greater ``seq``.

        Returns:
            Per segment all relation versions that may be folded together, the newest last.
        """
        bounds = [0, *(run.start for run in self._runs[1:]), None]
        of_runs = []
        for run, (low, high) in zip(self._runs, pairwise(bounds), strict=False):
            segment = [
                (parts[version][0], between(parts[version][1], max(low or 0, after + 1), high))
                for version in self._versions(run)
            ]
            if any(rows.num_rows for _, rows in segment):
                of_runs.append(segment)
        return of_runs

    def newest(self, parts: Sequence[Part]) -> Part:
        """The relation version that is in force at the end."""
        return parts[max(self._last, key=lambda version: (self._last[version], version))]

    def _versions(self, run: _Run) -> list[int]:
        """The versions of a run, by when they were last in force."""
        last = self._last if len(set(self._kinds)) == 1 else run.last
        return sorted(last, key=lambda version: (last[version], version))


def slice_folds(outline: Outline, slices_of_parts: Iterator[Sequence[Part]]) -> Iterator[SegmentFold]:
    """Fold slice after slice; what comes before the last TRUNCATE is left out.

    Args:
        outline: of all changes.
        slices_of_parts: per slice all relation versions with what it has of them.

    Raises:
        ApplyError: a row was updated or deleted that nothing names.
    """
    truncated = outline.last_truncate >= 0
    newest: Any = None
    for parts in slices_of_parts:
        newest = outline.newest(parts)[0]
        folds = []
        for segment in outline.segments(parts, after=outline.last_truncate):
            changes = sum(rows.num_rows for _, rows in segment)
            folds.append(SegmentFold(Segment(tuple(segment), truncated, changes)))
            truncated = False
        # The rows as they were read are no longer needed, but for these names.
        parts, segment = [], []  # noqa: PLW2901
        while folds:
            yield folds.pop(0)
    if truncated and newest is not None:
        yield SegmentFold(Segment(((newest, NO_ROWS),), truncated=True, changes=0))
