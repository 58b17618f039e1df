"""Commands that repair, add and remove: backfill, add, resume, replay, maintain, drop, recover, …."""

from __future__ import annotations

from typing import Annotated

import typer

from slotlake.infra.cli.asking import require_yes
from slotlake.infra.cli.options import (
    CARE,
    JsonOption,
    NamedArgument,
    PatternArgument,
    PipelineArgument,
    TableOption,
    TablesArgument,
    WaitOption,
    named,
    open_pipeline,
    pipeline_and_tables,
)
from slotlake.infra.cli.output import show
from slotlake.infra.cli.progress_display import progress_shown
from slotlake.infra.cli.resume import resume_tables, show_resumed
from slotlake.infra.cli.texts import care as texts

commands = typer.Typer()


@commands.command(rich_help_panel=CARE)
def backfill(
    pipeline: PipelineArgument,
    tables: NamedArgument = None,
    table: TableOption = None,
    where: Annotated[
        str | None,
        typer.Option(help="SQL condition. A row is read again if it matches in the source or in the lake."),
    ] = None,
    key_range: Annotated[
        str | None, typer.Option(help="Range of the key's first column, A and B included: A..B, A.. or ..B.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; show which rows would change, and how many.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Read tables, or some of their rows, again from the source at an exact LSN. The syncs continue."""
    names = named(tables, table)
    with open_pipeline(pipeline) as opened, progress_shown(as_json) as progress:
        report = opened.backfill(names, where=where, key_range=key_range, dry_run=dry_run, progress=progress)
    show(report, as_json, texts.backfill_text)


@commands.command(rich_help_panel=CARE)
def add(
    pipeline: PipelineArgument,
    tables: PatternArgument = None,
    table: TableOption = None,
    publication: Annotated[
        str | None,
        typer.Option(
            help="The publication that takes them. Default: the one that init made, else the first."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Publish tables, where the role may, and copy and follow them. The syncs continue (docs/tables.md)."""
    names = named(tables, table)
    with open_pipeline(pipeline) as opened, progress_shown(as_json) as progress:
        report = opened.add(names, publication=publication, progress=progress)
    show(report, as_json, texts.add_text)


@commands.command(rich_help_panel=CARE)
def remove(
    pipeline: PipelineArgument,
    tables: PatternArgument = None,
    table: TableOption = None,
    drop_table: Annotated[
        bool,
        typer.Option("--drop", help="Also remove the lake's tables, with all that they have of the past."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Take tables out of the publication. The lake keeps them as they were, except with --drop."""
    names = named(tables, table)
    with open_pipeline(pipeline) as opened:
        report = opened.remove(names, drop=drop_table)
    show(report, as_json, texts.remove_text)


@commands.command(rich_help_panel=CARE)
def resume(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="PIPELINE.yaml TABLE…",
            help="The pipeline file, and table names in PostgreSQL's form: public.orders.",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Copy tables that are set aside again, and follow them again. `slotlake status` lists these tables."""
    file, tables = pipeline_and_tables(arguments)
    with open_pipeline(file) as opened, progress_shown(as_json) as progress:
        reports, refusals = resume_tables(opened, tables, progress)
    show_resumed(reports, refusals, as_json, one=len(tables) == 1)
    if refusals:
        raise typer.Exit(next(iter(refusals.values())).exit_code)


@commands.command(rich_help_panel=CARE)
def replay(
    pipeline: PipelineArgument,
    into: Annotated[str, typer.Option(help="Namespace for the scratch tables.")],
    begin: Annotated[
        str | None, typer.Option("--from", help="Start: an LSN or a time. Default: the oldest kept point.")
    ] = None,
    end: Annotated[str, typer.Option("--to", help="End: an LSN, a time, or 'latest'.")] = "latest",
    transactions: Annotated[
        int | None, typer.Option(min=1, help="Transactions per batch. Default: the original batches.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Apply archived batches again, to tables in a scratch namespace. The live tables do not change."""
    with open_pipeline(pipeline) as opened, progress_shown(as_json) as progress:
        report = opened.replay(into, start=begin, end=end, transactions=transactions, progress=progress)
    show(report, as_json, texts.replay_text)


@commands.command(rich_help_panel=CARE)
def maintain(
    pipeline: PipelineArgument,
    table: Annotated[
        str | None, typer.Option(help="Only this table, in PostgreSQL's form: public.orders.")
    ] = None,
    rewrite_layout: Annotated[
        bool,
        typer.Option("--rewrite-layout", help="Also rewrite tables with files of an earlier layout."),
    ] = False,
    as_json: JsonOption = False,
    wait: WaitOption = 60.0,
) -> None:
    """Keep the lake's tables small and fast: pack files, expire old snapshots, remove unused files."""
    with open_pipeline(pipeline) as opened, progress_shown(as_json) as progress:
        report = opened.maintain(table, rewrite_layout=rewrite_layout, progress=progress, wait_seconds=wait)
    show(report, as_json, texts.maintain_text)


@commands.command("format", rich_help_panel=CARE)
def format_tables(
    pipeline: PipelineArgument,
    tables: TablesArgument = None,
    as_json: JsonOption = False,
    wait: WaitOption = 60.0,
) -> None:
    """Give tables the Iceberg format that the pipeline file asks for (lake.format). Rewrites no rows."""
    with open_pipeline(pipeline) as opened, progress_shown(as_json) as progress:
        report = opened.change_format(tables or (), progress=progress, wait_seconds=wait)
    show(report, as_json, texts.format_text)


@commands.command("layout", rich_help_panel=CARE)
def lay_out_tables(
    pipeline: PipelineArgument,
    tables: TablesArgument = None,
    as_json: JsonOption = False,
    wait: WaitOption = 60.0,
) -> None:
    """Give tables the partitions and the sort order of the pipeline file. Rewrites no rows."""
    with open_pipeline(pipeline) as opened, progress_shown(as_json) as progress:
        report = opened.change_layout(tables or (), progress=progress, wait_seconds=wait)
    show(report, as_json, texts.layout_text)


@commands.command(rich_help_panel=CARE)
def drop(
    pipeline: PipelineArgument,
    lake: Annotated[bool, typer.Option("--lake", help="Also remove the lake's tables.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Drop without a question.")] = False,
    as_json: JsonOption = False,
) -> None:
    """End the pipeline: drop its slot and its publications. The lake stays, except with --lake."""
    with open_pipeline(pipeline) as opened:
        if not yes:
            what = "the slot and the lake tables" if lake else "the slot"
            require_yes("drop", f"Drop {what} of pipeline {opened.name}?", unchanged="nothing was dropped")
        report = opened.drop(lake=lake)
    show(report, as_json, texts.drop_text)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


@commands.command(rich_help_panel=CARE)
def recover(
    pipeline: PipelineArgument,
    yes: Annotated[
        bool, typer.Option("--yes", help="Carry out the plan. Without --yes, the command only shows it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what is wrong and the cheapest plan to repair it. With --yes, carry it out (docs/runbook)."""
    with open_pipeline(pipeline) as opened, progress_shown(as_json) as progress:
        report = opened.recover(carry_out=yes, progress=progress)
    show(report, as_json, texts.recover_text)


@commands.command(rich_help_panel=CARE)
def ddl(pipeline: PipelineArgument, as_json: JsonOption = False) -> None:
    """List changes of the tables' columns: past ones with their LSN, and those that the next sync meets."""
    with open_pipeline(pipeline) as opened:
        report = opened.schema_changes()
    show(report, as_json, texts.ddl_text)
