"""Text of the reports of the commands that run a pipeline: init, sync, pull, verify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slotlake.expectations.results import ASIDE, CHANGED, FULL, LOCKED, REWRITTEN, ROLLING, UNREADABLE
from slotlake.infra.cli.output import LINES_MAX, lines_of, set_aside_lines, warning_lines
from slotlake.infra.progress import brought, conflict_counts, counted

if TYPE_CHECKING:
    from slotlake.expectations.results import Report as Verification
    from slotlake.expectations.results import TableResult
    from slotlake.infra.reports import (
        CopyWorkerReport,
        InitReport,
        PullReport,
        SyncReport,
        TableCompacted,
        TableCopy,
    )


def init_text(report: InitReport, console: Console) -> None:
    """Print what init did, with one line per table."""
    if report.ddl_trigger is not None:
        console.print(f"the event trigger is {report.ddl_trigger}")
    if report.already:
        console.print(f"pipeline {report.pipeline} exists already; the lake is at {report.lsn}")
    else:
        console.print(_copied_tables(report.tables, f"{report.pipeline}: copied at {report.lsn}"))
        console.print(f"{report.rows:,} rows in {report.seconds:.1f} s; slot {report.slot}")
        if len(report.machines) > 1:
            console.print(f"ranges by machine: {machines_text(report.machines)}")
        set_aside_lines(report.set_aside, console)
    warning_lines(report.warnings, console)


def machines_text(machines: Mapping[str, int]) -> str:
    """Return how many ranges each machine has copied, on one line."""
    return ", ".join(f"{escape(name)} {ranges:,}" for name, ranges in sorted(machines.items()))


def copy_worker_text(report: CopyWorkerReport, console: Console) -> None:
    """Print what this machine copied of an initial copy."""
    if report.already:
        console.print(f"pipeline {report.pipeline} exists already; there was nothing to copy")
        return
    console.print(
        f"{report.machine} copied {report.ranges:,} ranges, {report.rows:,} rows in {report.seconds:.1f} s"
    )
    lines_of((f"  {escape(name)}: {n:,} ranges" for name, n in report.tables.items()), console, "tables")
    left = (f"  {escape(name)} was left to init: {escape(why)}" for name, why in report.left_out.items())
    lines_of(left, console, "tables left to init")


def _copied_tables(copies: list[TableCopy], title: str) -> Table:
    table = Table(title=title)
    for name in ("source table", "lake table", "rows", "files"):
        table.add_column(name, justify="right" if name in ("rows", "files") else "left")
    for copy in copies[:LINES_MAX]:
        table.add_row(escape(copy.table), escape(copy.lake_table), f"{copy.rows:,}", str(copy.files))
    if len(copies) > LINES_MAX:
        others = copies[LINES_MAX:]
        rows, files = sum(copy.rows for copy in others), sum(copy.files for copy in others)
        table.add_row(f"and {len(others):,} more tables", "", f"{rows:,}", f"{files:,}")
    return table


def pull_text(report: PullReport, console: Console) -> None:
    """Print which batch pull wrote."""
    if report.batch is None:
        console.print(f"nothing new; the lake is at {report.end_lsn}")
        return
    console.print(
        f"batch {report.batch}: {brought(report.transactions, report.changes)}, "
        f"{report.start_lsn} to {report.end_lsn}, in {report.seconds:.1f} s"
    )


def sync_text(report: SyncReport, console: Console) -> None:
    """Print what sync applied; WAL without changes of published tables counts as no new changes."""
    _joining_lines(report, console)
    for name in report.resumed:
        console.print(f"{escape(name)} was set aside; the syncs follow it again")
    set_aside_lines(report.set_aside, console)
    warning_lines(report.warnings, console)
    if report.batch is None or not report.transactions:
        console.print(f"nothing new; the lake is at {report.lsn}")
        return
    console.print(
        f"{brought(report.transactions, report.changes)} in {report.seconds:.1f} s; "
        f"the lake is at {report.lsn}"
    )
    changed = (f"  {escape(name)}: {counted(changes, 'change')}" for name, changes in report.tables.items())
    lines_of(changed, console, "tables")
    conflicts = (
        f"  {escape(name)}: conflicts: {conflict_counts(counts)}" for name, counts in report.conflicts.items()
    )
    lines_of(conflicts, console, "tables with conflicts")
    _compacted_lines(report.compacted, console)


def _compacted_lines(tables: Sequence[TableCompacted], console: Console) -> None:
    lines_of(map(_compacted, tables), console, "compacted tables")


def _compacted(table: TableCompacted) -> str:
    what = f"{table.rewritten_files:,} small files packed into {table.written_files:,}"
    what = f"not compacted: {table.failed}" if table.failed else what
    return f"  {escape(table.lake_table)}: {escape(what)}"


def _joining_lines(report: SyncReport, console: Console) -> None:
    added = (f"{escape(name)} is a new table of the lake" for name in report.added_tables)
    lines_of(added, console, "new tables")
    joining = (
        f"{escape(name)} is a new table: {ranges} are copied, the next sync copies more"
        for name, ranges in report.joining.items()
    )
    lines_of(joining, console, "new tables")


def verify_text(report: Verification, console: Console) -> None:
    """Print one line per table, those that differ first, then the differences."""
    if not report.tables:
        console.print(f"source and lake at {report.lsn}: {_NOTHING[report.scope]}")
        return
    table = Table(title=f"source and lake at {report.lsn}{_OF[report.scope]}")
    for name in ("table", "rows in source", "rows in lake", "result"):
        table.add_column(name, justify="right" if name.startswith("rows") else "left")
    ordered = sorted(report.tables.items(), key=lambda item: item[1].equal)
    shown = dict(ordered[:LINES_MAX])
    for name, result in shown.items():
        table.add_row(escape(name), f"{result.source_rows:,}", f"{result.lake_rows:,}", _verdict(result))
    console.print(table)
    if others := [result for _, result in ordered[LINES_MAX:]]:
        different = sum(not result.equal for result in others)
        console.print(f"  {len(others):,} more tables, {different:,} of them not equal; --json has all")
    for name, result in shown.items():
        for words in filter(None, (result.compared, result.left)):
            console.print(f"  {escape(name)}: {escape(words)}")
        for difference in result.differences:
            console.print(f"  {escape(name)}: {escape(str(difference))}")
    for suite in sorted(report.suites, key=lambda suite: suite.success):
        console.print(f"  {escape(str(suite))}")
    if report.data_docs:
        console.print(f"  Data Docs: {escape(report.data_docs)}", soft_wrap=True)


_OF = {FULL: "", CHANGED: ": rows that changed", ROLLING: ": slices whose turn it is"}
_NOTHING = {
    FULL: "the lake has no tables to compare",
    CHANGED: "no row has changed since its table was found equal",
    ROLLING: "no slice has its turn yet",
}


def _verdict(result: TableResult) -> str:
    if result.left:
        return "[yellow]not compared[/yellow]"
    if result.equal:
        return "[green]equal[/green]"
    others = {ASIDE: "set aside", LOCKED: "locked", REWRITTEN: "rewritten", UNREADABLE: "not readable"}
    unequal = next((word for kind, word in others.items() if kind in result.totals), "different")
    return f"[red]{unequal}[/red]"
