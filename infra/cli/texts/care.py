"""Text of the reports of the commands that repair and remove."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from slotlake.infra.cli.output import lines_of, size_text, warning_lines
from slotlake.infra.progress import brought, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slotlake.infra.backfill.replay import ReplayReport
    from slotlake.infra.backfill.report import BackfillReport, TableBackfilled
    from slotlake.infra.maintain.adding import AddReport
    from slotlake.infra.maintain.dropping import DropReport
    from slotlake.infra.maintain.removing import RemoveReport
    from slotlake.infra.recover.report import RecoverReport
    from slotlake.infra.reports import (
        FormatReport,
        LayoutReport,
        MaintainReport,
        ResumeReport,
        TableMaintained,
    )
    from slotlake.infra.status.schema_changes import SchemaReport


def backfill_text(report: BackfillReport, console: Console) -> None:
    """Print one line per table, and the keys that a dry run lists."""
    for table in report.tables:
        changes = _backfill_changes(table, report.dry_run)
        console.print(f"{escape(table.table)}: {table.rows:,} rows in the source, {changes}")
        for entry in table.keys:
            key = ", ".join(f"{name}={value}" for name, value in entry["key"].items())
            console.print(f"  {entry['change']}  {escape(key)}")
    action = "compared; nothing was changed" if report.dry_run else "published"
    console.print(f"{action} at {report.lsn}, in {report.seconds:.1f} s")


def _backfill_changes(table: TableBackfilled, dry_run: bool) -> str:
    if table.inserted is None:
        changes = "the whole lake table replaced"
    else:
        changes = (
            f"{'would be: ' if dry_run else ''}{table.inserted:,} inserted, "
            f"{table.changed:,} changed, {table.deleted:,} deleted"
        )
    removed = f", {table.taken:,} rows of the lake removed for this" if table.taken else ""
    return changes + removed


def replay_text(report: ReplayReport, console: Console) -> None:
    """Print what was replayed, and which tables the replay cannot show completely."""
    console.print(
        f"{brought(report.transactions, report.changes)} in "
        f"{counted(report.batches, 'batch')} ({report.archived} archived), "
        f"{report.from_lsn} to {report.lsn}, in {report.seconds:.1f} s"
    )
    console.print(f"{len(report.tables)} tables in namespace {report.namespace}")
    for table in report.copied_meanwhile:
        console.print(
            f"{escape(table)} was copied or read again in this range; the replay does not contain that"
        )


def add_text(report: AddReport, console: Console) -> None:
    """Print what became of each table, and what to write into the pipeline file."""
    for table in report.tables:
        how = "published already" if table.publication is None else f"added to {table.publication}"
        state = {
            "followed": f"the lake has it at {report.lsn}, and the syncs follow it",
            "copying": f"{table.detail or 'nothing'} copied so far; the next syncs go on",
            "set aside": f"it is set aside: {table.detail}",
        }[table.state]
        console.print(f"{escape(table.table)}: {how}; {escape(state)}")
    _lines_for_file(
        "write under `tables` in the pipeline file, which was not changed:", report.to_write, console
    )


def remove_text(report: RemoveReport, console: Console) -> None:
    """Print what was done, what the lake keeps, and what to take out of the pipeline file."""
    for line in report.done or ["the source publishes it no longer; nothing was to do"]:
        console.print(escape(line))
    for table in report.remaining:
        console.print(f"{escape(table)}: the lake keeps it; the next sync brings what was committed before")
    for table in report.still_published:
        console.print(f"{escape(table)}: still published; the lake passes over its changes")
    heading = "take out of `tables` in the pipeline file, which was not changed:"
    _lines_for_file(heading, report.to_take_out, console)
    heading = "a pattern names it; write under `tables` in the pipeline file, which was not changed:"
    _lines_for_file(heading, report.to_write, console)


def _lines_for_file(heading: str, lines: Sequence[str], console: Console) -> None:
    if lines:
        console.print(escape(heading))
        for line in lines:
            console.print(escape(line))


def resume_text(report: ResumeReport, console: Console) -> None:
    """Print what became of one table."""
    name = escape(report.table)
    if report.already:
        console.print(f"{name} is not set aside; the syncs follow it, and the lake is at {report.lsn}")
    elif report.copying:
        console.print(f"{name}: {report.copying} are copied; it stays set aside, each sync copies more of it")
    else:
        console.print(f"{name}: {report.rows:,} rows copied; the syncs follow it again from {report.lsn}")


def maintain_text(report: MaintainReport, console: Console) -> None:
    """Print one line per table that maintenance changed or skipped."""
    maintained = ((table.lake_table, _maintained(table)) for table in report.tables)
    lines_of((f"{escape(name)}: {line}" for name, line in maintained if line), console, "tables")
    if report.left:
        console.print(f"{len(report.left):,} tables wait for the next run")
    if report.ended_uploads:
        console.print(
            f"{report.ended_uploads:,} uploads to the object store ended, which killed runs had left"
        )
    console.print(f"{len(report.tables):,} tables maintained in {report.seconds:.1f} s")
    warning_lines(report.warnings, console)


def _maintained(table: TableMaintained) -> str:
    if table.staged:
        return "skipped, because a batch is being applied"
    if not (table.rewritten_files or table.expired_snapshots or table.removed_files):
        return ""
    return (
        f"{table.rewritten_files:,} files became {table.written_files:,}, "
        f"{table.expired_snapshots:,} snapshots expired, {table.removed_files:,} files removed "
        f"({size_text(table.removed_bytes)})"
    )


def format_text(report: FormatReport, console: Console) -> None:
    """Print one line per table that has another format now."""
    changed = (f"{escape(table)}: format {old} became {new}" for table, (old, new) in report.tables.items())
    lines_of(changed, console, "tables")
    if not report.tables:
        console.print("all tables have the format that the pipeline file asks for")
    else:
        console.print(f"{len(report.tables):,} tables changed at once, in {report.seconds:.1f} s")


def layout_text(report: LayoutReport, console: Console) -> None:
    """Print one line per table that has another layout now."""
    changed = (
        f"{escape(table)}: was {escape(before)}, is {escape(after)}"
        for table, (before, after) in report.tables.items()
    )
    lines_of(changed, console, "tables")
    if not report.tables:
        console.print("all tables have the layout that the pipeline file asks for")
        return
    console.print(f"{len(report.tables):,} tables changed at once, in {report.seconds:.1f} s")
    console.print("older files keep their layout; slotlake maintain --rewrite-layout writes them anew")


def drop_text(report: DropReport, console: Console) -> None:
    """Print what drop removed, and what is still to do."""
    lines_of(map(escape, report.done), console, "lines")
    if report.left:
        console.print("[yellow]please do this by hand[/yellow] (or run the same command again later):")
    for line in report.left:
        console.print(f"  {escape(line)}")


def recover_text(report: RecoverReport, console: Console) -> None:
    """Print what is wrong, and the plan or what was done."""
    for line in [finding.what for finding in report.findings] or [report.diagnosis]:
        console.print(escape(line))
    for line in report.plan:
        console.print(f"  {'done' if report.carried_out else 'plan'}: {escape(line)}")
    for line in report.lost:
        console.print(f"  lost: {escape(line)}")
    if report.plan:
        about = "" if report.carried_out else "about "
        size, tables = size_text(report.bytes), counted(report.written, "table")
        console.print(f"  in total: {about}{counted(report.rows, 'row')}, about {size}, in {tables}")
    if report.carried_out:
        console.print(f"recovered at {report.lsn} in {report.seconds:.1f} s; run slotlake verify for a proof")
    if report.plan and not report.carried_out:
        console.print("run the command again with --yes to carry out this plan")


def ddl_text(report: SchemaReport, console: Console) -> None:
    """Print one line per schema change, those that wait for the next sync first."""
    for change in report.pending:
        console.print(f"pending: {escape(change.table)} {escape(change.change)}")
    for change in report.past:
        console.print(f"from {change.lsn}: {escape(change.table)} {escape(change.change)}")
    if not report.pending and not report.past:
        console.print("no column of any table has changed since the oldest kept point")
