"""A note of a pipeline in its state folder: one JSON value in one file, complete or missing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class StateFile:
    """One note. A missing or damaged note is read as None: slotlake can find the content again.

    Args:
        path: the file; its folder is made by the first `write`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Any:
        """Return the value; None without a note."""
        try:
            return json.loads(self.path.read_text())
        except (OSError, ValueError):
            return None

    def mapping(self) -> dict[str, Any]:
        """Return the value if it is a JSON object, else an empty dictionary."""
        value = self.read()
        return value if isinstance(value, dict) else {}

    def write(self, value: object, *, durable: bool = False) -> None:
        """Replace the note.

        Args:
            value: a value that JSON can hold.
            durable: sync it to the disk, so that it survives a crash of the machine.

        Raises:
            OSError: it cannot be written; the earlier note stays.
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
            from slotlake.decoder.changelog.writer import sync_path  # here: Airflow's forms only read notes

            sync_path(self.path.parent)

    def remove(self) -> None:
        """Remove the note, if there is one."""
        self.path.unlink(missing_ok=True)
