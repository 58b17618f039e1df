"""The lake's half of a reconciliation: the same hashes, over Arrow batches of PostgreSQL's text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import pyarrow as pa

from slotlake.decoder.compiled.arrays import python_values
from slotlake.decoder.errors import LakeError
from slotlake.expectations.executors.side import KEYS_MAX, ByExecutors, ExecutorSide
from slotlake.expectations.hashing import (
    KEY_SEED,
    BucketSums,
    Hashes,
    chain,
    escaped_texts,
    hash_column,
    hash_columns,
)
from slotlake.expectations.sessions.threads import LakeThreads
from slotlake.expectations.shapes import Compared, LakeReadPoint
from slotlake.expectations.source_side import BUCKETS, NAME_TEXT_MAX, RowDetail, Sums

T = TypeVar("T")
_HashedRows = tuple[pa.RecordBatch, Hashes, Hashes]


@runtime_checkable
class Printing(Protocol):
    """A read point that gives a table's rows before they are printed, so that several threads can print."""

    def batches_to_print(
        self, table: str, columns: Sequence[str] | None = None
    ) -> tuple[Iterator[pa.RecordBatch], Callable[[pa.RecordBatch], pa.RecordBatch]]:
        """As `LakeReadPoint.text_batches`: the rows, and what makes texts of a batch."""


@dataclass(frozen=True)
class LakeTable:
    """One table of a read point.

    Attributes:
        read_point: the lake.
        table: the table.
        rows: reads its rows in place of `LakeReadPoint.text_batches`; None: that is used.
        history: what ``rows`` reads are the open versions of the table's history.
        threads: print and hash the rows; None: whoever asks does it.

    Executors read a large table of a read point that has some (`executors.side`); then no row of it comes
    here that is not asked for.
    """

    read_point: LakeReadPoint
    table: Compared
    rows: Callable[[str, Sequence[str]], Iterator[pa.RecordBatch]] | None = None
    history: bool = False
    threads: LakeThreads | None = None

    def sums(self) -> Sums:
        """As `SourceTable.sums`."""
        asked = self._asked(lambda side: side.sums())
        if asked is not None:
            return asked
        added = BucketSums(BUCKETS)
        for _, keys, rows in self.hashed():
            added.add(keys & (BUCKETS - 1), rows)
        totals = added.totals()
        return {int(b): (int(added.counts[b]), totals[b]) for b in np.flatnonzero(added.counts)}

    def hashes(self, buckets: Sequence[int]) -> tuple[Hashes, Hashes]:
        """As `SourceTable.hashes`."""
        asked = self._asked(lambda side: side.hashes(buckets))
        if asked is not None:
            return asked
        in_buckets = np.zeros(BUCKETS, bool)
        in_buckets[list(buckets)] = True
        parts = [
            (keys[selected], rows[selected])
            for _, keys, rows in self.hashed()
            for selected in [in_buckets[keys & (BUCKETS - 1)]]
        ]
        nothing = np.zeros(0, np.int64)
        return (
            np.concatenate([nothing, *(keys for keys, _ in parts)]),
            np.concatenate([nothing, *(rows for _, rows in parts)]),
        )

    def details(self, keys: Sequence[int]) -> dict[int, RowDetail]:
        """As `SourceTable.details`; of rows with the same key, the one that comes last."""
        details: dict[int, RowDetail] = {}
        for batch, hashes in self.chosen(keys):
            details.update(self._detailed(batch, hashes))
        return details

    def chosen(self, keys: Sequence[int]) -> Iterator[tuple[pa.RecordBatch, Hashes]]:
        """Yield the rows that have one of these key hashes, each with that."""
        sorted_keys = np.unique(np.array(keys, np.int64))
        if not len(sorted_keys):
            return
        if len(sorted_keys) <= KEYS_MAX:
            asked = self._asked(lambda side: side.chosen(sorted_keys))
            if asked is not None:
                yield from asked
                return
        for batch, hashes, _ in self.hashed():
            positions = np.flatnonzero(np.isin(hashes, sorted_keys))
            if len(positions):
                yield batch.take(pa.array(positions)), hashes[positions]

    @property
    def by_executors(self) -> bool:
        """Whether Spark's executors read the rows."""
        return self._side() is not None

    def _side(self) -> ExecutorSide | None:
        point, table = self.read_point, self.table
        if not isinstance(point, ByExecutors) or (self.rows is not None and not self.history):
            return None
        rows = point.executor_rows(table.name, table.column_names, history=self.history)
        return None if rows is None else ExecutorSide.of(rows, table, point.note)

    def _asked(self, work: Callable[[ExecutorSide], T]) -> T | None:
        """What executors answer; None if slotlake is to read the rows itself."""
        side = self._side()
        if side is None:
            return None
        try:
            return work(side)
        except LakeError as error:
            if isinstance(self.read_point, ByExecutors):
                self.read_point.give_up(error)
            return None

    def keyed(self) -> Iterator[tuple[pa.RecordBatch, Hashes]]:
        """All rows, each with its key's hash."""
        return ((batch, keys) for batch, keys, _ in self.hashed())

    def _detailed(self, batch: pa.RecordBatch, hashes: Hashes) -> Iterator[tuple[int, RowDetail]]:
        names = [(name, _shown(batch.column(name))) for name, _ in self.table.named]
        values = [
            _column_hashes(self._hashable(batch, name), i) for i, (name, _) in enumerate(self.table.values)
        ]
        for row, key in enumerate(hashes.tolist()):
            label = {
                name: None if texts[row] is None else texts[row][:NAME_TEXT_MAX] for name, texts in names
            }
            yield key, RowDetail(label, tuple(column[row] for column in values))

    def hashed(self) -> Iterator[_HashedRows]:
        """The rows, and the key's and the row's hash of each."""
        batches, printed = self._batches()

        def work(batch: pa.RecordBatch) -> _HashedRows:
            return self._hashed(printed(batch))

        filled = (batch for batch in batches if batch.num_rows)
        return map(work, filled) if self.threads is None else self.threads.mapped(work, filled)

    def _batches(self) -> tuple[Iterator[pa.RecordBatch], Callable[[pa.RecordBatch], pa.RecordBatch]]:
        """The rows as they are read, and what makes texts of them."""
        names = self.table.column_names
        if self.rows is None and isinstance(self.read_point, Printing):
            return self.read_point.batches_to_print(self.table.name, names)
        return (self.rows or self.read_point.text_batches)(self.table.name, names), lambda batch: batch

    def _hashed(self, batch: pa.RecordBatch) -> _HashedRows:
        key = [self._hashable(batch, name) for name, _ in self.table.key]
        values = [self._hashable(batch, name) for name, _ in self.table.values]
        combined = hash_columns(values) if values else np.zeros(batch.num_rows, np.int64)
        rows = chain(key, combined)
        return batch, chain(key, np.full(batch.num_rows, KEY_SEED, np.int64)) if key else rows, rows

    def _hashable(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        column = batch.column(name)
        return escaped_texts(column) if self.table.escaped else column


def _shown(texts: pa.Array) -> list[Any]:
    """Texts, to name rows by; of a damaged file they may be no UTF-8."""
    try:
        return python_values(texts)
    except UnicodeDecodeError:
        stored = texts.cast(pa.large_binary()).to_pylist()
        return [None if each is None else each.decode("utf-8", "replace") for each in stored]


def _column_hashes(column: pa.Array, number: int) -> list[int | None]:
    hashes = hash_column(column, number).tolist()
    return [
        None if null else hashed for hashed, null in zip(hashes, column.is_null().to_pylist(), strict=True)
    ]
