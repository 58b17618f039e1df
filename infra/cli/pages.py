"""Commands that show what is known of pipelines to machines and people: metrics, report, top."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotlake import VERSION
from slotlake.decoder.errors import LakeError, PipelineFileError
from slotlake.infra.cli.options import LOOK, PipelineArgument, open_pipeline
from slotlake.infra.config.whole_file import write_whole

if TYPE_CHECKING:
    from rich.console import RenderableType

    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.health.model import Health

commands = typer.Typer()
_PIPE_WIDTH = 120  # a file or a pipe has none of its own
PipelinesArgument = Annotated[list[Path], typer.Argument(metavar="PIPELINE.yaml…", help="Pipeline files.")]


@commands.command(rich_help_panel=LOOK)
def metrics(
    pipeline: PipelineArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="Write this file, whole, instead (node_exporter's textfile collector)."
        ),
    ] = None,
) -> None:
    """Print the pipeline's numbers for Prometheus: lag, WAL, batches, step times, verification, tables.

    It works when the source cannot be reached, and says so (slotlake_source_reachable 0).
    """
    from slotlake.infra.health.metrics import metrics_text

    health = _looked_at(pipeline)
    text = metrics_text([health], VERSION)
    if output is None:
        sys.stdout.write(text)
    else:
        write_whole(output, text, "-o")
    _exit_as_status([health])


@commands.command(rich_help_panel=LOOK)
def report(
    pipelines: PipelinesArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file to write, whole.")],
    show_keys: Annotated[
        bool, typer.Option("--show-keys", help="Show the keys of rows that differed at a verification.")
    ] = False,
) -> None:
    """Write one HTML file about pipelines: lag, batches, WAL, tables, points, verifications, repairs.

    The file needs no network and no script. It has no row values, and keys only with --show-keys.
    """
    from slotlake.infra.health.html import Links, document

    files = _files(pipelines)
    known = [_looked_at(file.path) for file in files]
    links = Links(data_docs=_data_docs)
    fleet = known if len(known) > 1 else []
    text = document(
        fleet, list(zip(known, files, strict=True)), version=VERSION, links=links, show_keys=show_keys
    )
    write_whole(output, text, "-o")
    _exit_as_status(known)


@commands.command(rich_help_panel=LOOK)
def top(
    pipelines: PipelinesArgument,
    once: Annotated[bool, typer.Option("--once", help="Print it once and end, as for a pipe.")] = False,
    interval: Annotated[float, typer.Option(min=1.0, help="Seconds between two looks.")] = 5.0,
) -> None:
    """Show pipelines live in the terminal: lag, WAL, batches, verification, alarms; Ctrl-C ends it."""
    from rich.console import Console
    from rich.live import Live

    files = _files(pipelines)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    if once or not console.is_terminal:
        known = [_looked_at(file.path) for file in files]
        console.print(_screen(known, console.width))
        _exit_as_status(known)
        return
    with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            known = [_looked_at(file.path) for file in files]
            live.update(_screen(known, console.width), refresh=True)
            time.sleep(interval)


def _screen(known: list[Health], width: int) -> RenderableType:
    from slotlake.infra.cli.texts.top import screen
    from slotlake.infra.health.model import all_series

    return screen(known, {health.name: all_series(health)["hour"] for health in known}, width)


def _files(paths: list[Path]) -> list[PipelineFile]:
    """Read the pipeline files.

    Raises:
        PipelineFileError: one of them is wrong, or two have the same name.
    """
    from slotlake.infra.config.pipeline_file import load_pipeline

    files: dict[str, PipelineFile] = {}
    for path in paths:
        file = load_pipeline(path)
        if file.name in files:
            raise PipelineFileError(
                f"the pipeline {file.name!r} is named twice",
                where=f"{files[file.name].path}, {file.path}",
                way_out="name each pipeline once; two pipelines need two names",
            )
        files[file.name] = file
    return list(files.values())


def _data_docs(file: PipelineFile) -> str | None:
    from slotlake.infra.health.data_docs import data_docs

    index = data_docs(file)
    return None if index is None else index.resolve().as_uri()


def _looked_at(file: Path) -> Health:
    """Look at a pipeline, and return all that is known of it."""
    from slotlake.infra.health.model import health_of

    with open_pipeline(file) as opened:
        seen = opened.look()
        return replace(health_of(opened.file), seen=seen)


def _exit_as_status(pipelines: list[Health]) -> None:
    """End as `slotlake status` does: an error only if a lake cannot be reached."""
    if any(health.state == "lake unreachable" for health in pipelines):
        raise typer.Exit(LakeError.exit_code)
