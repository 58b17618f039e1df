"""Compare the source, as one exported snapshot shows it, with the lake at that snapshot's LSN.

Three passes, each over less: (1) per table and key bucket, rows and the sum of row hashes; (2) in
buckets that differ, each row's hashes, which gives the exact totals; (3) for the first differing rows,
their keys, and which columns differ.  Equal tables take one pass on either side, both at the same
time.  A table without a key is compared as a bag of rows: equal rows count, and a changed row is one
missing and one extra.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import psycopg
import pyarrow as pa

from slotlake.decoder.catalog.vanished import VanishedError
from slotlake.decoder.errors import LockedError
from slotlake.decoder.lsn import format_lsn
from slotlake.expectations.differences import Differing, described, differing_buckets, differing_parts
from slotlake.expectations.hashing import Hashes
from slotlake.expectations.lake_side import LakeTable
from slotlake.expectations.results import (
    EXECUTORS,
    HISTORY,
    LOCKED,
    MARKED,
    NO_COLUMN,
    NO_TABLE,
    SLOTLAKE,
    Difference,
    Report,
    TableResult,
)
from slotlake.expectations.scopes.pace import Pace
from slotlake.expectations.scopes.slices import Slice, SliceRows
from slotlake.expectations.shapes import Compared, LakeReadPoint, OtherRows, SourceTableShape
from slotlake.expectations.source_side import (
    BUCKETS,
    RowDetail,
    SourceTable,
    Sums,
    hashes_escaped,
    reading,
    snapshot_session,
)
from slotlake.spark.names import postgres_name
from slotlake.spark.read.chosen_rows import chosen_text_batches, filtered

if TYPE_CHECKING:
    from slotlake.spark.read.point import ReadPoint

DIFFERENCES_MAX = 1000
CANCEL_SECONDS = 5.0
CANCEL_AGAIN_SECONDS = 0.2
_TABLES_AHEAD = 8
T = TypeVar("T")


def _silent(step: str, done: int, total: int | None = None) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class Manner:
    """How tables are compared.

    Attributes:
        others: what else the lake has of each table.
        pace: how much of the source may be taken.
        slices: table → the slice of it that is compared; all rows of the others.
    """

    others: OtherRows = field(default_factory=OtherRows)
    pace: Pace = field(default_factory=Pace)
    slices: Mapping[str, Slice] = field(default_factory=dict)

    def run(self, table: Compared, read_point: LakeReadPoint, server: _Server) -> _TableRun:
        """Begin with a table.

        Args:
            table: all of it, or that of which a slice is meant.
            read_point: the lake.
            server: the source.
        """
        part = self.slices.get(table.name)
        if part is None or part.is_all:
            return _TableRun.begin(LakeTable(read_point, table), server, self.others)
        rows = SliceRows(table, part)
        others = OtherRows(
            lambda name, columns: filtered(self.others.history(name, columns), rows),
            lambda name, columns: filtered(self.others.marked(name, columns), rows),
        )
        reader = partial(chosen_text_batches, cast("ReadPoint", read_point), rows)
        return _TableRun.begin(LakeTable(read_point, rows.at_source, reader), server, others)


def reconcile(
    dsn: str,
    snapshot: str,
    tables: Sequence[SourceTableShape],
    read_point: LakeReadPoint,
    *,
    lsn: int,
    progress: Callable[[str, int, int | None], None] = _silent,
    differences_max: int = DIFFERENCES_MAX,
    manner: Manner | None = None,
) -> Report:
    """Compare published tables.

    Args:
        dsn: the source.
        snapshot: an exported snapshot that shows exactly the transactions before ``lsn``.
        tables: what is published: columns, key, row filter.
        read_point: the lake at ``lsn``.
        progress: told (step, tables done, tables in all).
        differences_max: differing rows listed per table; the totals are exact whatever it is.
        manner: what else is compared, and at which pace.

    Raises:
        SourceError: the server cannot be reached, or may not be read in full.
        LakeError: the lake cannot be read.
    """
    started = time.monotonic()
    lake_tables = {(table.schema, table.table): table for table in read_point.tables()}
    results: dict[str, TableResult] = {}
    with snapshot_session(dsn, snapshot) as connection, ThreadPoolExecutor(1) as thread:
        compared: list[Compared] = []
        for table in tables:
            name = postgres_name(table.schema, table.table)
            lake = lake_tables.get((table.schema, table.table))
            if lake is None:
                results[name] = TableResult(name, 0, 0, {NO_TABLE: 1}, (Difference(NO_TABLE),))
            else:
                compared.append(Compared.of(name, table, lake, escaped=hashes_escaped(connection)))
        manner = manner or Manner()
        server = _Server(connection, thread, manner.pace)
        server.pace.begin(connection)
        try:
            for done, run in enumerate(_runs(compared, read_point, server, manner)):
                progress("compare", done, len(compared))
                result = run.result(differences_max)
                if result is not None:
                    results[run.table.name] = result
            progress("compare", len(compared), len(compared))
        except BaseException:  # Ctrl-C too: do not wait for what the server is busy with
            server.cancel()
            raise
    names = [postgres_name(table.schema, table.table) for table in tables]
    ordered = {name: results[name] for name in names if name in results}
    return Report(format_lsn(lsn), ordered, round(time.monotonic() - started, 3))


@dataclass
class _Server:
    """The source's one connection, over which one thread asks one thing after the other."""

    connection: psycopg.Connection[object]
    thread: ThreadPoolExecutor
    pace: Pace
    _asked: list[Future[Any]] = field(default_factory=list)

    def ask(self, table: Compared, work: Callable[[SourceTable], T]) -> Future[T]:
        """Begin some work on a table, once what was asked before is done."""

        def asked() -> T:
            self.pace.rest()
            with self.pace.working(), reading(self.connection, table, locks_stay=False):
                return work(SourceTable(self.connection, table))

        future = self.thread.submit(asked)
        self._asked = [*(each for each in self._asked if not each.done()), future]
        return future

    def cancel(self) -> None:
        """End what the server computes; asked again: a statement that has not begun yet is not cancelled."""
        while running := [future for future in self._asked if not future.cancel() and not future.done()]:
            with suppress(psycopg.Error):  # the server is gone; so is what it computed
                self.connection.cancel_safe(timeout=CANCEL_SECONDS)
            wait(running, timeout=CANCEL_AGAIN_SECONDS)


def _runs(
    tables: Iterable[Compared], read_point: LakeReadPoint, server: _Server, manner: Manner
) -> Iterator[_TableRun]:
    """Yield the tables; the server is a few of them ahead, not all: their sums need memory."""
    ahead: deque[_TableRun] = deque()
    for table in tables:
        ahead.append(manner.run(table, read_point, server))
        if len(ahead) > _TABLES_AHEAD:
            yield ahead.popleft()
    while ahead:
        yield ahead.popleft()


@dataclass
class _TableRun:
    """One table; the server computes its sums while the lake side is read."""

    table: Compared
    server: _Server
    lake: LakeTable
    expected: Future[tuple[Sums, float]]
    others: OtherRows

    @classmethod
    def begin(cls, lake: LakeTable, server: _Server, others: OtherRows) -> _TableRun:
        expected = server.ask(lake.table, lambda source: _timed(source.sums))
        return cls(lake.table, server, lake, expected, others)

    def at_source(self, work: Callable[[SourceTable], T]) -> T:
        """Ask the source something more about this table."""
        return self.server.ask(self.table, work).result()

    def result(self, differences_max: int) -> TableResult | None:
        """Compare; look closer where needed.  None if the table was dropped meanwhile."""
        try:
            return self._compared(differences_max)
        except VanishedError:
            return None
        except LockedError as error:
            return TableResult(
                self.table.name, 0, 0, {LOCKED: 1}, (Difference(LOCKED, reason=error.way_out),)
            )

    def _compared(self, differences_max: int) -> TableResult:
        actual, lake_seconds = _timed(self.lake.sums)
        expected, source_seconds = self.expected.result()
        differing = differing_buckets(expected, actual)
        result = TableResult(
            table=self.table.name,
            source_rows=sum(count for count, _ in expected.values()),
            lake_rows=sum(count for count, _ in actual.values()),
            totals={NO_COLUMN: len(self.table.absent)} if self.table.absent else {},
            differences=tuple(Difference(NO_COLUMN, columns=(name,)) for name in self.table.absent),
            buckets=BUCKETS,
            buckets_different=len(differing),
            source_seconds=round(source_seconds, 3),
            lake_seconds=round(lake_seconds, 3),
            lake_read_by=EXECUTORS if self.lake.by_executors else SLOTLAKE,
        )
        if differing:
            result = self._with_details(result, expected, actual, differences_max)
        return self._with_marked(self._with_history(result, expected))

    def _with_history(self, result: TableResult, expected: Sums) -> TableResult:
        """Add a difference if the open versions of the history are not what the source holds."""
        if self.others.history(self.table.name, self.table.column_names) is None:
            return result
        versions = replace(self.lake, rows=self._versions, history=True)
        actual = versions.sums()
        rows = sum(
            int(part.rows.sum()) for part in differing_parts(_AskedSource(self), versions, expected, actual)
        )
        if not rows:
            return result
        differences = (*result.differences, Difference(HISTORY, rows=rows))
        return replace(result, totals={**result.totals, HISTORY: rows}, differences=differences)

    def _with_marked(self, result: TableResult) -> TableResult:
        """Add a difference if a row is marked as deleted and its key is live."""
        batches = self.others.marked(self.table.name, self.table.column_names)
        if batches is None or not self.table.key:
            return result
        marked_rows = LakeTable(self.lake.read_point, self.table, lambda *_: batches)
        marked = np.concatenate([np.zeros(0, np.int64), *(keys for _, keys in marked_rows.keyed())])
        if not len(marked):
            return result
        live, _ = self.lake.hashes(np.unique(marked & (BUCKETS - 1)).tolist())
        rows = int(np.isin(marked, live).sum())
        if not rows:
            return result
        differences = (*result.differences, Difference(MARKED, rows=rows))
        return replace(result, totals={**result.totals, MARKED: rows}, differences=differences)

    def _versions(self, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return self.others.history(table, columns) or iter(())

    def _with_details(
        self, result: TableResult, expected: Sums, actual: Sums, differences_max: int
    ) -> TableResult:
        source, totals = _AskedSource(self), Counter(result.totals)
        listed = Differing.joined([])
        for part in differing_parts(source, self.lake, expected, actual):
            totals.update(part.counts())
            listed = Differing.joined([listed, part]).first(differences_max)
        keys = listed.keys.tolist()
        source_details, lake_details = source.details(keys), self.lake.details(keys)
        descriptions = (
            described(self.table, (kind, rows), source_details.get(key), lake_details.get(key))
            for kind, key, rows in listed
        )
        return replace(result, totals=dict(totals), differences=(*result.differences, *descriptions))


@dataclass
class _AskedSource:
    """The source's side of a table, asked by the thread that has the connection."""

    run: _TableRun

    def hashes(self, buckets: Sequence[int] | None) -> tuple[Hashes, Hashes]:
        """As `SourceTable.hashes`."""
        return self.run.at_source(lambda source: source.hashes(buckets))

    def details(self, keys: Sequence[int]) -> dict[int, RowDetail]:
        """As `SourceTable.details`."""
        return self.run.at_source(lambda source: source.details(keys))


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    started = time.monotonic()
    done = work()
    return done, time.monotonic() - started


__all__ = ["Difference", "Report", "TableResult", "reconcile"]
