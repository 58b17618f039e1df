"""How long work reports its progress, and in which words."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol, Self

LINE_SECONDS = 10.0


class Progressing(Protocol):
    """Called with a step's name, how much of it is done, and the total; None if the total is unknown."""

    def __call__(self, step: str, done: int, total: int | None = None) -> None: ...


def silent(step: str, done: int, total: int | None = None) -> None:
    """Report nothing."""


class CopyStep(str):  # noqa: SLOT000 - it has a dict: one step a table
    """The name of a step that also has the state of a table, how much is copied, and how fast.

    Two steps of one table are equal whatever else they have: a display shows them in one place.

    Attributes:
        state: as `infra.copy.states` has them.
        received_bytes: of the COPY.
        rate: rows per second so far; 0 before the first.
    """

    state: str
    received_bytes: int
    rate: float

    @classmethod
    def of(cls, table: str, state: str, received_bytes: int, rows: int, seconds: float) -> Self:
        """Describe how far a table is.

        Args:
            table: the table, as PostgreSQL writes it.
            state: as `infra.copy.states` has them.
            received_bytes: of the COPY, also by earlier attempts.
            rows: how many rows this process has copied.
            seconds: for how long it has copied.
        """
        step = cls(f"copy {table}: rows")
        step.state, step.received_bytes = state, received_bytes
        step.rate = rows / seconds if seconds > 0 else 0.0
        return step

    @property
    def table(self) -> str:
        """The table, as SQL takes it."""
        return self.removeprefix("copy ").removesuffix(": rows")

    def left_seconds(self, done: int, total: int | None) -> float | None:
        """How many seconds it will still take; None if that is not known."""
        if self.state != "copying" or total is None or not self.rate:
            return None
        return max(0, total - done) / self.rate

    def detail(self, done: int, total: int | None) -> str:
        """What is printed next to a bar: state, bytes, rate and time left."""
        parts = [self.state]
        if self.received_bytes:
            parts.append(f"{self.received_bytes / 1e6:,.1f} MB")
        if self.state == "copying" and self.rate:
            parts.append(f"{self.rate:,.0f} rows/s")
        left = self.left_seconds(done, total)
        if left is not None:
            parts.append(f"{int(left) // 60}:{int(left) % 60:02d} left")
        return ", ".join(parts)

    def line(self, done: int, total: int | None) -> str:
        """The step as a line of a log."""
        of = f" of about {total:,}" if total is not None and total != done else ""
        return f"copy {self.table}: {done:,}{of} rows, {self.detail(done, total)}"


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


def conflict_counts(counts: Mapping[str, int]) -> str:
    """Return the number of conflicts per kind on one line."""
    return ", ".join(f"{kind} {count:,}" for kind, count in counts.items())


def counted(number: int, what: str) -> str:
    """Return a number of things in words, as ``1 transaction``, ``2,000 transactions``."""
    ending = "" if number == 1 else "es" if what.endswith("ch") else "s"
    return f"{number:,} {what}{ending}"


def brought(transactions: int, changes: int) -> str:
    """Return what came from the source, as ``1 transaction, 12 changes``."""
    return f"{counted(transactions, 'transaction')}, {counted(changes, 'change')}"
