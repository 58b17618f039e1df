"""How much of a table is copied, in words that a progress bar, a line and a log share."""

from __future__ import annotations

from typing import Self


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
