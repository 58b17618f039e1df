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
from slotlake.infra.progress import conflict_counts

if TYPE_CHECKING:
    from slotlake.infra.reports import StatusReport, TableStatus
    from slotlake.infra.status.types_report import ColumnTypes, TypesReport
    from slotlake.infra.status.validation import Check, ValidationReport

_RESULT_STYLES = {"ok": "green", "warning": "yellow", "error": "red", "not checked": "dim"}


def status_text(report: StatusReport, console: Console, *, all_tables: bool = False) -> None:
    """Print where the pipeline is, what holds its slot back, its tables, and the warnings.

    Args:
        console: where it is printed.
        all_tables: print all tables and warnings, however many there are.
    """
    console.print(f"pipeline {report.pipeline}: {report.state}")
    for name, value in _status_rows(report).items():
        console.print(f"  {name:<26}{'-' if value is None else value}")
    if report.slot:
        console.print("  slot")
        for name, value in report.slot.items():
            console.print(f"    {name:<24}{'-' if value is None else escape(str(value))}")
    if report.ddl_trigger is not None:
        console.print(f"  {'event trigger':<26}{report.ddl_trigger}")
    if report.standing_puller is not None:
        console.print(f"  {'standing puller':<26}process {report.standing_puller}")
    for name, point in report.views.items():
        console.print(f"  {'pinned views':<26}{escape(name)} at {point}")
    _open_transactions(report, console)
    lines_max = len(report.tables) + len(report.warnings) if all_tables else LINES_MAX
    _status_tables(report.tables, console, lines_max)
    warning_lines(report.warnings, console, lines_max)


def _status_rows(report: StatusReport) -> dict[str, str | None]:
    rate = report.wal_bytes_per_second
    return {
        "last consistent LSN": report.last_consistent_lsn,
        "source commit time there": report.last_commit_time,
        "published at": report.published_at,
        "source is at": report.source_lsn,
        "lag": _lag(report),
        "lag of the newest batch": _batch_lag(report),
        "WAL retained by the slot": size_text(report.retained_wal_bytes),
        "WAL written": None if rate is None else f"{size_text(round(rate))}/s",
        "slot invalidated in": _invalidation(report),
        "ranges by machine": _machines(report),
        "verification": _verification(report),
        "archived batches": f"{report.changelog_batches} ({size_text(report.changelog_bytes)})",
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


def _status_tables(tables: Sequence[TableStatus], console: Console, lines_max: int) -> None:
    """Print the tables, those first of which there is more to say than that they are ready."""
    ordered = sorted(tables, key=_is_ready)
    shown, others = ordered[:lines_max], ordered[lines_max:]
    _status_grid(shown, console)
    if others:
        states = ", ".join(f"{count:,} {escape(state)}" for state, count in _states(others).most_common())
        console.print(f"  {len(others):,} more tables: {states}; slotlake status --all lists them")
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
    for (name, result), checks in itertools.groupby(report.checks, lambda check: (check.name, check.result)):
        lines_of(map(_check_line, checks), console, f"lines of {name}: {result}")
    errors = sum(check.result == "error" for check in report.checks)
    warnings = sum(check.result == "warning" for check in report.checks)
    console.print(f"{report.file}: {errors} errors, {warnings} warnings; nothing was changed")


def _check_line(check: Check) -> str:
    way_out = f" What to do: {check.way_out}" if check.way_out else ""
    line = f"{check.result:<11} {check.name}: {check.what}.{way_out}"
    return f"[{_RESULT_STYLES[check.result]}]{escape(' '.join(line.splitlines()))}[/]"
