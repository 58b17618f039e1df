"""A note of a pipeline in its state folder: one JSON value in one file, there whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from slotlake.decoder.changelog.writer import sync_path


class StateFile:
    """One note.  A note that is missing or damaged is read as None: no note holds what cannot be found again.

    Args:
        path: the file; its folder is made by the first `write`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Any:
        """The value; None without a note."""
        try:
            return json.loads(self.path.read_text())
        except (OSError, ValueError):
            return None

    def mapping(self) -> dict[str, Any]:
        """The value where it is an object; empty without a note."""
        value = self.read()
        return value if isinstance(value, dict) else {}

    def write(self, value: object, *, durable: bool = False) -> None:
        """Replace the note.

        Args:
            value: what JSON can hold.
            durable: it outlives a crash of the machine.

        Raises:
            OSError: it cannot be written; the note of before stays.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        incoming = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        with incoming.open("w") as file:
            file.write(json.dumps(value))
            if durable:
                file.flush()
                os.fsync(file.fileno())
        incoming.replace(self.path)
        if durable:
            sync_path(self.path.parent)

    def remove(self) -> None:
        """Remove the note, if there is one."""
        self.path.unlink(missing_ok=True)
