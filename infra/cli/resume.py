"""`slotlake resume` of several tables: one that cannot be followed yet keeps none of the others from it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console

from slotlake.decoder.errors import PipelineFileError, SlotlakeError
from slotlake.infra.cli.output_aside import resume_text

if TYPE_CHECKING:
    from slotlake.infra.progress import Progressing
    from slotlake.infra.reports import ResumeReport


def each_resumed(
    opened: Any, tables: Sequence[str], progress: Progressing
) -> tuple[list[ResumeReport], dict[str, SlotlakeError]]:
    """What became of each table, and of those that stay set aside the error; what stops all ends it."""
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
    """Reports on standard output (of one table its report, of several a list), refusals on standard error."""
    documents = [asdict(report) for report in reports]
    if as_json and not one:
        sys.stdout.write(json.dumps(documents, ensure_ascii=False) + "\n")
    elif as_json and documents:
        sys.stdout.write(json.dumps(documents[0], ensure_ascii=False) + "\n")
    else:
        console = Console(highlight=False)
        for report in reports:
            resume_text(report, console)
    for table, error in refusals.items():
        sys.stderr.write(f"slotlake: {table} is not resumed: {error}\n")
