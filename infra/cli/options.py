"""What the files of commands share: their common options, the panels of the help, the open pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from slotlake.decoder.errors import PipelineFileError

PipelineArgument = Annotated[Path, typer.Argument(metavar="PIPELINE.yaml", help="The pipeline file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document, for machines.")]
START = "Start here"
WORK = "Run a pipeline"
LOOK = "Look"
CARE = "Repair and remove"
DEVELOP = "Develop slotlake"


def pipeline_and_tables(arguments: list[str]) -> tuple[Path, list[str]]:
    """The pipeline file, which is named first or last, and the tables.

    Raises:
        PipelineFileError: no file is named, or no table.
    """
    places = [i for i in (0, len(arguments) - 1) if arguments[i].lower().endswith((".yaml", ".yml"))]
    place = places[0] if places else 0
    tables = [each for i, each in enumerate(arguments) if i != place]
    if not tables:
        raise PipelineFileError(
            "a pipeline file and a table are to be named",
            where=f"resume {' '.join(arguments)}",
            way_out="slotlake resume PIPELINE.yaml public.orders (status says which tables are set aside)",
        )
    return Path(arguments[place]), tables


def open_pipeline(path: Path) -> Any:
    """The pipeline of that file; Spark and the source are not touched yet."""
    from slotlake.infra.pipeline import Pipeline

    return Pipeline.open(path)
