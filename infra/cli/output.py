"""How reports look to people and to machines: tables, progress bars, JSON.

People's output goes through rich to standard output, progress to standard error (so that a pipe
stays clean), JSON is one document with nothing around it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from slotlake.decoder.slots.pressure import Holder, span
from slotlake.infra.cli.output_aside import aside_text, verdict_text
from slotlake.infra.copy.steps import CopyStep
from slotlake.infra.progress import Progressing
from slotlake.infra.reports import Report

LINE_SECONDS = 10.0


@contextmanager
def progress(silent: bool) -> Iterator[Progressing]:
    """A progress display on standard error; plain lines when that is no terminal, none with --json."""
    if silent:
        yield lambda step, done, total=None: None
        return
    if not sys.stderr.isatty():
        yield lines(_line)
        return
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}"),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        tasks: dict[str, Any] = {}

        def report(step: str, done: int, total: int | None = None) -> None:
            if step not in tasks:
                tasks[step] = bar.add_task(escape(step), total=total, detail="")
            detail = escape(step.detail(done, total)) if isinstance(step, CopyStep) else ""
            bar.update(tasks[step], completed=done, total=total, detail=detail)

        yield report


def lines(say: Callable[[str], None], every_seconds: float = LINE_SECONDS) -> Progressing:
    """Progress as lines: each step once; a table's copy whenever its state changes, and at intervals."""
    seen: dict[str, tuple[str, float]] = {}

    def report(step: str, done: int, total: int | None = None) -> None:
        state, now = step.state if isinstance(step, CopyStep) else "", time.monotonic()
        before = seen.get(step)
        if before is None or before[0] != state or (state and now - before[1] >= every_seconds):
            seen[step] = state, now
            say(step.line(done, total) if isinstance(step, CopyStep) else step)

    return report


def _line(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def show(report: Any, as_json: bool, text: Callable[[Any, Console], None]) -> None:
    """Print a report: one JSON document, or the text that ``text`` writes."""
    if as_json:
        sys.stdout.write(json.dumps(report.as_dict(), ensure_ascii=False) + "\n")
        return
    text(report, Console(highlight=False, soft_wrap=True))


def show_rows(result: Any, as_json: bool) -> None:
    """Print a query's result, each value as PostgreSQL prints it (NULL as JSON null, or blank)."""
    if as_json:
        document = {
            "lsn": result.lsn,
            "columns": list(result.columns),
            "rows": [list(r) for r in result.rows],
            **({"set_aside": result.set_aside} if result.set_aside else {}),
        }
        sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
        return
    table = Table()
    for name in result.columns:
        table.add_column(escape(name), overflow="fold")
    count = 0
    for row in result.rows:
        table.add_row(*("[dim]NULL[/dim]" if value is None else escape(value) for value in row))
        count += 1
    console = Console(highlight=False)
    console.print(table)
    console.print(f"{count} row{'' if count == 1 else 's'} at {result.lsn}")
    aside_text(result, console)


def init_text(report: Any, console: Console) -> None:
    """Text of an InitReport."""
    if report.ddl_trigger is not None:
        console.print(f"the event trigger is {report.ddl_trigger}")
    if report.already:
        console.print(f"{report.pipeline} is already set up; the lake is at {report.lsn}")
        _warnings(report.warnings, console)
        return
    table = Table(title=f"{report.pipeline}: copied at {report.lsn}")
    for name in ("source table", "lake table", "rows", "files"):
        table.add_column(name, justify="right" if name in ("rows", "files") else "left")
    for copy in report.tables:
        table.add_row(escape(copy.table), escape(copy.lake_table), f"{copy.rows:,}", str(copy.files))
    console.print(table)
    console.print(f"{report.rows:,} rows in {report.seconds:.1f} s; slot {report.slot}")
    aside_text(report, console)
    _warnings(report.warnings, console)


def replay_text(report: Any, console: Console) -> None:
    """Text of a ReplayReport."""
    console.print(
        f"{report.transactions:,} transactions, {report.changes:,} changes in {report.batches} batches "
        f"({report.archived} archived), {report.from_lsn} to {report.lsn}, in {report.seconds:.1f} s"
    )
    console.print(f"{len(report.tables)} tables in namespace {report.namespace}")
    for table in report.copied_meanwhile:
        console.print(f"{escape(table)} was copied or read again in this range: its replay lacks that")


def pull_text(report: Any, console: Console) -> None:
    """Text of a PullReport."""
    if report.batch is None:
        console.print(f"nothing new; the lake is at {report.end_lsn}")
        return
    console.print(
        f"batch {report.batch}: {report.transactions:,} transactions, {report.changes:,} changes, "
        f"{report.start_lsn} to {report.end_lsn}, in {report.seconds:.1f} s"
    )


def sync_text(report: Any, console: Console) -> None:
    """Text of a SyncReport; WAL without published changes moves the lake on, and is nothing new."""
    _joining(report, console)
    aside_text(report, console)
    if report.batch is None or not report.transactions:
        console.print(f"nothing new; the lake is at {report.lsn}")
        return
    console.print(
        f"{report.transactions:,} transactions, {report.changes:,} changes in {report.seconds:.1f} s; "
        f"the lake is at {report.lsn}"
    )
    for name, changes in report.tables.items():
        console.print(f"  {escape(name)}: {changes:,} changes")
    for name, met in report.conflicts.items():
        console.print(f"  {escape(name)}: met what the source did not have: {_conflicts(met)}")


def _joining(report: Any, console: Console) -> None:
    for name in report.added_tables:
        console.print(f"{escape(name)} has joined")
    for name, ranges in report.joining.items():
        console.print(f"{escape(name)} joins: {ranges} are copied, the next sync goes on with it")


def _conflicts(met: dict[str, int]) -> str:
    return ", ".join(f"{kind} {count:,}" for kind, count in met.items())


def verify_text(report: Any, console: Console) -> None:
    """Text of a verification: a line per table, then what differs."""
    table = Table(title=f"source and lake at {report.lsn}")
    for name in ("table", "rows in source", "rows in lake", "result"):
        table.add_column(name, justify="right" if name.startswith("rows") else "left")
    for name, result in report.tables.items():
        verdict = "[green]equal[/green]" if result.equal else f"[red]{verdict_text(result)}[/red]"
        table.add_row(escape(name), f"{result.source_rows:,}", f"{result.lake_rows:,}", verdict)
    console.print(table)
    for name, result in report.tables.items():
        for difference in result.differences:
            console.print(f"  {escape(name)}: {escape(str(difference))}")


def backfill_text(report: Any, console: Console) -> None:
    """Text of a BackfillReport."""
    for table in report.tables:
        changes = "replaced"
        if table.inserted is not None:
            would = "to be: " if report.dry_run else ""
            counts = (table.inserted, "inserted", table.changed, "changed", table.deleted, "deleted")
            changes = would + "{:,} {}, {:,} {}, {:,} {}".format(*counts)
        if table.taken:
            changes += f", {table.taken:,} rows taken away from the lake for it"
        console.print(f"{escape(table.table)}: {table.rows:,} rows in the source, {changes}")
        for entry in table.keys:
            key = ", ".join(f"{name}={value}" for name, value in entry["key"].items())
            console.print(f"  {entry['change']}  {escape(key)}")
    what = "compared; nothing was changed" if report.dry_run else "published"
    console.print(f"{what} at {report.lsn}, in {report.seconds:.1f} s")


def status_text(report: Any, console: Console) -> None:
    """Text of a StatusReport."""
    console.print(f"pipeline {report.pipeline}: {report.state}")
    rows = {
        "last consistent LSN": report.last_consistent_lsn,
        "source commit time there": report.last_commit_time,
        "published at": report.published_at,
        "source is at": report.source_lsn,
        "lag": _lag(report),
        "WAL retained by the slot": _bytes(report.retained_wal_bytes),
        "WAL written": None if (rate := report.wal_bytes_per_second) is None else f"{_bytes(round(rate))}/s",
        "slot invalidated in": _invalidation(report),
        "archived batches": f"{report.changelog_batches} ({_bytes(report.changelog_bytes)})",
    }
    for name, value in rows.items():
        console.print(f"  {name:<26}{'-' if value is None else value}")
    if report.slot:
        console.print("  slot")
        for name, value in report.slot.items():
            console.print(f"    {name:<24}{'-' if value is None else escape(str(value))}")
    if report.ddl_trigger is not None:
        console.print(f"  {'event trigger':<26}{report.ddl_trigger}")
    if report.standing_puller is not None:
        console.print(f"  {'standing puller':<26}process {report.standing_puller}")
    for waiting in report.prepared:
        console.print(
            f"  prepared transaction {escape(waiting['gid'])!r} waits since {waiting['prepare_lsn']}"
        )
    for holder in report.held_back_by:
        console.print(f"  held back by {escape(str(Holder(**holder)))}")
    if not report.sees_all_transactions:
        console.print("  transactions of other users are not seen: GRANT pg_read_all_stats to this role")
    _status_tables(report, console)
    _warnings(report.warnings, console)


def _lag(report: Any) -> str | None:
    parts = [_bytes(report.lag_bytes), None if report.lag_seconds is None else span(report.lag_seconds)]
    return ", ".join(part for part in parts if part is not None) or None


def _invalidation(report: Any) -> str | None:
    if report.invalidation_by is None:
        return None
    return f"about {span(report.seconds_to_invalidation)} ({report.invalidation_by})"


def _status_tables(report: Any, console: Console) -> None:
    table = Table()
    for name in ("source table", "lake table", "key", "state"):
        table.add_column(name)
    for entry in report.tables:
        kept = "\n".join([entry.lake_table, *entry.beside])
        state = entry.state if entry.copied is None else f"{entry.state}, {_copied(entry.copied)}"
        table.add_row(escape(entry.table), escape(kept), escape(", ".join(entry.key)), state)
    console.print(table)
    for entry in report.tables:
        for what, value in entry.takes.items():
            listed = value if isinstance(value, str) else ", ".join(value)
            console.print(f"  of {escape(entry.table)} only {what} {escape(listed)}")
        for column, name in entry.columns.items():
            console.print(f"  column {escape(column)} of {escape(entry.table)} is {escape(name)} in the lake")
        if entry.conflicts:
            console.print(
                f"  changes of {escape(entry.table)} met what the source did not have, since it was copied:"
            )
            console.print(f"    {_conflicts(entry.conflicts)}; slotlake verify tells whether it is equal now")
        if entry.copied_again:
            console.print(f"  {escape(entry.table)} was copied again at {escape(entry.copied_again)}")


def _copied(copied: dict[str, Any]) -> str:
    """How far a table's copy is."""
    of = f" of about {copied['rows_estimated']:,}" if copied["rows_estimated"] else ""
    ranges = f"{copied['ranges_done']:,} of {copied['ranges']:,} ranges"
    return f"{copied['rows']:,}{of} rows, {_bytes(copied['bytes'])}, {ranges}"


def types_text(report: Any, console: Console) -> None:
    """Text of a TypesReport."""
    console.print(f"pipeline {report.pipeline}: types at {report.lsn}")
    for entry in report.tables:
        table = Table(title=escape(f"{entry.table} in {entry.lake_table}"), title_justify="left")
        for name in ("column", "PostgreSQL", "Arrow", "Iceberg", "a value that does not fit", "rows"):
            table.add_column(name, justify="right" if name == "rows" else "left")
        for column in entry.columns:
            cells = (column.lake_column, column.postgres, column.arrow, column.iceberg)
            rows = (
                "?" if column.exact_texts is None else f"{column.exact_texts:,}" if column.companion else ""
            )
            table.add_row(*map(escape, cells), escape(column.otherwise or "every value fits"), rows)
        console.print(table)


def maintain_text(report: Any, console: Console) -> None:
    """Text of a MaintainReport: a line per table to which something was done."""
    for entry in report.tables:
        name = escape(entry.lake_table)
        if entry.staged:
            console.print(f"{name}: left alone, a batch is being applied")
        elif entry.rewritten_files or entry.expired_snapshots or entry.removed_files:
            console.print(
                f"{name}: {entry.rewritten_files:,} files became {entry.written_files:,}, "
                f"{entry.expired_snapshots:,} snapshots expired, {entry.removed_files:,} files removed "
                f"({_bytes(entry.removed_bytes)})"
            )
    if report.left:
        console.print(f"{len(report.left):,} tables are left for the next run")
    console.print(f"{len(report.tables):,} tables maintained in {report.seconds:.1f} s")


def ddl_text(report: Any, console: Console) -> None:
    """Text of a SchemaReport."""
    for change in report.pending:
        console.print(f"pending: {escape(change.table)} {escape(change.change)}")
    for change in report.past:
        console.print(f"from {change.lsn}: {escape(change.table)} {escape(change.change)}")
    if not report.pending and not report.past:
        console.print("no table's columns have changed, as far back as points are kept")


def drop_text(report: Any, console: Console) -> None:
    """Text of what `drop` removed."""
    for line in report.done:
        console.print(escape(line))
    if report.left:
        console.print("[yellow]left to be done by hand[/yellow] (or run the same again later):")
    for line in report.left:
        console.print(f"  {escape(line)}")


def recover_text(report: Any, console: Console) -> None:
    """Text of a recovery plan or of what was done."""
    for line in [finding.what for finding in report.findings] or [report.diagnosis]:
        console.print(escape(line))
    for line in report.plan:
        console.print(f"  {'done' if report.carried_out else 'plan'}: {escape(line)}")
    for line in report.lost:
        console.print(f"  lost: {escape(line)}")
    if report.plan:
        tables = sum(table.rows > 0 for table in report.tables)
        console.print(f"  in all: {report.rows:,} rows, about {_bytes(report.bytes)}, in {tables} tables")
    if report.carried_out:
        console.print(f"recovered at {report.lsn} in {report.seconds:.1f} s; slotlake verify proves it")
    if report.plan and not report.carried_out:
        console.print("run again with --yes to carry it out")


def _warnings(warnings: list[str], console: Console) -> None:
    for warning in warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}")


def _bytes(count: int | None) -> str | None:
    if count is None:
        return None
    size = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size) < 1024 or unit == "TB":
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return None


__all__ = ["Progressing", "Report", "progress", "show", "show_rows"]
