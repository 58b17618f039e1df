"""The notes of a pipeline in its state folder: each is one JSON value in one file, complete or missing.

All of them are listed here, with who writes them and what is lost with them (docs/workers.md says the same; a
test compares).  What is not listed cannot be written, and is not forgotten when a state moves.

With ``state.path`` in an object store, the notes are not on this machine at all: `share` says so for a
folder, and what is asked of a note in it is asked of the store (`infra.state.stored_state`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from slotlake.decoder.memory import Memory


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


# Folders of a state folder that are no notes of all machines (the journal's: `infra.state.shared_journal`).
OF_A_MACHINE: Final = ("changelog", "journal")


@dataclass(frozen=True)
class _Shared:
    """A state that machines share, and what this process remembers of it."""

    state: SharedState
    memory: Memory


# By state folder: whoever reads or writes a note knows its path alone.
_shared: dict[Path, _Shared] = {}


def share(folder: Path, state: SharedState | None) -> None:
    """Say where what is noted in a folder lies.

    Args:
        state: where its notes are; None: in the folder.
    """
    if state is None:
        _shared.pop(folder, None)
    else:
        before = _shared.get(folder)
        _shared[folder] = _Shared(state, Memory() if before is None else before.memory)


def shared_place(path: Path) -> tuple[SharedState, str] | None:
    """Return where a path of a state folder really is, and its name there; None if it is a file here.

    Args:
        path: of a note, a log or a folder with some.
    """
    for folder in path.parents:
        if folder in _shared:
            name = path.relative_to(folder)
            return None if name.parts[0] in OF_A_MACHINE else (_shared[folder].state, name.as_posix())
    return None


def free_notes(folder: Path) -> FreeNotes | None:
    """Return the notes of a state folder that need no lock; None if they are files of that folder."""
    shared = _shared.get(folder)
    return None if shared is None else shared.state.free


def memory_of(folder: Path) -> Memory:
    """Return what this process remembers of a shared state, however often its pipeline is opened.

    Args:
        folder: a pipeline's state folder; of one that is not shared nothing is remembered.
    """
    shared = _shared.get(folder)
    return Memory() if shared is None else shared.memory


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


@dataclass(frozen=True)
class Note:
    """A note that a pipeline may have.

    Attributes:
        name: of its file in the state folder, or in the folder of the journal.
        says: what it holds.
        by: who writes it.
        if_lost: what comes of it when it is gone.
        moves: a state that moves into an object store takes it along.
    """

    name: str
    says: str
    by: str
    if_lost: str
    moves: bool = True

    def of(self, folder: Path) -> StateFile:
        """The note in a folder: there, or where its state is shared."""
        return StateFile(folder / self.name)


MAKING: Final = Note(
    "making.json", "slot and publications that an `init` makes", "`init`", "its slot must be dropped by hand"
)
MADE: Final = Note(
    "made.json", "slot and publications that it made", "`init`, `recover`", "`drop` leaves the publications"
)
IDENTITY: Final = Note(
    "identity.json", "which lake and slot the pipeline has", "each run", "a changed key is not noticed"
)
NAMED: Final = Note(
    "named.json", "tables that the file named", "each run", "a name that left the file is not noticed"
)
REMOVING: Final = Note(
    "removing.json", "files of removed tables that are to go", "`remove`", "the files stay"
)
REMOVED: Final = Note(
    "removed.json",
    "tables that left, and when",
    "`remove`",
    "`recover` may publish them again",
)
DROPPED: Final = Note(
    "dropped.json", "how far `drop` has come", "`drop`", "a second `drop` looks for everything again"
)
RECOVERING: Final = Note(
    "recovering.json", "how far `recover` has come", "`recover`", "`recover` must be run once more"
)
RECOVER_PLAN: Final = Note(
    "recover-plan.json", "the plan that waits for approval in Airflow", "`cdc_recover`", "it is made again"
)
STOPPED: Final = Note(
    "stopped.json", "the error that stops each run", "each run", "the next run meets the error again"
)
SETTLING: Final = Note(
    "settling.json", "who wrote to joining tables before they were published", "`sync`", "they wait longer"
)
SETTLING_AGAIN: Final = Note(
    "settling-again.json", "the same of tables that are copied again", "`sync`", "they wait longer"
)
DERIVED_GONE: Final = Note(
    "derived-gone.json", "derived tables that somebody dropped", "`publish`", "nothing warns of them"
)
STAGED: Final = Note(
    "staged.json", "which tables the staged batch was applied to", "`apply`", "the batch is applied again"
)
GATE: Final = Note(
    "gate.json", "the batch that has met its gates, or was refused", "`gates`", "the gates are asked again"
)
DDL_TRIGGER: Final = Note(
    "ddl-trigger.made", "that the event trigger is ours", "`init --ddl-trigger`", "`drop` leaves it"
)
MAINTAINED: Final = Note(
    "maintained-last", "the table that waits for maintenance longest", "`maintain`", "it begins at another"
)
SHOWN: Final = Note(
    "shown.json", "up to where snapshots were judged", "`sync`", "batches are looked at once more"
)
WAL_SEEN: Final = Note(
    "wal-seen.json", "readings of the source's WAL position", "each look", "rates are known later"
)
COPY: Final = Note("copy.json", "how far a copy is", "`init`, `sync`", "`status` shows no progress")
VERIFIED: Final = Note(
    "verified.json", "when each table was last found equal", "`verify`", "it counts as never verified"
)
TABLES: Final = Note(
    "tables.json", "names for the form of `cdc_backfill`", "`init`, `sync`", "the form has no list"
)
# These begin in the store: a state that moves there has none.
OWNER: Final = Note("owner.json", "whose state it is", "each run", "the next run writes it", moves=False)
COPY_PLAN: Final = Note(
    "copying/plan.json", "what machines copy together", "`init`", "the copy begins again", moves=False
)
# A machine's own.
STORED: Final = Note(
    ".stored.json",
    "batches that are in the store already",
    "`pull`",
    "they are looked for there",
    moves=False,
)
LOOK: Final = Note("look.json", "the last look at both sides", "each look", "the next one", moves=False)
OPEN_BATCH: Final = Note(
    "open-batch.json", "the steps of the batch at work", "each step", "one line of the page", moves=False
)
TOTALS: Final = Note("totals.json", "counters of the metrics", "each batch", "they begin at 0", moves=False)
QUARTERS: Final = Note(
    "quarters.json", "sums of each quarter of an hour", "each batch", "older charts are empty", moves=False
)
NOTES: Final = tuple(each for each in list(globals().values()) if isinstance(each, Note))
