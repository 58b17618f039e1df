"""What the files of commands share: their common options, the panels of the help, the open pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

PipelineArgument = Annotated[Path, typer.Argument(metavar="PIPELINE.yaml", help="The pipeline file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document, for machines.")]
START = "Start here"
WORK = "Run a pipeline"
LOOK = "Look"
CARE = "Repair and remove"
DEVELOP = "Develop slotlake"


def open_pipeline(path: Path) -> Any:
    """The pipeline of that file; Spark and the source are not touched yet."""
    from infra.pipeline import Pipeline

    return Pipeline.open(path)
