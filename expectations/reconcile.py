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
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import pyarrow as pa

from slotlake.decoder.catalog.vanished import VanishedError
from slotlake.decoder.errors import ChangedMeanwhileError
from slotlake.decoder.lsn import format_lsn
from slotlake.expectations.differences import Differing, described, differing_buckets, differing_parts
from slotlake.expectations.executors.side import ByExecutors
from slotlake.expectations.hashing import Hashes
from slotlake.expectations.lake_side import LakeTable
from slotlake.expectations.results import (
    EXECUTORS,
    HISTORY,
    MARKED,
    NO_COLUMN,
    NO_TABLE,
    SLOTLAKE,
    TABLES_TROUBLE,
    Difference,
    Report,
    TableResult,
    not_compared,
    rewritten,
)
from slotlake.expectations.scopes.slices import Slice, SliceRows
from slotlake.expectations.sessions.pace import Pace
from slotlake.expectations.sessions.pool import Sessions, sessions
from slotlake.expectations.sessions.threads import LakeThreads, lake_threads
from slotlake.expectations.shapes import Compared, LakeReadPoint, OtherRows, SourceTableShape
from slotlake.expectations.source_side import (
    BUCKETS,
    RowDetail,
    SourceTable,
    Sums,
    hashes_escaped,
    joined_sums,
)
from slotlake.spark.names import postgres_name
from slotlake.spark.read.chosen_rows import chosen_text_batches, filtered

if TYPE_CHECKING:
    from slotlake.spark.read.point import ReadPoint

DIFFERENCES_MAX = 1000
_TABLES_AHEAD = 8
T = TypeVar("T")
_Result = Future[TableResult | None]


def _silent(step: str, done: int, total: int | None = None) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class Manner:
    """How tables are compared.

    Attributes:
        others: what else the lake has of each table.
        pace: how much of the source may be taken.
        connections: how many read the source at the same time; so many threads read the lake.
    """

    others: OtherRows = field(default_factory=OtherRows)
    pace: Pace = field(default_factory=Pace)
    connections: int = 1


@dataclass(frozen=True)
class Piece:
    """A table, or a slice of it."""

    table: SourceTableShape
    slice: Slice = field(default_factory=Slice)


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
        snapshot: an exported snapshot that shows exactly the transactions before ``lsn``.
        tables: what is published: columns, key, row filter.
        read_point: the lake at ``lsn``.
        progress: called with (step, tables done, tables in all).
        differences_max: differing rows listed per table; the totals are exact whatever it is.
        manner: what else is compared, and at which pace.

    Raises:
        SourceError: the server cannot be reached, or may not be read in full.
        LakeError: the lake cannot be read.
    """
    started = time.monotonic()
    results: dict[str, TableResult] = {}
    pieces = [Piece(table) for table in tables]
    progress("compare", 0, len(pieces))
    compared = compare_pieces(dsn, snapshot, pieces, read_point, manner or Manner(), differences_max)
    with closing(compared):
        for done, (_, result) in enumerate(compared, 1):
            progress("compare", done, len(pieces))
            if result is not None:
                results[result.table] = result
    return Report(format_lsn(lsn), results, round(time.monotonic() - started, 3))


def compare_pieces(
    dsn: str,
    snapshot: str,
    pieces: Sequence[Piece],
    read_point: LakeReadPoint,
    manner: Manner,
    differences_max: int = DIFFERENCES_MAX,
) -> Generator[tuple[Piece, TableResult | None]]:
    """Compare tables, or slices of them, and yield each result, in their order; `closing` ends it early.

    A result is None if the table was dropped meanwhile.

    Args:
        snapshot: as for `reconcile`.
        differences_max: differing rows listed per piece.

    Raises:
        SourceError: the server cannot be reached, or may not be read in full.
        LakeError: the lake cannot be read.
    """
    lake_tables = {(table.schema, table.table): table for table in read_point.tables()}
    # Spark's executors work on one table at a time, with all cores that they have.
    threads = 1 if isinstance(read_point, ByExecutors) else manner.connections
    with (
        lake_threads(threads) as lake,  # they wait for the source, so that ends first
        sessions(dsn, snapshot, manner.connections, manner.pace) as server,
    ):
        sides = _Sides(read_point, server, lake, manner.others)
        runs = list[_TableRun | TableResult]()
        for piece in pieces:
            name = postgres_name(piece.table.schema, piece.table.table)
            mirror = lake_tables.get((piece.table.schema, piece.table.table))
            if mirror is None:
                runs.append(TableResult(name, 0, 0, {NO_TABLE: 1}, (Difference(NO_TABLE),)))
            else:
                escaped = hashes_escaped(server.first)
                runs.append(sides.run(Compared.of(name, piece.table, mirror, escaped=escaped), piece.slice))
        server.divide([run.table for run in runs if isinstance(run, _TableRun) and run.reads_all])
        # Slices may end early, and are not asked for long before.
        tables_ahead = _TABLES_AHEAD if all(piece.slice.is_all for piece in pieces) else 0
        results = _results(runs, sides, max(tables_ahead, server.count), differences_max)
        yield from zip(pieces, results, strict=True)


def _results(
    runs: Iterable[_TableRun | TableResult], sides: _Sides, ahead_max: int, differences_max: int
) -> Iterator[TableResult | None]:
    """The results; the server is a few tables ahead, not all: their sums need memory."""
    ahead: deque[Callable[[], TableResult | None]] = deque()
    at_work = set[_Result]()
    for run in runs:
        if isinstance(run, TableResult):
            ahead.append(partial(_given, run))
            continue
        run.begin()
        result = partial(run.result, differences_max)
        if sides.threads is not None:
            future = sides.threads.tables.submit(result)
            at_work.add(future)
            result = partial(_awaited, future, at_work)
        ahead.append(result)
        if len(ahead) > ahead_max:
            yield ahead.popleft()()
    while ahead:
        yield ahead.popleft()()


def _awaited(
    future: Future[TableResult | None], at_work: set[Future[TableResult | None]]
) -> TableResult | None:
    """A table's result; an error as soon as any of those at work has one."""
    while not future.done():
        for each in wait(at_work, return_when=FIRST_COMPLETED).done:
            at_work.discard(each)
            if each is not future:
                each.result()
    at_work.discard(future)
    return future.result()


@dataclass(frozen=True)
class _Sides:
    """Both sides of a comparison.

    Attributes:
        threads: read and hash the lake's rows; None: the caller does it.
        others: what else the lake has of tables.
    """

    read_point: LakeReadPoint
    server: Sessions
    threads: LakeThreads | None
    others: OtherRows

    def run(self, table: Compared, part: Slice) -> _TableRun:
        """Return what compares a table, or a slice of it."""
        if part.is_all:
            return _TableRun(
                LakeTable(self.read_point, table, threads=self.threads), self.server, self.others
            )
        rows = SliceRows(table, part)
        others = OtherRows(
            lambda name, columns: filtered(self.others.history(name, columns), rows),
            lambda name, columns: filtered(self.others.marked(name, columns), rows),
        )
        reader = partial(chosen_text_batches, cast("ReadPoint", self.read_point), rows)
        lake = LakeTable(self.read_point, rows.at_source, reader, threads=self.threads)
        return _TableRun(lake, self.server, others, reads_all=part.buckets > 1)


@dataclass
class _TableRun:
    """One table, or a slice of one; the server computes its sums while the lake side is read.

    Attributes:
        reads_all: the source looks at all rows of the table.
    """

    lake: LakeTable
    server: Sessions
    others: OtherRows
    reads_all: bool = True
    expected: Future[tuple[Sums, float]] = field(default_factory=Future)

    @property
    def table(self) -> Compared:
        """The table; of a slice, with a condition that chooses its rows."""
        return self.lake.table

    def begin(self) -> None:
        """Ask for the source's sums."""
        self.expected = self.server.ask_parts(
            self.table,
            lambda source: _timed(source.sums),
            lambda one, other: (joined_sums(one[0], other[0]), one[1] + other[1]),
        )

    def at_source(self, work: Callable[[SourceTable], T], joined: Callable[[T, T], T]) -> T:
        """Ask the source something more about this table, part by part."""
        return self.server.ask_parts(self.table, work, joined).result()

    def result(self, differences_max: int) -> TableResult | None:
        """Compare; look closer where needed.  None if the table was dropped meanwhile."""
        try:
            result = self._compared(differences_max)
            differs = bool(set(result.totals) - {NO_COLUMN})
            return rewritten(result.table) if differs and self.server.was_rewritten(self.table) else result
        except VanishedError:
            return None
        except ChangedMeanwhileError:
            return rewritten(self.table.name)
        except TABLES_TROUBLE as error:
            return not_compared(self.table.name, error)

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
    """The source's side of a table, asked over the connections."""

    run: _TableRun

    def hashes(self, buckets: Sequence[int] | None) -> tuple[Hashes, Hashes]:
        """As `SourceTable.hashes`."""
        parts = self.run.at_source(lambda source: [source.hashes(buckets)], lambda one, other: one + other)
        return np.concatenate([k for k, _ in parts]), np.concatenate([r for _, r in parts])

    def details(self, keys: Sequence[int]) -> dict[int, RowDetail]:
        """As `SourceTable.details`."""
        return self.run.at_source(lambda source: source.details(keys), lambda one, other: one | other)


def _given(result: TableResult) -> TableResult:
    return result


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    started = time.monotonic()
    done = work()
    return done, time.monotonic() - started


__all__ = ["Difference", "Piece", "Report", "TableResult", "compare_pieces", "reconcile"]
