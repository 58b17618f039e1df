"""`slotlake new`: from a connection string to a checked pipeline file, by questions or by options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slotlake.infra.cli.options import START

commands = typer.Typer()


@commands.command(rich_help_panel=START)
def new(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="PIPELINE.yaml", help="The file to write. Default: NAME.yaml, here."),
    ] = None,
    dsn: Annotated[
        str | None,
        typer.Option(help="Source: env:NAME (the variable has it; best), postgresql://…, airflow:CONN_ID."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the pipeline. Default: that of the file, or of the database.")
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option(help="Table name or pattern: public.orders, 'shop.*'. You can repeat it. Default: all."),
    ] = None,
    lake: Annotated[
        str | None,
        typer.Option(help="Where the lake's files go: a folder, s3://bucket/prefix. Default: lake."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over a file that is there.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Ask nothing: what no option says gets its default.")
    ] = False,
) -> None:
    """Write a pipeline file for a database: look at the server, choose tables, check the file.

    At a terminal it asks for what no option says. It changes nothing at the source, prints what the server
    lacks with the statements to run, and the commands that come next. The exit code is 1 if the file needs
    something that is not there yet, as of `validate`.
    """
    from slotlake.infra.cli.making import New, Questions
    from slotlake.infra.config.secrets import given_dsn
    from slotlake.infra.making import require_absent

    source = None if dsn is None else given_dsn(dsn)
    needed = {"--dsn": source, "--name": name or file, "--tables": tables, "--lake": lake}
    questions = Questions.checked(yes, needed)
    if file is not None:
        require_absent(file, overwrite)
    if not New(questions, file, overwrite).write(source, name, tables, lake):
        raise typer.Exit(1)
