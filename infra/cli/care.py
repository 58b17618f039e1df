"""Commands that repair and remove: backfill, replay, maintain, drop, recover, ddl."""

from __future__ import annotations

from typing import Annotated

import typer

from slotlake.infra.cli import output
from slotlake.infra.cli.options import CARE, JsonOption, PipelineArgument, open_pipeline, pipeline_and_tables
from slotlake.infra.cli.resume import each_resumed, show_resumed

commands = typer.Typer()


@commands.command(rich_help_panel=CARE)
def backfill(
    pipeline: PipelineArgument,
    table: Annotated[
        list[str], typer.Option(help="A table, as PostgreSQL writes it: public.orders; may be repeated.")
    ],
    where: Annotated[
        str | None, typer.Option(help="An SQL condition: only rows that satisfy it, on either side.")
    ] = None,
    key_range: Annotated[
        str | None, typer.Option(help="A..B of the key's first column, ends included; A.. or ..B.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show how many rows would change, and which.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Read tables, or some rows of them, again from the source, at an exact LSN, while the stream goes on."""
    with open_pipeline(pipeline) as opened, output.progress(as_json) as progress:
        report = opened.backfill(table, where=where, key_range=key_range, dry_run=dry_run, progress=progress)
    output.show(report, as_json, output.backfill_text)


@commands.command(rich_help_panel=CARE)
def resume(
    arguments: Annotated[
        list[str],
        typer.Argument(metavar="PIPELINE.yaml TABLE…", help="Tables, as PostgreSQL writes them."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Copy tables again that were set aside, and follow them from there on; status says which are."""
    file, tables = pipeline_and_tables(arguments)
    with open_pipeline(file) as opened, output.progress(as_json) as progress:
        reports, refusals = each_resumed(opened, tables, progress)
    show_resumed(reports, refusals, as_json, one=len(tables) == 1)
    if refusals:
        raise typer.Exit(next(iter(refusals.values())).exit_code)


@commands.command(rich_help_panel=CARE)
def replay(
    pipeline: PipelineArgument,
    into: Annotated[str, typer.Option(help="A namespace for the scratch tables.")],
    begin: Annotated[
        str | None, typer.Option("--from", help="An LSN or a time; the oldest kept point.")
    ] = None,
    end: Annotated[str, typer.Option("--to", help="An LSN, a time, or 'latest'.")] = "latest",
    transactions: Annotated[
        int | None, typer.Option(min=1, help="In batches of so many; else in those they were.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Apply archived batches once more, in a scratch namespace; the live tables are not touched."""
    with open_pipeline(pipeline) as opened, output.progress(as_json) as progress:
        report = opened.replay(into, start=begin, end=end, transactions=transactions, progress=progress)
    output.show(report, as_json, output.replay_text)


@commands.command(rich_help_panel=CARE)
def maintain(
    pipeline: PipelineArgument,
    table: Annotated[
        str | None, typer.Option(help="Only this table, as PostgreSQL writes it: public.orders.")
    ] = None,
    as_json: JsonOption = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for another run to end.")] = 60.0,
) -> None:
    """Keep the lake's tables quick to read and small: compact, expire, remove what nothing needs."""
    with open_pipeline(pipeline) as opened, output.progress(as_json) as progress:
        report = opened.maintain(table, progress=progress, wait_seconds=wait)
    output.show(report, as_json, output.maintain_text)


@commands.command(rich_help_panel=CARE)
def drop(
    pipeline: PipelineArgument,
    lake: Annotated[bool, typer.Option("--lake", help="Also remove the lake's tables.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """End the pipeline: drop its slot and the publications it made; keep the lake unless --lake is given."""
    with open_pipeline(pipeline) as opened:
        if not yes:
            what = "the slot and the lake tables" if lake else "the slot"
            typer.confirm(f"Drop {what} of pipeline {opened.name}?", abort=True)
        report = opened.drop(lake=lake)
    output.show(report, as_json, output.drop_text)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


@commands.command(rich_help_panel=CARE)
def recover(
    pipeline: PipelineArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Carry out the plan that it shows without.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Whatever is wrong, show it, and the cheapest plan that mends it; with --yes do so (docs/runbook)."""
    with open_pipeline(pipeline) as opened, output.progress(as_json) as progress:
        report = opened.recover(carry_out=yes, progress=progress)
    output.show(report, as_json, output.recover_text)


@commands.command(rich_help_panel=CARE)
def ddl(pipeline: PipelineArgument, as_json: JsonOption = False) -> None:
    """Changes of the tables' columns: those that the next sync will meet, and past ones with their LSN."""
    with open_pipeline(pipeline) as opened:
        report = opened.schema_changes()
    output.show(report, as_json, output.ddl_text)
