"""Verification: compare source and lake at one exact LSN, and write the result also as Data Docs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slotlake.decoder.catalog.publications import SourceTable, published_names
from slotlake.decoder.catalog.vanished import vanished
from slotlake.decoder.server.source import source_session
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.expectations.source_side import snapshot_session
from slotlake.infra.advance.nonblocking import at_nonblocking_snapshot
from slotlake.infra.copy.joining_record import joining_table_names
from slotlake.infra.copy.tables import published_tables
from slotlake.infra.joining.recopying import progress_by_table
from slotlake.infra.journal.events import note_verification
from slotlake.infra.selection.tables import comparable, refuse_changed
from slotlake.infra.sync.refill import fill_added_columns, has_unfilled_columns

if TYPE_CHECKING:
    from slotlake.expectations.results import Report, TableResult
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.read.point import ReadPoint


def verify_at_exact_lsn(pipeline: OpenPipeline, slot_timeout_seconds: float, progress: Progressing) -> Report:
    """Bring the lake to a snapshot's LSN, compare all tables there, and write the Data Docs.

    Args:
        pipeline: the pipeline.
        slot_timeout_seconds: how long to wait for transactions that are open at the start.
        progress: is called while tables are compared.
    """
    from slotlake.expectations.suite import validate

    refuse_changed(pipeline)
    while True:
        with at_nonblocking_snapshot(pipeline, slot_timeout_seconds, progress) as snapshot:
            if not has_unfilled_columns(pipeline):
                report = _compare(pipeline, snapshot, progress)
                break
        fill_added_columns(pipeline, progress)
    note_verification(pipeline.file.state_dir, report)
    validate(report, pipeline.file.state_dir / "expectations", pipeline.name)
    return report


def _compare(pipeline: OpenPipeline, snapshot: ExportedSnapshot, progress: Progressing) -> Report:
    from slotlake.expectations.reconcile import reconcile
    from slotlake.expectations.shapes import OtherRows
    from slotlake.spark.read.point import ReadPoint

    point = pipeline.for_comparing(ReadPoint.at(pipeline.lake, snapshot.lsn))
    tables = comparable(published_tables(pipeline))  # without those that are set aside
    lake_names = {(table.schema, table.table) for table in point.tables()}
    absent = {(table.schema, table.table) for table in tables} - lake_names
    awaited = absent if pipeline.file.new_tables == "ignore" else absent & joining_table_names(pipeline)
    tables = [table for table in tables if (table.schema, table.table) not in awaited]
    tables = _comparable_at(pipeline, snapshot, tables, absent)
    report = reconcile(
        pipeline.source.dsn,
        snapshot.snapshot,
        tables,
        point,
        lsn=snapshot.lsn,
        progress=progress,
        others=OtherRows(point.open_versions, point.marked_rows),
    )
    return replace(report, tables=report.tables | _aside(pipeline, point))


def _aside(pipeline: OpenPipeline, point: ReadPoint) -> dict[str, TableResult]:
    """Return the results of tables that are set aside: they show another LSN, so they are not compared."""
    from slotlake.expectations.results import ASIDE, Difference, TableResult

    source = pipeline.source
    if not point.aside:
        return {}
    with source_session(source.dsn, "reading the publications") as connection:
        published = published_names(connection, source.publications)
    ranges = progress_by_table(pipeline)
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
    pipeline: OpenPipeline,
    snapshot: ExportedSnapshot,
    tables: Sequence[SourceTable],
    absent: Collection[tuple[str, str]],
) -> list[SourceTable]:
    """Return the tables without those created after the snapshot, or dropped before the lake had them.

    Args:
        pipeline: the pipeline.
        snapshot: the source's snapshot of the comparison.
        tables: all published tables.
        absent: schema and name of those that the lake does not have.
    """
    dsn, oids = pipeline.source.dsn, [table.relation_id for table in tables]
    with snapshot_session(dsn, snapshot.snapshot) as connection:
        rows = connection.execute("SELECT oid::bigint FROM pg_catalog.pg_class WHERE oid = ANY (%s)", (oids,))
        visible_oids = {int(oid) for (oid,) in rows.fetchall()}
    absent_oids = [t.relation_id for t in tables if (t.schema, t.table) in absent]
    visible_oids -= vanished(dsn, absent_oids)
    return [table for table in tables if table.relation_id in visible_oids]


def summary(report: Report) -> dict[str, Any]:
    """Return the verdict and the counts, without keys or values."""
    return {
        "equal": report.equal,
        "lsn": report.lsn,
        "tables": {
            name: {
                "equal": table.equal,
                "source_rows": table.source_rows,
                "lake_rows": table.lake_rows,
                "differences": table.differences_total,
                "kinds": dict(table.totals),
            }
            for name, table in report.tables.items()
        },
    }
