"""Verification: compare source and lake at one exact LSN, and write the result also as Data Docs.

Only bringing the lake to that LSN needs the pipeline's lock (`begin`).  The comparison itself reads a
snapshot of the source and an immutable point of the lake (`Begun.finish`), and batches go on meanwhile.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from slotlake.decoder.catalog.publications import SourceTable, published_names
from slotlake.decoder.catalog.vanished import vanished
from slotlake.decoder.errors import LakeError, PipelineFileError
from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.decoder.server.source import source_session
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.expectations.results import (
    ASIDE,
    CHANGED,
    FULL,
    ROLLING,
    SCOPES,
    Difference,
    Report,
    TableResult,
)
from slotlake.expectations.source_side import snapshot_session
from slotlake.infra.copy.joining_record import joining_table_names
from slotlake.infra.copy.tables import published_tables
from slotlake.infra.opened.machine_lock import exclusive
from slotlake.infra.opened.readers import reading_noted
from slotlake.infra.selection.tables import comparable, refuse_changed
from slotlake.infra.state.verified import read_verified
from slotlake.infra.sync.gates import DOCS_SECONDS, user_project
from slotlake.infra.sync.nonblocking import at_nonblocking_snapshot
from slotlake.infra.sync.recopying import RecopiedTables
from slotlake.infra.sync.refill import Refill
from slotlake.infra.verify.changed import fetch_batches
from slotlake.infra.verify.comparing import Comparison
from slotlake.infra.verify.outcome import note_outcome
from slotlake.infra.verify.suites import suites_checked
from slotlake.spark.names import parse_postgres_name

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.read.point import ReadPoint

_LOCK_SECONDS = 60.0


@dataclass(frozen=True)
class VerifyRequest:
    """What is to be compared.

    Attributes:
        scope: one of `slotlake.expectations.results.SCOPES`.
        tables: as PostgreSQL writes them; none: all.
        source_load: the share of one core of the source that the comparison may take; None: all of it.
        connections: how many read the source at the same time; None: as the pipeline file says.
        slot_timeout_seconds: how long to wait for transactions that are open at the start.
        at_least: an LSN that the lake is said to have reached.
    """

    scope: str = FULL
    tables: Sequence[str] = ()
    source_load: float | None = None
    connections: int | None = None
    slot_timeout_seconds: float = 60.0
    at_least: str | None = None


@dataclass
class Begun:
    """A verification whose LSN the lake has reached; the pipeline's lock is not needed any more.

    Attributes:
        comparison: what is compared.
        aside: the results of tables that are set aside.
        resources: the source's snapshot, and what keeps the point readable.
    """

    comparison: Comparison
    aside: dict[str, TableResult]
    resources: ExitStack

    def finish(self, progress: Progressing) -> Report:
        """Compare, note the result, and end."""
        pipeline = self.comparison.pipeline
        with self.resources, pipeline.reading():
            report = self.comparison.report(progress)
            if report.scope == FULL:
                report = replace(report, suites=suites_checked(pipeline, self.comparison.point, report))
            report = replace(report, tables=report.tables | self.aside)
        with pipeline.reading():
            note_outcome(self.comparison, report)
            if report.scope == FULL or not report.equal:
                report = replace(report, data_docs=_write_docs(pipeline.file, pipeline.name, report))
        return report

    def stop(self) -> None:
        """Let `finish`, which another thread is in, end soon, without a result."""
        self.comparison.pace.stop()


class Verification:
    """The comparison of source and lake at one LSN."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline = pipeline
        self._file, self._lake, self._source = pipeline.file, pipeline.lake, pipeline.source

    def verify(self, request: VerifyRequest, progress: Progressing) -> Report:
        """Compare lake and source at an exact LSN, with the pipeline's lock for the first step only.

        Args:
            request: what is to be compared.

        Raises:
            LakeError: the lake is behind ``request.at_least``.
        """
        with self._pipeline.exclusively(_LOCK_SECONDS, step="verify"):
            if request.at_least is not None and self._pipeline.position() < parse_lsn(request.at_least):
                raise LakeError(
                    f"the lake is at {format_lsn(self._pipeline.position())}, "
                    f"behind the announced {request.at_least}",
                    where=self._lake.place,
                    way_out="clear that run's publish task; if the lake was rolled back: slotlake recover",
                )
            begun = self.begin(request, progress)
            self._pipeline.end_stream()  # another run may pull meanwhile
        return begun.finish(progress)

    def begin(self, request: VerifyRequest, progress: Progressing) -> Begun:
        """Bring the lake to a snapshot's LSN, and say what is to be compared there; under the lock.

        Args:
            request: what is to be compared.

        Raises:
            PipelineFileError: the publications have no such table.
        """
        from slotlake.spark.read.point import ReadPoint

        _require_scope(self._file, request)
        refuse_changed(self._pipeline)
        with ExitStack() as resources:
            snapshot = self._at_snapshot(request, progress, resources)
            point = ReadPoint.at(self._lake, snapshot.lsn)
            resources.enter_context(reading_noted(self._file.state_dir))
            tables, aside = self._tables(snapshot, point), self._aside(point)
            if request.tables:
                tables, aside = _named(tables, aside, request.tables)
            verified = read_verified(self._file.state_dir)
            if request.scope == CHANGED:
                fetch_batches(self._pipeline, verified, point.position)
            count = request.connections or self._file.verify.connections_for(request.source_load)
            comparison = Comparison(
                self._pipeline, snapshot, point, tables, verified, request.scope, request.source_load, count
            )
            return Begun(comparison, aside, resources.pop_all())

    def _at_snapshot(
        self, request: VerifyRequest, progress: Progressing, resources: ExitStack
    ) -> ExportedSnapshot:
        while True:
            with ExitStack() as opened:
                at_lsn = at_nonblocking_snapshot(self._pipeline, request.slot_timeout_seconds, progress)
                snapshot = opened.enter_context(at_lsn)
                if not Refill(self._pipeline).has_unfilled_columns():
                    resources.push(opened.pop_all())
                    return snapshot
            Refill(self._pipeline).fill_added_columns(progress)

    def _tables(self, snapshot: ExportedSnapshot, point: ReadPoint) -> list[SourceTable]:
        """The published tables that the lake is to equal at the point."""
        tables = comparable(published_tables(self._pipeline))  # without those that are set aside
        lake_names = {(table.schema, table.table) for table in point.tables()}
        absent = {(table.schema, table.table) for table in tables} - lake_names
        awaited = (
            absent if self._file.new_tables == "ignore" else absent & joining_table_names(self._pipeline)
        )
        tables = [table for table in tables if (table.schema, table.table) not in awaited]
        return self._comparable_at(snapshot, tables, absent)

    def _aside(self, point: ReadPoint) -> dict[str, TableResult]:
        """Return the results of tables that are set aside: they show another LSN, and are not compared."""
        source = self._source
        if not point.aside:
            return {}
        with source_session(source.dsn, "reading the publications") as connection:
            published = published_names(connection, source.publications)
        ranges = RecopiedTables(self._pipeline).progress_by_table()
        return {
            each.source_name: TableResult(
                each.source_name,
                0,
                0,
                {ASIDE: 1},
                (Difference(ASIDE, reason=each.reason_with(ranges.get(each.source_name))),),
            )
            for name, each in point.aside.items()
            if name in published
        }

    def _comparable_at(
        self,
        snapshot: ExportedSnapshot,
        tables: Sequence[SourceTable],
        absent: Collection[tuple[str, str]],
    ) -> list[SourceTable]:
        """Return the tables without those created after the snapshot, or dropped before the lake had them.

        Args:
            snapshot: the source's snapshot of the comparison.
            tables: all published tables.
            absent: schema and name of those that the lake does not have.
        """
        dsn, oids = self._source.dsn, [table.relation_id for table in tables]
        with snapshot_session(dsn, snapshot.snapshot) as connection:
            rows = connection.execute(
                "SELECT oid::bigint FROM pg_catalog.pg_class WHERE oid = ANY (%s)", (oids,)
            )
            visible_oids = {int(oid) for (oid,) in rows.fetchall()}
        absent_oids = [t.relation_id for t in tables if (t.schema, t.table) in absent]
        visible_oids -= vanished(dsn, absent_oids)
        return [table for table in tables if table.relation_id in visible_oids]


def _require_scope(file: PipelineFile, request: VerifyRequest) -> None:
    if request.scope not in SCOPES:
        raise PipelineFileError(
            f"{request.scope!r} is no scope of a verification",
            where="scope",
            way_out=f"choose one of {', '.join(SCOPES)}",
        )
    if request.scope == ROLLING and file.verify.full_within is None:
        raise PipelineFileError(
            "the pipeline file does not say within which time all rows are to be compared",
            where="verify.full_within",
            way_out="write, for example, verify: {full_within: 7d}; or compare all rows now: slotlake verify",
        )


def _named(
    tables: Sequence[SourceTable], aside: dict[str, TableResult], names: Sequence[str]
) -> tuple[list[SourceTable], dict[str, TableResult]]:
    """Only the named ones.

    Raises:
        PipelineFileError: one of them is none of these.
    """
    by_name = {(table.schema, table.table): table for table in tables}
    aside_by_name = {parse_postgres_name(name): result for name, result in aside.items()}
    chosen, chosen_aside = list[SourceTable](), dict[str, TableResult]()
    for name in dict.fromkeys(names):
        try:
            parsed = parse_postgres_name(name)
        except KeyError:
            raise _unknown(name, by_name) from None
        if parsed in by_name:
            chosen.append(by_name[parsed])
        elif parsed in aside_by_name:
            chosen_aside[aside_by_name[parsed].table] = aside_by_name[parsed]
        else:
            raise _unknown(name, by_name)
    return list(dict.fromkeys(chosen)), chosen_aside


def _unknown(name: str, tables: Collection[tuple[str, str]]) -> PipelineFileError:
    listed = ", ".join(sorted(f"{schema}.{table}" for schema, table in tables)[:50]) or "none"
    return PipelineFileError(
        f"no table {name} can be verified: it is not published, or the lake does not take all of its changes",
        where="--table",
        way_out=f"name one of these, as PostgreSQL writes it: {listed}",
    )


def _write_docs(file: PipelineFile, name: str, report: Report) -> str:
    from slotlake.expectations.suite import validate

    folder = file.state_dir / "expectations"
    with exclusive(folder, name, DOCS_SECONDS, "verify: Data Docs"):
        return str(validate(report, folder, name, user_project(file).actions()).data_docs)


def summary(report: Report) -> dict[str, Any]:
    """Return the verdict and the counts, without keys or values."""
    return {
        "equal": report.equal,
        "lsn": report.lsn,
        "scope": report.scope,
        "data_docs": f"{report.data_docs} on {socket.gethostname()}" if report.data_docs else "",
        **({"failed_suites": [str(s) for s in report.suites if not s.success]} if report.suites else {}),
        "tables": {
            name: {
                "equal": table.equal,
                "source_rows": table.source_rows,
                "lake_rows": table.lake_rows,
                "differences": table.differences_total,
                "kinds": dict(table.totals),
                **{key: words for key in ("compared", "left") if (words := getattr(table, key))},
            }
            for name, table in report.tables.items()
        },
    }
