"""How long work reports its progress."""

from __future__ import annotations

from typing import Protocol


class Progressing(Protocol):
    """Called with a step's name, how much of it is done, and the total; None if the total is unknown."""

    def __call__(self, step: str, done: int, total: int | None = None) -> None: ...


def silent(step: str, done: int, total: int | None = None) -> None:
    """Report nothing."""
