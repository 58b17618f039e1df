"""The error of a value that cannot be read; apart from the readers, which import the compiled loops."""

from __future__ import annotations


class TextError(Exception):
    """The text of one value is not what its type's output function prints.

    Attributes:
        row: index of the first such value, or -1 if unknown.
    """

    def __init__(self, reason: str, row: int = -1) -> None:
        super().__init__(reason)
        self.reason = reason
        self.row = row
