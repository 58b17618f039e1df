"""Progress for people: moving bars on a terminal, plain lines elsewhere; always on standard error."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from slotlake.infra.copy.states import CopyStep
from slotlake.infra.progress import Progressing, silent
from slotlake.infra.state.json_log import is_json

LINE_SECONDS = 10.0
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


def progress_lines(write_line: Callable[[str], None], every_seconds: float = LINE_SECONDS) -> Progressing:
    """Return a function that reports progress as lines.

    A step gives one line. The copy of a table gives a line when its state changes, and one at each interval.

    Args:
        write_line: writes one line, for example to a log.
        every_seconds: the interval between two lines of a copy that goes on.
    """
    last_lines: dict[str, tuple[str, float]] = {}

    def report(step: str, done: int, total: int | None = None) -> None:
        state, now = step.state if isinstance(step, CopyStep) else "", time.monotonic()
        last = last_lines.get(step)
        if last is None or last[0] != state or (state and now - last[1] >= every_seconds):
            last_lines[step] = state, now
            write_line(step.line(done, total) if isinstance(step, CopyStep) else step)

    return report


def _write_line(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
