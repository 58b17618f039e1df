"""A note of a pipeline in its state folder: one JSON value in one file, complete or missing.

With ``state.path`` in an object store, the notes are not on this machine at all: `share` says so for a
folder, and what is asked of a note in it is asked of the store (`infra.archive.state`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol


@dataclass(frozen=True)
class NoteSeen:
    """A note as an object store lists it.

    Attributes:
        version: another one for another content.
        modified: when it was written, by the store's clock, in seconds since 1970.
    """

    version: str
    modified: float


class FreeNotes(Protocol):
    """Notes of a shared state that any machine may write, without the pipeline's lock."""

    @property
    def away(self) -> bool:
        """Whether the store did not answer this process when it was last asked for the state."""

    def listed(self) -> dict[str, NoteSeen]:
        """Return all notes of the state that are there now."""

    def known(self) -> Collection[str]:
        """Return the names that were there when this process last listed them, without a request."""

    def read(self, name: str) -> bytes | None:
        """Return a note's content as it is now; None without it."""

    def replace(self, name: str, content: bytes) -> None:
        """Write a note, whether it is there or not."""

    def write_new(self, name: str, content: bytes) -> bool:
        """Write a note that is not there yet; False: it is."""

    def remove(self, names: Sequence[str]) -> None:
        """Remove notes; missing ones are fine."""


class SharedState(Protocol):
    """State of a pipeline that several machines share; names are paths within the state folder."""

    @property
    def free(self) -> FreeNotes:
        """The notes that need no lock."""

    def read(self, name: str) -> bytes | None:
        """Return a note's content; None without it."""

    def write(self, name: str, content: bytes) -> None:
        """Replace a note; when this returns, a crash of this machine cannot take it away."""

    def remove(self, name: str) -> None:
        """Remove a note, if there is one."""

    def append(self, name: str, line: bytes) -> None:
        """Add a line to a log."""

    def lines(self, name: str) -> bytes:
        """Return all lines of a log."""

    def remove_folder(self, name: str) -> None:
        """Remove the notes and logs of a folder."""

    def write_once(self, name: str, content: bytes) -> bool:
        """Write a note that no machine has written yet, without the pipeline's lock; False: it is there."""

    def names(self, folder: str) -> list[str]:
        """Return the names of the notes in a folder, as they are now."""

    def read_several(self, names: Sequence[str]) -> list[bytes]:
        """Return the contents of notes that are there, in this order."""

    def read_now(self, name: str) -> bytes | None:
        """Return a note's content as it is now; None without it."""


# Folders of a state folder that are no notes of all machines (`infra.journal.shared` writes the journal's).
OF_A_MACHINE: Final = ("changelog", "journal")
_shared: dict[Path, SharedState] = {}


def share(folder: Path, state: SharedState | None) -> None:
    """Say where what is noted in a folder lies.

    Args:
        folder: a pipeline's state folder.
        state: where its notes are; None: in the folder.
    """
    if state is None:
        _shared.pop(folder, None)
    else:
        _shared[folder] = state


def shared_place(path: Path) -> tuple[SharedState, str] | None:
    """Return where a path of a state folder really is, and its name there; None if it is a file here.

    Args:
        path: of a note, a log or a folder with some.
    """
    for folder in path.parents:
        if folder in _shared:
            name = path.relative_to(folder)
            return None if name.parts[0] in OF_A_MACHINE else (_shared[folder], name.as_posix())
    return None


def free_notes(folder: Path) -> FreeNotes | None:
    """Return the notes of a state folder that need no lock; None if they are files of that folder.

    Args:
        folder: a pipeline's state folder.
    """
    state = _shared.get(folder)
    return None if state is None else state.free


class StateFile:
    """One note. A missing or damaged note is read as None: slotlake can find the content again.

    Args:
        path: the file; its folder is made by the first `write`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Any:
        """Return the value; None without a note.

        Raises:
            LakeError: the object store that has the notes does not answer.
        """
        try:
            content = self._content()
            return None if content is None else json.loads(content)
        except ValueError:
            return None

    def mapping(self) -> dict[str, Any]:
        """Return the value if it is a JSON object, else an empty dictionary."""
        value = self.read()
        return value if isinstance(value, dict) else {}

    def exists(self) -> bool:
        """Return whether there is such a note, whatever it says."""
        return self._content() is not None

    def write(self, value: object, *, durable: bool = False) -> None:
        """Replace the note.

        Args:
            value: a value that JSON can hold.
            durable: sync it to the disk, so that it survives a crash of the machine.

        Raises:
            OSError: it cannot be written; the earlier note stays.
        """
        content = json.dumps(value).encode()
        if (place := shared_place(self.path)) is not None:
            place[0].write(place[1], content)
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        incoming = self.path.with_name(f"{self.path.name}.{os.uname().nodename}-{os.getpid()}")
        with incoming.open("wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        incoming.replace(self.path)
        if durable:
            from slotlake.decoder.changelog.writer import sync_path  # here: Airflow's forms only read notes

            sync_path(self.path.parent)

    def remove(self) -> None:
        """Remove the note, if there is one."""
        if (place := shared_place(self.path)) is not None:
            place[0].remove(place[1])
        else:
            self.path.unlink(missing_ok=True)

    def _content(self) -> bytes | None:
        if (place := shared_place(self.path)) is not None:
            return place[0].read(place[1])
        try:
            return self.path.read_bytes()
        except OSError:
            return None
