"""The changes that a batch has for one table, as its mirror and its derived tables take them.

A batch that fits into the memory that there is for it is read once and folded as a whole.  A larger one is
read slice by slice: once to learn what concerns all slices (`spark.fold.slices.Outline`, columns that need
their exact texts), then once per table that is staged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from slotlake.spark.fold.batch import SegmentFold, segment_folds
from slotlake.spark.fold.columns import Part
from slotlake.spark.fold.segments import segments_with_truncates
from slotlake.spark.fold.slices import (
    NO_ROWS,
    ChangeSlice,
    Outline,
    by_transactions,
    slice_folds,
    slices,
    weight_of,
)
from slotlake.spark.merge.schema_changes import follow_schema_changes, schema_after, with_present_names
from slotlake.spark.publish.sidecar import BatchSidecar
from slotlake.spark.row_filter.selection import select_changes
from slotlake.spark.tables.schema import TableSchema
from slotlake.spark.tables.shapes import BatchRelation, ChangeBatch

# How often what a slice weighs is in memory while it is read, folded and written for Spark.
_COPIES = 3
# Such a part of a slice may wait for the rest of its transaction.
_CARRIED = 4


class TableChanges(Protocol):
    """The changes of one table.

    Attributes:
        schema: the table's shape after them.
        sliced: there is more than one slice; each is in memory only while it is used.
        relations: the relation versions, as the lake takes them.
    """

    schema: TableSchema
    sliced: bool
    relations: Sequence[Any]

    def folds(self) -> Iterable[SegmentFold]:
        """Return what is to be folded and applied to the mirror, one after the other."""

    def slices(self) -> Iterable[ChangeSlice]:
        """Return the changes themselves, one slice after the other."""


def table_changes(
    batch: ChangeBatch,
    relations: Sequence[BatchRelation],
    schema: TableSchema,
    sidecar: BatchSidecar,
    memory_bytes: int,
) -> TableChanges:
    """Return the changes of one table as the lake takes them.

    Args:
        memory_bytes: so much memory may be used.

    Raises:
        ApplyError: the lake cannot take a change.
        ChangeLogError: a file of the batch is damaged.
    """
    weight_max = max(1, memory_bytes // _COPIES)
    if sum(weight_of(batch.relation_bytes(each), each.rows) for each in relations) <= weight_max:
        return InOnePiece(batch, relations, schema, sidecar)
    return InSlices(batch, relations, schema, sidecar, weight_max)


def raw_slices(
    batch: ChangeBatch, relations: Sequence[BatchRelation], memory_bytes: int
) -> Iterator[list[Part]]:
    """Read all changes of one table as the batch has them, slice by slice.

    Args:
        memory_bytes: so much memory may be used.
    """
    for rows in _slices(batch, relations, max(1, memory_bytes // _COPIES)):
        yield [(relations[version], each) for version, each in rows.items()]


def _slices(
    batch: ChangeBatch, relations: Sequence[BatchRelation], weight_max: int
) -> Iterator[dict[int, pa.Table]]:
    return slices([batch.relation_pieces(each) for each in relations], weight_max)


def _slices_by_transactions(
    batch: ChangeBatch, relations: Sequence[BatchRelation], weight_max: int
) -> Iterator[dict[int, pa.Table]]:
    """The same; what is carried over from a slice is in memory with the next one."""
    carried_max = weight_max // _CARRIED
    return by_transactions(_slices(batch, relations, max(1, weight_max - carried_max)), carried_max)


class InOnePiece:
    """All changes of a table at once.

    Attributes:
        parts: relation versions with their changes, as the lake takes them.
    """

    sliced = False

    def __init__(
        self,
        batch: ChangeBatch,
        relations: Sequence[BatchRelation],
        schema: TableSchema,
        sidecar: BatchSidecar,
    ) -> None:
        selected = select_changes(schema.selection, [(r, batch.relation_table(r)) for r in relations])
        self.parts, schema = follow_schema_changes(schema, selected.changes, sidecar)
        exact = [name for part in self.parts for name in _exact_columns(part)]
        self.schema = schema.with_lost(selected.lost).with_exact(exact)
        self.relations: Sequence[Any] = [relation for relation, _ in self.parts]
        self._batch = batch

    def folds(self) -> Sequence[SegmentFold]:
        """Return one fold, unless the table's key changed meanwhile."""
        return segment_folds(self.parts)

    def slices(self) -> Iterator[ChangeSlice]:
        """Return the only slice."""
        segments = segments_with_truncates([part for part in self.parts if part[1].num_rows])
        yield ChangeSlice(segments, self.transactions())

    def transactions(self) -> pa.Table:
        """Return all transactions of the batch."""
        return self._batch.transaction_table()


@dataclass(frozen=True)
class _Taken:
    """What the lake takes of a slice; ``parts``: of all relation versions, by number."""

    sent: dict[int, pa.Table]
    parts: list[Part]
    lost: frozenset[str]


class InSlices:
    """The changes of a table, read again whenever they are asked for."""

    sliced = True

    def __init__(
        self,
        batch: ChangeBatch,
        relations: Sequence[BatchRelation],
        schema: TableSchema,
        sidecar: BatchSidecar,
        weight_max: int,
    ) -> None:
        self._batch, self._relations, self._weight_max = batch, relations, weight_max
        # What a transaction did to a row and took back leaves no mark (`spark.history.divided`).
        self._cut = _slices_by_transactions if schema.soft_deletes else _slices
        self._selection, self._sidecar = schema.selection, sidecar
        no_rows = select_changes(schema.selection, [(each, NO_ROWS) for each in relations]).changes
        self.schema = schema_after(schema, [relation for relation, _ in no_rows], sidecar)
        self._no_rows = with_present_names(self.schema, no_rows, sidecar)
        self.relations: Sequence[Any] = [relation for relation, _ in self._no_rows]
        self._outline = Outline(self.relations)
        self._look_through()

    def _look_through(self) -> None:
        exact: set[str] = set()
        lost: frozenset[str] = frozenset()
        for taken in self._taken():
            rows = {version: taken.parts[version][1] for version in taken.sent}
            self._outline.add(taken.sent, rows)
            exact.update(*map(_exact_columns, taken.parts))
            lost |= taken.lost
        self.schema = self.schema.with_lost(lost).with_exact(sorted(exact))

    def _taken(self) -> Iterator[_Taken]:
        for sent in self._cut(self._batch, self._relations, self._weight_max):
            raw = [(self._relations[version], rows) for version, rows in sent.items()]
            selected = select_changes(self._selection, raw)
            changes = with_present_names(self.schema, selected.changes, self._sidecar)
            parts = list(self._no_rows)
            for version, part in zip(sent, changes, strict=True):
                parts[version] = part
            yield _Taken(sent, parts, selected.lost)

    def folds(self) -> Iterator[SegmentFold]:
        """Return fold after fold."""
        return slice_folds(self._outline, (taken.parts for taken in self._taken()))

    def slices(self) -> Iterator[ChangeSlice]:
        """Return slice after slice."""
        for taken in self._taken():
            numbers = [rows["txn"].to_numpy() for _, rows in taken.parts if rows.num_rows]
            if not numbers:
                continue
            first, last = min(int(each.min()) for each in numbers), max(int(each.max()) for each in numbers)
            parts = [(relation, _renumbered(rows, first)) for relation, rows in taken.parts]
            transactions = self._batch.transactions_between(first, last + 1)
            yield ChangeSlice(self._outline.segments(parts), transactions, first)


def _renumbered(rows: pa.Table, first: int) -> pa.Table:
    """The changes with transactions counted from ``first``."""
    numbers = pa.array((rows["txn"].to_numpy() - first).astype(np.int32))
    return rows.set_column(rows.column_names.index("txn"), "txn", numbers)


def _exact_columns(part: Part) -> list[str]:
    """Columns with a value that only its exact text holds."""
    relation, rows = part
    present = set(rows.column_names)
    return [
        column.name
        for i, column in enumerate(relation.columns)
        if any(n in present and rows[n].null_count < rows.num_rows for n in (f"xn{i}", f"xo{i}"))
    ]
