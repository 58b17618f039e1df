"""Text of the reports of the commands that change nothing: status, status --types, validate."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slotlake.decoder.slots.pressure import Holder, span
from slotlake.infra.cli.output import LINES_MAX, lines_of, size_text, warning_lines
from slotlake.infra.cli.texts.work import machines_text
from slotlake.infra.progress import conflict_counts, counted

if TYPE_CHECKING:
    from slotlake.infra.reports import StatusReport, TableStatus
    from slotlake.infra.status.telling import TellReport
    from slotlake.infra.status.types_report import ColumnTypes, TypesReport
    from slotlake.infra.status.validation import Check, ValidationReport

_RESULT_STYLES = {"ok": "green", "warning": "yellow", "error": "red", "not checked": "dim"}


def status_text(
    report: StatusReport, console: Console, *, file: str = "PIPELINE.yaml", all_facts: bool = False
) -> None:
    """Print whether all is well, how far the lake is behind, and what to do; then what needs somebody.

    Args:
        console: where it is printed.
        file: the pipeline file, for the commands that are named.
        all_facts: print also the slot, the times, all tables and all warnings, however many there are.
    """
    console.print(_answer(report, file))
    alarms = [
        f"[red]alarm:[/red] {escape(alarm.what)}\n  what to do: {escape(alarm.way_out)}"
        for alarm in report.alarms
    ]
    lines_max = len(report.tables) + len(report.warnings) if all_facts else LINES_MAX
    lines_of(alarms, console, "alarms", lines_max)
    for name, value in {**_main_facts(report), **(_other_facts(report) if all_facts else {})}.items():
        if value is not None:
            console.print(f"  {name:<26}{escape(value)}")
    if all_facts:
        for name, value in (report.slot or {}).items():
            if value is not None:
                console.print(f"  slot: {name:<20}{escape(str(value))}")
    _open_transactions(report, console)
    _status_tables(report.tables, console, lines_max, all_tables=all_facts)
    said = set(map(str, report.alarms))
    warning_lines([each for each in report.warnings if each not in said], console, lines_max)
    if not all_facts:
        console.print(f"  [dim]the slot, all times and tables: slotlake status {escape(file)} --all[/dim]")


def _answer(report: StatusReport, file: str) -> str:
    """Return the first line: the state, how far the lake is behind, or what to do."""
    name, ways_out = escape(report.pipeline), {
        "not initialised": f"run slotlake init {escape(file)}",
        "initial copy unfinished": f"slotlake init {escape(file)} goes on with it",
        "dropped": "its slot is gone, and it has no DAGs any more",
    }  # fmt: skip
    if report.state != "ready":
        style = "yellow" if report.state == "copying" else "red"
        way_out = ways_out.get(report.state)
        return f"[{style}]{name}: {report.state}[/{style}]" + (f": {way_out}" if way_out else "")
    if report.alarms:
        alarms = "an alarm needs" if len(report.alarms) == 1 else f"{len(report.alarms):,} alarms need"
        return f"[red]{name}: {alarms} somebody[/red]; the lake is {_behind(report)}"
    return f"[green]{name}: ready[/green]; the lake is {_behind(report)}"


def _behind(report: StatusReport) -> str:
    if report.lag_seconds == 0:
        return "not behind the source"
    lag = _lag(report)
    return "behind the source; how far is not known" if lag is None else f"{lag} behind the source"


def _main_facts(report: StatusReport) -> dict[str, str | None]:
    at, committed = report.last_consistent_lsn, report.last_commit_time
    as_of = f"the source at {at}" + (f", {committed}" if committed else "")
    return {
        "the lake is": None if at is None else as_of,
        "WAL retained by the slot": size_text(report.retained_wal_bytes),
        "slot invalidated in": _invalidation(report),
        "verification": _verification(report),
    }


def _other_facts(report: StatusReport) -> dict[str, str | None]:
    rate, puller = report.wal_bytes_per_second, report.standing_puller
    return {
        "published at": report.published_at,
        "source is at": report.source_lsn,
        "lag": _lag(report),
        "lag of the newest batch": _batch_lag(report),
        "WAL written": None if rate is None else f"{size_text(round(rate))}/s",
        "ranges by machine": _machines(report),
        "archived batches": f"{report.changelog_batches} ({size_text(report.changelog_bytes)})",
        "event trigger": report.ddl_trigger,
        "standing puller": None if puller is None else f"process {puller}",
        "pinned views": ", ".join(f"{name} at {point}" for name, point in report.views.items()) or None,
    }


def _machines(report: StatusReport) -> str | None:
    return machines_text((report.copy or {}).get("machines", {})) or None


def _lag(report: StatusReport) -> str | None:
    parts = [size_text(report.lag_bytes), None if report.lag_seconds is None else span(report.lag_seconds)]
    return ", ".join(part for part in parts if part is not None) or None


def _batch_lag(report: StatusReport) -> str | None:
    lag = report.batch_lag_seconds
    return None if lag is None else f"{lag:,.1f} s from its oldest commit to its publication"


def _verification(report: StatusReport) -> str | None:
    known = report.verification
    if known is None:
        return None
    different = f"{len(known['different'])} tables differ" if known["different"] else "no difference is known"
    if "slices" not in known:
        return different
    waited = span(max(0.0, time.time() - known["oldest"]))
    never = f", {known['never']:,} never found equal" if known["never"] else ""
    return f"{different}; {known['slices']:,} slices{never}, the oldest has waited {waited}"


def _invalidation(report: StatusReport) -> str | None:
    if report.invalidation_by is None or report.seconds_to_invalidation is None:
        return None
    return f"about {span(report.seconds_to_invalidation)} ({report.invalidation_by})"


def _open_transactions(report: StatusReport, console: Console) -> None:
    for prepared in report.prepared:
        gid, lsn = escape(prepared["gid"]), prepared["prepare_lsn"]
        console.print(f"  prepared transaction {gid!r} has waited since {lsn}")
    for holder in report.held_back_by:
        console.print(f"  WAL is held back by {escape(str(Holder(**holder)))}")
    if not report.sees_all_transactions:
        console.print(
            "  this role cannot see the transactions of other users: GRANT pg_read_all_stats to this role"
        )


def _status_tables(
    tables: Sequence[TableStatus], console: Console, lines_max: int, *, all_tables: bool
) -> None:
    """Print how many tables there are in which state; in a grid those that are not ready, or all of them."""
    if not tables:
        return
    states = ", ".join(f"{count:,} {escape(state)}" for state, count in _states(tables).most_common())
    console.print(f"  {'tables':<26}{states}")
    wanted = sorted((each for each in tables if all_tables or not _is_ready(each)), key=_is_ready)
    shown = wanted[:lines_max]
    if shown:
        _status_grid(shown, console)
    if len(wanted) > len(shown):
        console.print(f"  and {len(wanted) - len(shown):,} more tables; slotlake status --all lists them")
    for entry in shown:
        _table_remarks(entry, console)


def _is_ready(entry: TableStatus) -> bool:
    return entry.state == "ready" and entry.copied is None and not entry.conflicts


def _states(tables: Sequence[TableStatus]) -> Counter[str]:
    """How many tables are in each state, whatever the LSN at which they were set aside."""
    return Counter(entry.state.partition(" since ")[0] for entry in tables)


def _status_grid(tables: Sequence[TableStatus], console: Console) -> None:
    grid = Table()
    for name in ("source table", "lake table", "key", "state", "life"):
        grid.add_column(name)
    for entry in tables:
        lake_tables = "\n".join([entry.lake_table, *entry.beside])
        state = entry.state if entry.copied is None else f"{entry.state}, {_copied(entry.copied)}"
        grid.add_row(
            escape(entry.table), escape(lake_tables), escape(", ".join(entry.key)), state, entry.life
        )
    console.print(grid)


def _table_remarks(entry: TableStatus, console: Console) -> None:
    """Print what is special about one table."""
    table = escape(entry.table)
    for part, value in entry.takes.items():
        parts = value if isinstance(value, str) else ", ".join(value)
        console.print(f"  the lake takes only a part of {table}: {part} {escape(parts)}")
    for column, name in entry.columns.items():
        console.print(f"  column {escape(column)} of {table} is named {escape(name)} in the lake")
    if entry.conflicts:
        console.print(f"  {table} has had conflicts since it was copied: {conflict_counts(entry.conflicts)};")
        console.print("    slotlake verify shows whether it is equal to the source now")
    if entry.copied_again:
        console.print(f"  {table} was copied again at {escape(entry.copied_again)}")


def _copied(copied: dict[str, Any]) -> str:
    """Return how much of a table is copied."""
    total = f" of about {copied['rows_estimated']:,}" if copied["rows_estimated"] else ""
    ranges = f"{copied['ranges_done']:,} of {copied['ranges']:,} ranges"
    return f"{copied['rows']:,}{total} rows, {size_text(copied['bytes'])}, {ranges}"


def notify_text(report: TellReport, console: Console) -> None:
    """Print a line for each receiver that was to be notified."""
    for name, reason in report.receivers.items():
        console.print(escape(f"{name}: {reason or 'it took the message'}"))
    if not report.receivers:
        alarms = "no alarm" if not report.alarms else counted(report.alarms, "alarm")
        console.print(f"{report.pipeline}: {alarms}, and nothing new to tell")


def types_text(report: TypesReport, console: Console) -> None:
    """Print a table of columns and types for each table."""
    console.print(f"pipeline {report.pipeline}: types at {report.lsn}")
    for entry in report.tables:
        grid = Table(title=escape(f"{entry.table} in {entry.lake_table}"), title_justify="left")
        for name in ("column", "PostgreSQL", "Arrow", "Iceberg", "a value that does not fit", "rows"):
            grid.add_column(name, justify="right" if name == "rows" else "left")
        for column in entry.columns:
            cells = (column.lake_column, column.postgres, column.arrow, column.iceberg)
            otherwise = column.otherwise or "every value fits"
            grid.add_row(*map(escape, cells), escape(otherwise), _exact_text_rows(column))
        console.print(grid)


def _exact_text_rows(column: ColumnTypes) -> str:
    if column.exact_texts is None:
        return "?"
    return f"{column.exact_texts:,}" if column.companion else ""


def validation_text(report: ValidationReport, console: Console) -> None:
    """Print one line per check: result, name, what was checked, what to do; then the totals."""
    check_lines(report.checks, console)
    errors = sum(check.result == "error" for check in report.checks)
    warnings = sum(check.result == "warning" for check in report.checks)
    problems = f"{counted(errors, 'error')}, {counted(warnings, 'warning')}"
    console.print(f"{report.file}: {problems}; nothing was changed")


def check_lines(checks: Sequence[Check], console: Console) -> None:
    """Print one line per check: result, name, what was checked, what to do."""
    for (name, result), alike in itertools.groupby(checks, lambda check: (check.name, check.result)):
        lines_of(map(_check_line, alike), console, f"lines of {name}: {result}")


def _check_line(check: Check) -> str:
    way_out = f" What to do: {check.way_out}" if check.way_out else ""
    line = f"{check.result:<11} {check.name}: {check.what}.{way_out}"
    return f"[{_RESULT_STYLES[check.result]}]{escape(' '.join(line.splitlines()))}[/]"
