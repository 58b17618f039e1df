"""Proof of equality: source and lake at one exact LSN, as a reconciliation and as Data Docs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decoder.slots import ExportedSnapshot
from infra.exact import beside_writers
from infra.joining import joining_tables
from infra.selection import comparable, refuse_changed
from infra.tables import fill_added_columns, has_unfilled_columns, published_tables

if TYPE_CHECKING:
    from expectations.results import Report
    from infra.output import Progressing
    from infra.pipeline import Pipeline


def verify_at_exact_lsn(pipeline: Pipeline, slot_timeout_seconds: float, progress: Progressing) -> Report:
    """Bring the lake to a snapshot's LSN, compare all tables there, and write the Data Docs."""
    from expectations.suite import validate

    refuse_changed(pipeline)
    while True:
        with beside_writers(pipeline, slot_timeout_seconds, progress) as snapshot:
            if not has_unfilled_columns(pipeline):
                report = _compared(pipeline, snapshot, progress)
                break
        fill_added_columns(pipeline, progress)
    validate(report, pipeline.file.state_dir / "expectations", pipeline.name)
    return report


def _compared(pipeline: Pipeline, snapshot: ExportedSnapshot, progress: Progressing) -> Report:
    from expectations.reconcile import reconcile
    from spark.read import Cut

    cut = Cut.at(pipeline.lake, snapshot.lsn)
    tables = comparable(published_tables(pipeline))
    held = {(table.schema, table.table) for table in cut.tables()}
    absent = {(table.schema, table.table) for table in tables} - held
    awaited = absent if pipeline.file.new_tables == "ignore" else absent & joining_tables(pipeline)
    tables = [table for table in tables if (table.schema, table.table) not in awaited]
    return reconcile(
        pipeline.source.dsn,
        snapshot.snapshot,
        tables,
        cut,
        lsn=snapshot.lsn,
        progress=progress,
        history=cut.open_versions,
    )


def summary(report: Report) -> dict[str, Any]:
    """The verdict and counts, without keys or values."""
    return {
        "equal": report.equal,
        "lsn": report.lsn,
        "tables": {
            name: {
                "equal": table.equal,
                "source_rows": table.source_rows,
                "lake_rows": table.lake_rows,
                "differences": table.differences_total,
            }
            for name, table in report.tables.items()
        },
    }
