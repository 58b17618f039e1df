"""Commands that run a pipeline: init, sync, pull, verify."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from slotlake.infra.cli import output
from slotlake.infra.cli.options import WORK, JsonOption, PipelineArgument, open_pipeline

commands = typer.Typer()


@commands.command(rich_help_panel=WORK)
def init(
    pipeline: PipelineArgument,
    as_json: JsonOption = False,
    ddl_trigger: Annotated[
        bool, typer.Option("--ddl-trigger", help="Also install the optional event trigger (docs/schema.md).")
    ] = False,
    print_sql: Annotated[
        bool, typer.Option("--print-sql", help="Only print what a DBA runs first: grants, publication.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Install the event trigger without asking.")] = False,
) -> None:
    """Make publication, slot and lake tables, and copy what the source holds now.

    The role of source.dsn needs REPLICATION and SELECT, and a publication that is there; --print-sql prints
    the SQL that gives it these (with --ddl-trigger also the event trigger), to be run by a superuser.
    """
    if print_sql:
        _print_sql(pipeline, ddl_trigger)
        return
    with open_pipeline(pipeline) as opened, output.progress(as_json) as progress:
        trigger = _trigger(opened, as_json, yes=yes) if ddl_trigger else None
        report = replace(opened.init(progress=progress), ddl_trigger=trigger)
    output.show(report, as_json, output.init_text)


def _print_sql(pipeline: Path, ddl_trigger: bool) -> None:
    from slotlake.infra.config.pipeline_file import load_pipeline
    from slotlake.infra.source.ddl_trigger import INSTALL
    from slotlake.infra.source.grants import grants

    typer.echo(grants(load_pipeline(pipeline)) + (f"\n{INSTALL}" if ddl_trigger else ""))


def _trigger(pipeline: Any, as_json: bool, *, yes: bool) -> str:
    """Show it, ask, install it; what state it is in then."""
    from slotlake.infra.source.ddl_trigger import INSTALL

    typer.echo(INSTALL, err=as_json)
    if not yes:
        typer.confirm(f"Install this in the source of pipeline {pipeline.name}?", abort=True)
    return str(pipeline.install_trigger().state)


@commands.command(rich_help_panel=WORK)
def sync(
    pipeline: PipelineArgument,
    as_json: JsonOption = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for another run to end.")] = 0.0,
) -> None:
    """One micro-batch: catch up with the source's WAL position now, apply, publish, confirm."""
    with open_pipeline(pipeline) as opened, output.progress(as_json) as progress:
        report = opened.sync(progress=progress, wait_seconds=wait)
    output.show(report, as_json, output.sync_text)


@commands.command(rich_help_panel=WORK)
def pull(
    pipeline: PipelineArgument,
    as_json: JsonOption = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Stay connected, and give the pipeline's runs their batches.")
    ] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End the one that follows.")] = False,
) -> None:
    """Only the first step of sync: write the next change log batch; nothing is applied or confirmed.

    With --follow, one connection serves all later runs: transactions that stay open over many
    micro-batches are then sent and decoded once.
    """
    with open_pipeline(pipeline) as opened:
        if follow or stop:
            _follow(opened, stop)
            return
        with output.progress(as_json) as progress:
            report = opened.pull(progress=progress)
    output.show(report, as_json, output.pull_text)


def _follow(pipeline: Any, stop: bool) -> None:
    from slotlake.infra.source import standing_puller

    if stop:
        ended = standing_puller.stop(pipeline)
        typer.echo("ended" if ended else f"no standing puller serves {pipeline.name!r}", err=True)
        return
    with standing_puller.ended_by_signals():
        standing_puller.serve(pipeline, lambda line: typer.echo(line, err=True))


@commands.command(rich_help_panel=WORK)
def verify(
    pipeline: PipelineArgument,
    as_json: JsonOption = False,
    slot_timeout: Annotated[
        float, typer.Option(help="Seconds to wait for transactions that are open at the start.")
    ] = 60.0,
) -> None:
    """Compare lake and source at an exact LSN; exit code 1 and the differing keys if not equal."""
    with open_pipeline(pipeline) as opened, output.progress(as_json) as progress:
        report = opened.verify(progress=progress, slot_timeout_seconds=slot_timeout)
    output.show(report, as_json, output.verify_text)
    if not report.equal:
        raise typer.Exit(1)
