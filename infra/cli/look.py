"""Commands that look and change nothing (decode only if asked): validate, status, query, decode."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from slotlake.decoder.errors import LakeError, SlotError, SourceError
from slotlake.infra.cli import output
from slotlake.infra.cli.options import LOOK, JsonOption, PipelineArgument, open_pipeline

commands = typer.Typer()


@commands.command(rich_help_panel=LOOK)
def validate(pipeline: PipelineArgument, as_json: JsonOption = False) -> None:
    """Check the pipeline file, the source, the lake and this machine; change nothing. Exit code 1: an error.

    One line per check: ok, warning or error, with what to do. The checks are those that init and sync make.
    """
    from slotlake.infra.cli.output_validation import validation_text
    from slotlake.infra.status.validation import validate

    report = validate(pipeline)
    output.show(report, as_json, validation_text)
    if not report.valid:
        raise typer.Exit(1)


@commands.command(rich_help_panel=LOOK)
def status(
    pipeline: PipelineArgument,
    types: Annotated[bool, typer.Option("--types", help="What became of each column's type.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 12 if something needs attention (docs/operations.md).")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Lag, retained WAL, what holds it back and what is ahead, the tables, the last consistent LSN."""
    with open_pipeline(pipeline) as opened:
        report = opened.types() if types else opened.status()
    output.show(report, as_json, output.types_text if types else output.status_text)
    if not types and report.state == _NO_LAKE:
        raise typer.Exit(LakeError.exit_code)
    if check and not types:
        raise typer.Exit(_CODES.get(report.state, 0) or (ATTENTION if report.alarms else 0))


# A monitor outside of Airflow asks with --check; what cannot go on has its error's own code.
ATTENTION = 12
_NO_LAKE = "lake unreachable"  # an error also without --check: half of what was asked for is missing
_CODES = {
    "source unreachable": SourceError.exit_code,
    "slot missing": SlotError.exit_code,
    "slot lost": SlotError.exit_code,
    "not initialised": LakeError.exit_code,
    "copying": LakeError.exit_code,
    "initial copy unfinished": LakeError.exit_code,
}


@commands.command(rich_help_panel=LOOK)
def query(
    pipeline: PipelineArgument,
    sql: Annotated[str, typer.Argument(metavar='"SELECT …"', help="Spark SQL over the lake's tables.")],
    at: Annotated[
        str, typer.Option(help="An LSN, a time ('2024-05-01 12:00:00+00'; UTC without a zone), or 'latest'.")
    ] = "latest",
    as_json: JsonOption = False,
) -> None:
    """Query the lake; all tables are read at one position of the source."""
    with open_pipeline(pipeline) as opened:
        result = opened.query(sql, at=at)
    output.show_rows(result, as_json)


@commands.command(rich_help_panel=LOOK)
def decode(  # noqa: PLR0913, PLR0917 - one argument an option
    dsn: Annotated[str | None, typer.Option(help="postgresql://…, or env:NAME.")] = None,
    slot: Annotated[str | None, typer.Option(help="The slot to read; its position is not moved.")] = None,
    file: Annotated[Path | None, typer.Option(help="Read this recording instead of a slot.")] = None,
    publication: Annotated[
        list[str] | None, typer.Option(help="Publications to read; may be repeated. Default: all.")
    ] = None,
    plugin: Annotated[
        str, typer.Option(help="The slot's output plugin: pgoutput, test_decoding, wal2json, decoderbufs.")
    ] = "pgoutput",
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the plugin, name=value; may be repeated.")
    ] = None,
    record: Annotated[Path | None, typer.Option(help="Also write the raw messages to this file.")] = None,
    consumer: Annotated[
        str | None, typer.Option(help="Give the changes to module:Class, see docs/plugins.md.")
    ] = None,
    consume: Annotated[
        bool, typer.Option("--consume", help="Move the slot on behind what was shown.")
    ] = False,
) -> None:
    """Print a slot's pending changes as JSON lines, without consuming them."""
    from slotlake.infra.cli.decode import Wanted, lines
    from slotlake.infra.config.secrets import run_without_password

    if dsn is not None:
        run_without_password(dsn)
    publications, options = tuple(publication or ()), tuple(option or ())
    for line in lines(Wanted(dsn, slot, file, publications, plugin, options, record, consumer, consume)):
        sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
