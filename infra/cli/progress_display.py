"""Progress for people: moving bars on a terminal, plain lines elsewhere; always on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from slotlake.infra.progress import CopyStep, Progressing, progress_lines, silent
from slotlake.infra.state.json_log import is_json

_log = logging.getLogger(__name__)


@contextmanager
def progress_shown(quiet: bool) -> Iterator[Progressing]:
    """Show progress on standard error: bars on a terminal, lines elsewhere, JSON if the log is JSON.

    Args:
        quiet: show nothing, as with --json.
    """
    if is_json():
        yield progress_lines(_log.info)
    elif quiet:
        yield silent
    elif not sys.stderr.isatty():
        yield progress_lines(_write_line)
    else:
        with _bars() as bars:
            yield _bar_updates(bars)


def _bars() -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}"),
        console=Console(stderr=True),
        transient=True,
    )


def _bar_updates(bars: Progress) -> Progressing:
    """Return a function that updates one bar per step."""
    tasks: dict[str, TaskID] = {}

    def report(step: str, done: int, total: int | None = None) -> None:
        if step not in tasks:
            tasks[step] = bars.add_task(escape(step), total=total, detail="")
        detail = escape(step.detail(done, total)) if isinstance(step, CopyStep) else ""
        bars.update(tasks[step], completed=done, total=total, detail=detail)

    return report


def _write_line(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
