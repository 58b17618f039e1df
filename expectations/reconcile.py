"""Compare the source, as one exported snapshot shows it, with the lake at that snapshot's LSN.

Three passes, each over less: (1) per table and key bucket, rows and the sum of row hashes; (2) in
buckets that differ, each row's hashes, which gives the exact totals; (3) for the first differing rows,
their keys, and which columns differ.  Equal tables take one pass on either side, both at the same
time.  A table without a key is compared as a bag of rows: equal rows count, and a changed row is one
missing and one extra.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import psycopg
import pyarrow as pa

from slotlake.decoder.catalog.vanished import VanishedError
from slotlake.decoder.errors import LockedError
from slotlake.decoder.lsn import format_lsn
from slotlake.expectations.differences import Differing, differing_buckets, differing_parts
from slotlake.expectations.lake_side import LakeTable
from slotlake.expectations.results import (
    DIFFERENT,
    HISTORY,
    LOCKED,
    MARKED,
    NO_COLUMN,
    NO_TABLE,
    Difference,
    Report,
    TableResult,
)
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

DIFFERENCES_MAX = 1000
CANCEL_SECONDS = 5.0
CANCEL_AGAIN_SECONDS = 0.2
T = TypeVar("T")


def _silent(step: str, done: int, total: int | None = None) -> None:
    """Progress that nobody watches."""


_NO_OTHERS = OtherRows()


def reconcile(
    dsn: str,
    snapshot: str,
    tables: Sequence[SourceTableShape],
    read_point: LakeReadPoint,
    *,
    lsn: int,
    progress: Callable[[str, int, int | None], None] = _silent,
    differences_max: int = DIFFERENCES_MAX,
    others: OtherRows = _NO_OTHERS,
) -> Report:
    """Compare published tables.

    Args:
        dsn: the source.
        snapshot: an exported snapshot that shows exactly the transactions before ``lsn``.
        tables: what is published: columns, key, row filter.
        read_point: the lake at ``lsn``.
        progress: told (step, tables done, tables in all).
        differences_max: differing rows listed per table; the totals are exact whatever it is.
        others: what else the lake has of each table.

    Raises:
        SourceError: the server cannot be reached, or may not be read in full.
        LakeError: the lake cannot be read.
    """
    started = time.monotonic()
    lake_tables = {(table.schema, table.table): table for table in read_point.tables()}
    results: dict[str, TableResult] = {}
    with snapshot_session(dsn, snapshot) as connection, ThreadPoolExecutor(1) as server:
        runs: list[_TableRun] = []
        for table in tables:
            name = postgres_name(table.schema, table.table)
            lake = lake_tables.get((table.schema, table.table))
            if lake is None:
                results[name] = TableResult(name, 0, 0, {NO_TABLE: 1}, (Difference(NO_TABLE),))
            else:
                compared = Compared.of(name, table, lake, escaped=hashes_escaped(connection))
                runs.append(_TableRun.begin(compared, connection, read_point, server, others))
        try:
            for done, run in enumerate(runs):
                progress("compare", done, len(runs))
                result = run.result(differences_max)
                if result is not None:
                    results[run.table.name] = result
            progress("compare", len(runs), len(runs))
        except BaseException:  # Ctrl-C too: do not wait for what the server is busy with
            _cancel(connection, [run.expected for run in runs])
            raise
    names = [postgres_name(table.schema, table.table) for table in tables]
    ordered = {name: results[name] for name in names if name in results}
    return Report(format_lsn(lsn), ordered, round(time.monotonic() - started, 3))


def _cancel(connection: psycopg.Connection[object], sums: Sequence[Future[tuple[Sums, float]]]) -> None:
    """End what the server computes; asked again: a statement that has not begun yet is not cancelled."""
    while running := [future for future in sums if not future.cancel() and not future.done()]:
        with suppress(psycopg.Error):  # the server is gone; so is what it computed
            connection.cancel_safe(timeout=CANCEL_SECONDS)
        wait(running, timeout=CANCEL_AGAIN_SECONDS)


@dataclass
class _TableRun:
    """One table; the server computes its sums while the lake side is read."""

    table: Compared
    source: Callable[[], SourceTable]
    lake: LakeTable
    expected: Future[tuple[Sums, float]]
    others: OtherRows

    @classmethod
    def begin(
        cls,
        table: Compared,
        connection: psycopg.Connection[object],
        read_point: LakeReadPoint,
        server: ThreadPoolExecutor,
        others: OtherRows,
    ) -> _TableRun:
        def source() -> SourceTable:
            return SourceTable(connection, table)

        def sums() -> Sums:
            with reading(connection, table):
                return source().sums()

        expected = server.submit(_timed, sums)
        return cls(table, source, LakeTable(read_point, table), expected, others)

    def result(self, differences_max: int) -> TableResult | None:
        """Compare; look closer where needed.  None if the table was dropped meanwhile."""
        actual, lake_seconds = _timed(self.lake.sums)
        try:
            expected, source_seconds = self.expected.result()
        except VanishedError:
            return None
        except LockedError as error:
            return TableResult(
                self.table.name, 0, 0, {LOCKED: 1}, (Difference(LOCKED, reason=error.way_out),)
            )
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
        )
        if differing:
            result = self._with_details(result, expected, actual, differences_max)
        return self._with_marked(self._with_history(result, expected))

    def _with_history(self, result: TableResult, expected: Sums) -> TableResult:
        """Add a difference if the open versions of the history are not what the source holds."""
        if self.others.history(self.table.name, self.table.column_names) is None:
            return result
        versions = replace(self.lake, rows=self._versions)
        actual = versions.sums()
        rows = sum(
            int(part.rows.sum()) for part in differing_parts(self.source(), versions, expected, actual)
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
        live = np.concatenate([np.zeros(0, np.int64), *(keys for _, keys in self.lake.keyed())])
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
        source, totals = self.source(), Counter(result.totals)
        listed = Differing.joined([])
        for part in differing_parts(source, self.lake, expected, actual):
            totals.update(part.counts())
            listed = Differing.joined([listed, part]).first(differences_max)
        keys = listed.keys.tolist()
        source_details, lake_details = source.details(keys), self.lake.details(keys)
        described = (
            self._difference(kind, rows, source_details.get(key), lake_details.get(key))
            for kind, key, rows in listed
        )
        return replace(result, totals=dict(totals), differences=(*result.differences, *described))

    def _difference(
        self, kind: str, rows: int, source_row: RowDetail | None, lake_row: RowDetail | None
    ) -> Difference:
        row = source_row or lake_row
        columns: tuple[str, ...] = ()
        if kind == DIFFERENT and source_row is not None and lake_row is not None:
            sides = zip(self.table.values, source_row.hashes, lake_row.hashes, strict=True)
            columns = tuple(name for (name, _), source, lake in sides if source != lake)
        return Difference(kind, row.name if row else {}, columns, rows)


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    started = time.monotonic()
    done = work()
    return done, time.monotonic() - started


__all__ = ["Difference", "Report", "TableResult", "reconcile"]
