"""How far the copy of a table is, in words that a bar, a line and a log share."""

from __future__ import annotations

from typing import Self


class CopyStep(str):  # noqa: SLOT000 - it has a dict: one step a table
    """A step's name that knows more: the state a table is in, what has come of it and how fast.

    Two steps of one table are equal whatever else they know: a display shows them in one place.

    Attributes:
        state: as `infra.copy.states` has them.
        received_bytes: of the COPY.
        rate: rows a second so far; 0 before the first.
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
        """As SQL takes it."""
        return self.removeprefix("copy ").removesuffix(": rows")

    def left_seconds(self, done: int, total: int | None) -> float | None:
        """How long it will still take, if that can be told."""
        if self.state != "copying" or total is None or not self.rate:
            return None
        return max(0, total - done) / self.rate

    def detail(self, done: int, total: int | None) -> str:
        """What stands beside a bar: state, bytes, rate and time left."""
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
        """As a line of a log."""
        of = f" of about {total:,}" if total is not None and total != done else ""
        return f"copy {self.table}: {done:,}{of} rows, {self.detail(done, total)}"
