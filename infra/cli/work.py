"""Commands that run a pipeline: init, copy-worker, sync, run, pull, verify."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from slotlake.infra.cli.asking import require_yes
from slotlake.infra.cli.options import (
    WORK,
    JsonOption,
    PipelineArgument,
    WaitOption,
    open_pipeline,
    scope_of,
)
from slotlake.infra.cli.output import show
from slotlake.infra.cli.progress_display import progress_shown
from slotlake.infra.cli.texts import work as texts

commands = typer.Typer()


@commands.command(rich_help_panel=WORK)
def init(
    pipeline: PipelineArgument,
    as_json: JsonOption = False,
    ddl_trigger: Annotated[
        bool,
        typer.Option(
            "--ddl-trigger", help="Also install the event trigger, which is optional (docs/schema.md)."
        ),
    ] = False,
    print_sql: Annotated[
        bool,
        typer.Option(
            "--print-sql", help="Only print the SQL that a DBA runs before init: grants and publication."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Install the event trigger without a question.")] = False,
    wait: WaitOption = 0.0,
) -> None:
    """Create the publication, the slot and the lake tables, and copy all rows of the source.

    The role in source.dsn needs REPLICATION and SELECT, and the publication must exist if the role cannot
    create it. --print-sql prints the SQL for this; a superuser runs it. With --ddl-trigger, the SQL also
    installs the event trigger.
    """
    if print_sql:
        _print_sql(pipeline, ddl_trigger)
        return
    with open_pipeline(pipeline) as opened, progress_shown(as_json) as progress:
        trigger = _trigger(opened, as_json, yes=yes) if ddl_trigger else None
        report = replace(opened.init(progress=progress, wait_seconds=wait), ddl_trigger=trigger)
    show(report, as_json, texts.init_text)


@commands.command("copy-worker", rich_help_panel=WORK)
def copy_worker(
    pipeline: PipelineArgument,
    as_json: JsonOption = False,
    wait: Annotated[
        float, typer.Option(help="Seconds to wait for an init to begin, or to begin again.")
    ] = 60.0,
) -> None:
    """Help the init that runs on another machine: copy ranges of the tables, at the same time.

    The pipeline file needs state.path in an object store (docs/initial-copy.md). Start it on as many machines
    as you like, before or after init. You can kill it at any time: another machine copies its ranges.
    It ends when all ranges are copied. It starts no Spark.
    """
    with open_pipeline(pipeline) as opened, progress_shown(as_json) as progress:
        report = opened.help_copy(progress=progress, wait_seconds=wait)
    show(report, as_json, texts.copy_worker_text)


def _print_sql(pipeline: Path, ddl_trigger: bool) -> None:
    from slotlake.infra.config.pipeline_file import load_pipeline
    from slotlake.infra.source.ddl_trigger import INSTALL
    from slotlake.infra.source.grants import grants

    typer.echo(grants(load_pipeline(pipeline)) + (f"\n{INSTALL}" if ddl_trigger else ""))


def _trigger(pipeline: Any, as_json: bool, *, yes: bool) -> str:
    """Show the event trigger, ask the user, install it; return its state."""
    from slotlake.infra.source.ddl_trigger import INSTALL

    typer.echo(INSTALL, err=as_json)
    if not yes:
        question = f"Install this in the source of pipeline {pipeline.name}?"
        require_yes("init", question, unchanged="nothing was installed")
    return str(pipeline.install_trigger().state)


@commands.command(rich_help_panel=WORK)
def sync(
    pipeline: PipelineArgument,
    as_json: JsonOption = False,
    wait: WaitOption = 0.0,
) -> None:
    """Run one micro-batch: pull the changes up to the source's current position, apply, publish, confirm."""
    with open_pipeline(pipeline) as opened, progress_shown(as_json) as progress:
        report = opened.sync(progress=progress, wait_seconds=wait)
    show(report, as_json, texts.sync_text)


@commands.command(rich_help_panel=WORK)
def run(
    pipeline: PipelineArgument,
    for_: Annotated[
        str | None,
        typer.Option("--for", metavar="DURATION", help="End after this time: 90s, 10m, 2h. Default: never."),
    ] = None,
    until_lsn: Annotated[
        str | None, typer.Option(metavar="LSN", help="End when the lake has reached this LSN of the source.")
    ] = None,
    interval: Annotated[
        str,
        typer.Option(metavar="DURATION", help="The least time from the start of one batch to the next."),
    ] = "0s",
    retry_for: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="How long to repeat a batch while the source or the lake is unavailable.",
        ),
    ] = "5m",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document per batch, each on its own line.")
    ] = False,
) -> None:
    """Run micro-batches in a loop, as soon as the source has changes (docs/continuous.md).

    It prints one line per batch.
    SIGTERM or Ctrl-C ends it after the current batch, with exit code 0; a second signal ends it at once.
    You can kill it at any time: the next run continues.
    Other runs of the pipeline (verify, backfill, maintain, Airflow) get their turn between two batches.
    """
    from slotlake.infra.cli.run import limits_of, listener_of
    from slotlake.infra.source.bell import Bell
    from slotlake.infra.sync.loop import run_line, stopped_by_signals

    limits, bell = limits_of(for_, until_lsn, interval, retry_for), Bell()
    with stopped_by_signals(bell), open_pipeline(pipeline) as opened:
        report = opened.run(limits, bell=bell, listener=listener_of(as_json))
        typer.echo(run_line(report), err=True)


@commands.command(rich_help_panel=WORK)
def pull(
    pipeline: PipelineArgument,
    as_json: JsonOption = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="Stay connected, and write the batches for all later runs of the pipeline."
        ),
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop the process that was started with --follow.")
    ] = False,
) -> None:
    """Run only the first step of sync: write the next batch of the change log. Apply and confirm nothing.

    With --follow, one connection serves all later runs. If a transaction stays open during many
    micro-batches, the server then sends it only once, and slotlake decodes it only once.
    """
    with open_pipeline(pipeline) as opened:
        if follow or stop:
            _follow(opened, stop)
            return
        with progress_shown(as_json) as progress:
            report = opened.pull(progress=progress)
    show(report, as_json, texts.pull_text)


def _follow(pipeline: Any, stop: bool) -> None:
    from slotlake.infra.source import standing_puller

    if stop:
        ended = standing_puller.stop(pipeline.file)
        typer.echo(
            "the standing puller has stopped" if ended else f"no standing puller serves {pipeline.name!r}",
            err=True,
        )
        return
    with standing_puller.ended_by_signals():
        standing_puller.serve(pipeline, lambda line: typer.echo(line, err=True))


@commands.command(rich_help_panel=WORK)
def verify(  # noqa: PLR0913, PLR0917 - each is an option
    pipeline: PipelineArgument,
    as_json: JsonOption = False,
    table: Annotated[
        list[str] | None,
        typer.Option(help="Only this table, in PostgreSQL's form: public.orders. You can repeat the option."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Compare all rows. This is the default.")] = False,
    changed: Annotated[
        bool,
        typer.Option(
            "--changed", help="Compare the rows that changed since their table was last found equal."
        ),
    ] = False,
    rolling: Annotated[
        bool,
        typer.Option("--rolling", help="Compare the slices whose turn it is (verify.full_within)."),
    ] = False,
    source_load: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=1.0,
            help="Share of one core of the source that the comparison may take. Default: no limit.",
        ),
    ] = None,
    connections: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            help="Connections that read the source at once. Default: verify.connections, else the cores, "
            "2 to 4; with --source-load 1.",
        ),
    ] = None,
    slot_timeout: Annotated[
        float,
        typer.Option(help="Seconds to wait for the end of the transactions that are open at the start."),
    ] = 60.0,
) -> None:
    """Compare the lake with the source at an exact LSN. If they differ: print the keys and exit with 1.

    When all rows are compared, your own suites are checked too (docs/verify.md).

    The syncs continue: only the step that brings the lake to the LSN takes its turn between them.
    """
    scope = scope_of(full=full, changed=changed, rolling=rolling)
    with open_pipeline(pipeline) as opened, progress_shown(as_json) as progress:
        report = opened.verify(
            scope,
            table or (),
            source_load=source_load,
            connections=connections,
            progress=progress,
            slot_timeout_seconds=slot_timeout,
        )
    show(report, as_json, texts.verify_text)
    if not report.success:
        raise typer.Exit(1)
