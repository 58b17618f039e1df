"""What all commands share: common options, the panels of the help, and how to open the pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotlake.decoder.errors import PipelineFileError

if TYPE_CHECKING:
    from slotlake.infra.pipeline import Pipeline

PipelineArgument = Annotated[Path, typer.Argument(metavar="PIPELINE.yaml", help="The pipeline file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document for programs.")]
WaitOption = Annotated[float, typer.Option(help="Seconds to wait while another run works.")]
TablesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TABLE…]", help="Only these tables, in PostgreSQL's form: public.orders. Default: all."
    ),
]
NamedArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="TABLE…", help="Table names in PostgreSQL's form: public.orders."),
]
PatternArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="TABLE…", help="Table names in PostgreSQL's form, or patterns: 'shop.*'."),
]
TableOption = Annotated[list[str] | None, typer.Option("--table", help="The same, as an option.")]
START = "Start here"
WORK = "Run a pipeline"
LOOK = "Look, without changes"
CARE = "Repair and remove"
DEVELOP = "Develop slotlake"


def pipeline_and_tables(arguments: list[str]) -> tuple[Path, list[str]]:
    """Return the pipeline file, which is the first or the last argument, and the names of the tables.

    Raises:
        PipelineFileError: the arguments hold no table.
    """
    file_indexes = [i for i in (0, len(arguments) - 1) if arguments[i].lower().endswith((".yaml", ".yml"))]
    file_index = file_indexes[0] if file_indexes else 0
    tables = [argument for i, argument in enumerate(arguments) if i != file_index]
    if not tables:
        raise PipelineFileError(
            "the command needs a pipeline file and at least one table",
            where=f"resume {' '.join(arguments)}",
            way_out="slotlake resume PIPELINE.yaml public.orders (`status` lists the tables set aside)",
        )
    return Path(arguments[file_index]), tables


def named(tables: list[str] | None, table: list[str] | None) -> list[str]:
    """Return the tables that arguments and options name.

    Raises:
        typer.BadParameter: there is none.
    """
    names = [*(tables or ()), *(table or ())]
    if not names:
        raise typer.BadParameter("name at least one table, as public.orders")
    return names


def scope_of(**choices: bool) -> str:
    """Return the scope of a verification that the options choose; ``full`` if they choose none.

    Raises:
        PipelineFileError: they choose several.
    """
    chosen = [name for name, is_chosen in choices.items() if is_chosen]
    if len(chosen) > 1:
        raise PipelineFileError(
            "a verification has one scope",
            where=" ".join(f"--{name}" for name in chosen),
            way_out="give one of these options, or run the command once for each",
        )
    return chosen[0] if chosen else "full"


def open_pipeline(path: Path) -> Pipeline:
    """Open the pipeline of that file; this does not start Spark and does not connect to the source."""
    from slotlake.infra.pipeline import Pipeline

    return Pipeline.open(path)
