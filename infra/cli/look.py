"""Commands that look and change nothing (but decode --consume): validate, status, notify, query, shell."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from slotlake.decoder.errors import LakeError, SlotError, SourceError
from slotlake.infra.cli.interrupts import handled_here
from slotlake.infra.cli.options import LOOK, JsonOption, PipelineArgument, open_pipeline
from slotlake.infra.cli.output import print_csv, show, show_rows
from slotlake.infra.cli.texts import look as texts

commands = typer.Typer()


@commands.command(rich_help_panel=LOOK)
def validate(pipeline: PipelineArgument, as_json: JsonOption = False) -> None:
    """Check the pipeline file, the source, the lake and this machine. It changes nothing.

    Each check prints one line: ok, warning or error, and what to do. init and sync make the same checks.
    The exit code is 1 if there is an error.
    """
    from slotlake.infra.status.validation import validate

    report = validate(pipeline)
    show(report, as_json, texts.validation_text)
    if not report.valid:
        raise typer.Exit(1)


@commands.command(rich_help_panel=LOOK)
def status(
    pipeline: PipelineArgument,
    types: Annotated[
        bool, typer.Option("--types", help="Show the lake's type of each column instead.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 12 if there is an alarm (docs/operations.md).")
    ] = False,
    all_facts: Annotated[
        bool, typer.Option("--all", help="Show also the slot, all times, all tables and all warnings.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show whether all is well, how far the lake is behind, and what to do; the rest with --all."""
    with open_pipeline(pipeline) as opened:
        if types:
            show(opened.types(), as_json, texts.types_text)
            return
        report = opened.status()
    show(report, as_json, partial(texts.status_text, file=str(pipeline), all_facts=all_facts))
    if report.state == _NO_LAKE:
        raise typer.Exit(LakeError.exit_code)
    if check:
        raise typer.Exit(_CODES.get(report.state, 0) or (ATTENTION if report.alarms else 0))


# A monitor outside of Airflow uses --check. A pipeline that cannot continue has the exit code of its error.
ATTENTION = 12
_NO_LAKE = "lake unreachable"  # an error also without --check, because half of the report is missing
_CODES = {
    "source unreachable": SourceError.exit_code,
    "slot missing": SlotError.exit_code,
    "slot lost": SlotError.exit_code,
    "not initialised": LakeError.exit_code,
    "copying": LakeError.exit_code,
    "initial copy unfinished": LakeError.exit_code,
}


@commands.command(rich_help_panel=LOOK)
def notify(
    pipeline: PipelineArgument,
    test: Annotated[
        bool, typer.Option("--test", help="Send each receiver a message that says that this is a test.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Look once, and tell the receivers of the pipeline file what is new, over, or lasts (docs/notify.md).

    Nobody hears twice of the same thing, unless it lasts long: so run it as often as you like. The exit code
    is 1 if a receiver did not take its message.
    """
    with open_pipeline(pipeline) as opened:
        report = opened.tell(test=test)
    show(report, as_json, texts.notify_text)
    if any(report.receivers.values()):
        raise typer.Exit(1)


AtOption = Annotated[
    str, typer.Option(help="An LSN, a time ('2024-05-01 12:00:00+00'; without a zone: UTC), or 'latest'.")
]
EngineOption = Annotated[
    str,
    typer.Option(
        help="What runs the queries: duckdb (starts at once), spark (Spark SQL), or auto: duckdb where it "
        "can read the lake."
    ),
]


@commands.command(rich_help_panel=LOOK)
def query(
    pipeline: PipelineArgument,
    sql: Annotated[str, typer.Argument(metavar='"SELECT …"', help="A query on the lake's tables.")],
    at: AtOption = "latest",
    engine: EngineOption = "auto",
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, as PostgreSQL's COPY writes it.")] = False,
) -> None:
    """Query the lake. The query sees all tables at one position of the source."""
    if as_csv and as_json:
        raise typer.BadParameter("choose one of --csv and --json")
    with open_pipeline(pipeline) as opened:
        result = opened.pinned_queries(at, engine=engine, report_line=_report_line).ask(sql)
    if as_csv:
        print_csv(result)
    else:
        show_rows(result, as_json)


@commands.command(rich_help_panel=LOOK)
def shell(
    pipeline: PipelineArgument,
    at: AtOption = "latest",
    engine: EngineOption = "auto",
    as_json: JsonOption = False,
) -> None:
    r"""Ask many queries, typed or from a pipe. They all see the lake at the same position of the source.

    A query ends with a semicolon. \d lists the tables, \point shows or changes the position, \? helps.
    """
    from slotlake.infra.cli.shell import Shell

    with open_pipeline(pipeline) as opened:
        queries = opened.pinned_queries(at, engine=engine, report_line=_report_line)
        with handled_here():
            exit_code = Shell(queries, as_json=as_json).run(opened.file.state_dir / "shell_history")
    if exit_code:
        raise typer.Exit(exit_code)


def _report_line(line: str) -> None:
    sys.stderr.write(f"slotlake: {line}\n")


@commands.command(rich_help_panel=LOOK)
def decode(  # noqa: PLR0913, PLR0917 - one argument an option
    dsn: Annotated[
        str | None, typer.Option(help="Source: postgresql://…, or env:NAME for a variable.")
    ] = None,
    slot: Annotated[str | None, typer.Option(help="The slot to read. Its position does not move.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="Read this recording (from --record) instead of a slot.")
    ] = None,
    publication: Annotated[
        list[str] | None, typer.Option(help="Publication to read; you can repeat the option. Default: all.")
    ] = None,
    plugin: Annotated[
        str, typer.Option(help="The slot's output plugin: pgoutput, test_decoding, wal2json, decoderbufs.")
    ] = "pgoutput",
    option: Annotated[
        list[str] | None, typer.Option(help="Option of the plugin, as name=value; you can repeat it.")
    ] = None,
    record: Annotated[Path | None, typer.Option(help="Also write the raw messages to this file.")] = None,
    consumer: Annotated[
        str | None,
        typer.Option(help="Pass the changes to this Python class, module:Class (docs/plugins.md)."),
    ] = None,
    consume: Annotated[
        bool, typer.Option("--consume", help="At the end, move the slot past the changes that were printed.")
    ] = False,
) -> None:
    """Print the pending changes of a slot as JSON lines. The slot keeps them, except with --consume."""
    from slotlake.infra.cli.decode import DecodeArguments, decoded_lines
    from slotlake.infra.config.secrets import run_without_password

    if dsn is not None:
        run_without_password(dsn)
    publications, options = tuple(publication or ()), tuple(option or ())
    arguments = DecodeArguments(dsn, slot, file, publications, plugin, options, record, consumer, consume)
    for line in decoded_lines(arguments):
        sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
