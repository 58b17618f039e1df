"""`slotlake resume` of several tables: a table that cannot be resumed yet does not stop the others."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console

from slotlake.decoder.errors import PipelineFileError, SlotlakeError
from slotlake.infra.cli.output import print_json
from slotlake.infra.cli.texts.care import resume_text

if TYPE_CHECKING:
    from slotlake.infra.pipeline import Pipeline
    from slotlake.infra.progress import Progressing
    from slotlake.infra.reports import ResumeReport


def resume_tables(
    opened: Pipeline, tables: Sequence[str], progress: Progressing
) -> tuple[list[ResumeReport], dict[str, SlotlakeError]]:
    """Resume one table after the other.

    Args:
        tables: names as PostgreSQL writes them; a name may come twice.
        progress: is called while rows are copied.

    Returns:
        The reports of the resumed tables, and the error of each table that stays set aside. An error that
        concerns the whole pipeline ends the work: the tables after it are in neither.
    """
    reports: list[ResumeReport] = []
    refusals: dict[str, SlotlakeError] = {}
    for table in dict.fromkeys(tables):
        try:
            reports.append(opened.resume(table, progress=progress))
        except SlotlakeError as error:
            refusals[table] = error
            if error.table is None and not isinstance(error, PipelineFileError):
                break
    return reports, refusals


def show_resumed(
    reports: Sequence[ResumeReport], refusals: dict[str, SlotlakeError], as_json: bool, *, one: bool
) -> None:
    """Print the reports to standard output and the errors to standard error.

    Args:
        refusals: the error by table.
        as_json: print JSON instead of text.
        one: the user named one table: its JSON is the report itself, not a list.
    """
    documents = [asdict(report) for report in reports]
    if as_json and not one:
        print_json(documents)
    elif as_json and documents:
        print_json(documents[0])
    else:
        console = Console(highlight=False)
        for report in reports:
            resume_text(report, console)
    for table, error in refusals.items():
        sys.stderr.write(f"slotlake: {table} is not resumed: {error}\n")
