"""The screen of a running demo: one line per step with its state and its time.

On a terminal, the lines change in place. Elsewhere, a line is printed when a step ends, and from time to time
while it continues.  Everything goes to standard error.  Several threads may call it.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

_SILENCE_SECONDS_MAX = 10.0


class Screen:
    """All lines; a context manager that shows them."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.moving = self.console.is_terminal
        self.started = time.monotonic()
        self.lock = threading.Lock()
        self.bar = Progress(
            SpinnerColumn(finished_text="[green]✓[/green]"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}"),
            console=self.console,
            disable=not self.moving,
        )

    def step(self, name: str) -> Step:
        """Add a line."""
        return Step(self, name, self.bar.add_task(name, total=None, text=""))

    def note(self, text: str) -> None:
        """Print a remark above the lines."""
        self.bar.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def line(self, name: str, text: str) -> None:
        """Print one line, where lines cannot change in place."""
        with self.lock:
            seconds = time.monotonic() - self.started
            self.console.print(
                f"{seconds:6.1f} s  {name:<22} {escape(text)}", highlight=False, soft_wrap=True
            )

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()


class Step:
    """One line: a step of the work, which continues until ``end``."""

    def __init__(self, screen: Screen, name: str, task: TaskID) -> None:
        self._screen = screen
        self._task = task
        self._name = name
        self._started = self._shown_at = time.monotonic()
        self.seconds = 0.0

    def show(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Show the state of the step.

        Args:
            done: how much is done; None if unknown.
            total: how much there is to do; None if unknown.
        """
        self._screen.bar.update(self._task, text=escape(text), completed=done, total=total)
        now = time.monotonic()
        if not self._screen.moving and now - self._shown_at > _SILENCE_SECONDS_MAX:
            self._shown_at = now
            self._screen.line(self._name, f"{text} …")

    def end(self, text: str) -> None:
        """End the step with its result."""
        self.seconds = time.monotonic() - self._started
        self._screen.bar.update(self._task, text=escape(text), completed=1, total=1)
        self._screen.bar.stop_task(self._task)
        if not self._screen.moving:
            self._screen.line(self._name, text)
