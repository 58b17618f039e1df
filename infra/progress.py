"""What long work tells of itself while it runs."""

from __future__ import annotations

from typing import Protocol


class Progressing(Protocol):
    """What long work tells of itself: ``(step, done, total)``; total None when unknown."""

    def __call__(self, step: str, done: int, total: int | None = None) -> None: ...


def silent(step: str, done: int, total: int | None = None) -> None:
    """Progress that nobody watches."""
