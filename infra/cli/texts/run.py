"""Text of `slotlake run`: a line for each micro-batch, and the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from slotlake.infra.cli.texts.work import conflict_counts

if TYPE_CHECKING:
    from slotlake.infra.reports import RunReport, SyncReport

_ENDINGS = {"stop": "stopped", "time": "its time is over", "lsn": "it has reached its LSN"}


def batch_lines(report: SyncReport) -> Iterator[str]:
    """Yield the line of a micro-batch: LSN, transactions, rows per table, lag, seconds per step.

    Other lines follow only for events: tables that join, are set aside or come back, warnings, conflicts,
    compaction.
    """
    tables = ", ".join(f"{table} {changes:,}" for table, changes in report.tables.items())
    steps = " ".join(f"{step} {seconds:.2f}" for step, seconds in report.seconds_by_step.items())
    lag = "" if report.lag_seconds is None else f"; lag {report.lag_seconds:.2f} s"
    yield f"{report.lsn}: {report.transactions:,} transactions ({tables or 'no changes'}){lag}; {steps} s"
    yield from (f"  {table}: a new table of the lake" for table in report.added_tables)
    yield from (f"  {table}: a new table, {done} are copied" for table, done in report.joining.items())
    yield from (f"  {table}: followed again" for table in report.resumed)
    yield from (f"  {table}: set aside: {reason}" for table, reason in report.set_aside.items())
    yield from (f"  warning: {warning}" for warning in report.warnings)
    yield from (
        f"  {table}: conflicts: {conflict_counts(counts)}" for table, counts in report.conflicts.items()
    )
    for table in report.compacted:
        packed = f"{table.rewritten_files:,} small files packed into {table.written_files:,}"
        yield f"  {table.lake_table}: {f'not compacted: {table.failed}' if table.failed else packed}"


def run_line(report: RunReport) -> str:
    """Return the last line: why the run ended, and what it brought."""
    lag = ""
    if report.lag_seconds_median is not None and report.lag_seconds_max is not None:
        lag = f"; lag: median {report.lag_seconds_median:.2f} s, worst {report.lag_seconds_max:.2f} s"
    return (
        f"the run has ended ({_ENDINGS.get(report.ended_by, report.ended_by)}) at {report.lsn}: "
        f"{report.batches:,} batches, {report.transactions:,} transactions, {report.changes:,} changes in "
        f"{report.seconds:,.0f} s{lag}"
    )
