"""The state of a pipeline in an object store: its notes, and the records of its copies.

    <state.path>/<pipeline>.state/<note>                 one JSON value
    <state.path>/<pipeline>.state/<log>/<number>         a line of a log

Nothing of it lies on a machine: each command lists the objects when it takes the pipeline's lock, and reads
those that it needs.  A line is written under the condition that no other has its number, so of two machines
that append to one log, of which one has lost its lock without knowing, the late one is refused.  A log is its
lines from number 0 on without a gap: removing line 0 removes it, whatever else a killed run leaves.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from slotlake.decoder.errors import BusyError
from slotlake.infra.state.free_notes import StoredNotes
from slotlake.infra.state.notes import NOTES
from slotlake.infra.state.own_keys import register_own
from slotlake.spark.lake import LakeSettings
from slotlake.spark.storage import stores
from slotlake.spark.storage.base import Store
from slotlake.spark.storage.location import Location

_LOGS: Final = ("copying", "joining", "recopying")
_LOG: Final = "ranges.jsonl"
_AT_ONCE: Final = 8


class StoredState:
    """The state of a pipeline in an object store; may be called from several threads.

    Args:
        root: where it is.

    Attributes:
        require_lock: called before each change; raises if the pipeline's lock was lost.
    """

    def __init__(self, root: Location) -> None:
        self.root = root
        self.require_lock: Callable[[], None] = lambda: None
        self._lock = threading.RLock()
        self._versions: dict[str, str] | None = None  # name → its version in the store
        self._contents: dict[str, tuple[str, bytes]] = {}  # name → the version that was read, and its content
        self.free = StoredNotes(root, lambda: self._versions or {})

    @classmethod
    def of(cls, lake: LakeSettings, path: str, pipeline: str) -> StoredState:
        """Return the state of a pipeline.

        Args:
            lake: has the store's endpoint and keys.
            path: a place in an object store; pipelines can share it, and a change log can be there too.
        """
        location = Location(path.rstrip("/"))
        root = Location(f"{location.bucket}/{location.key}".rstrip("/")) / f"{pipeline}.state"
        register_own(lake, root)
        return cls(root)

    def refresh(self) -> None:
        """See what other machines have noted since.

        Raises:
            LakeError: the store does not answer, or refuses.
        """
        with self._lock:
            self._versions = {
                self._name(file.location): file.version for file in self._store.files(self.root)
            }
            current = self._versions.items()
            seen = self._contents.items()
            self.free.away = False
            self._contents = {n: read for n, read in seen if read[0] and (n, read[0]) in current}

    def go_without(self) -> None:
        """Take it as empty, for who only looks: the store does not answer."""
        with self._lock:
            self._versions, self._contents = {}, {}
            self.free.away = True

    def read(self, name: str) -> bytes | None:
        """Return a note's content; None without it."""
        with self._lock:
            if name not in self._listed():
                return None
            if name not in self._contents:
                try:
                    self._contents[name] = self._fetched(name)
                except FileNotFoundError:  # removed since it was listed, by the run that has the lock
                    return None
            return self._contents[name][1]

    def write(self, name: str, content: bytes) -> None:
        """Replace a note."""
        self.require_lock()
        with self._lock, tempfile.TemporaryDirectory(prefix="slotlake-") as folder:
            file = Path(folder) / "note"
            file.write_bytes(content)
            self._store.put(file, self.root / name)
            self._listed()[name] = ""
            self._contents[name] = ("", content)

    def remove(self, name: str) -> None:
        """Remove a note, if there is one."""
        with self._lock:
            if name in self._listed():
                self.require_lock()
                self._forget([name])

    def append(self, name: str, line: bytes) -> None:
        """Add a line to a log.

        Raises:
            BusyError: another machine goes on with it; the pipeline's lock was lost meanwhile.
        """
        self.require_lock()
        with self._lock:
            number = len(self._numbered(name))
            if number == 0:  # what a killed run has left of a log that was removed is not to follow
                self._forget([each for each in self._listed() if each.startswith(f"{name}/")])
            piece = f"{name}/{number:08d}"
            try:
                version = self._store.write_new(self.root / piece, line)
            except FileExistsError:
                raise BusyError(
                    "another machine goes on with this copy: this run has lost the pipeline's lock",
                    where=str(self.root / piece),
                    way_out="run the command again when the other run has ended; nothing was published here",
                ) from None
            self._listed()[piece] = version
            self._contents[piece] = (version, line)

    def lines(self, name: str) -> bytes:
        """Return all lines of a log."""
        with self._lock:
            return b"".join(self.read_several(self._numbered(name)))

    def read_several(self, names: Sequence[str]) -> list[bytes]:
        """Return the contents of notes that are there, in this order."""
        with self._lock:
            self._listed()  # here: a thread of the pool would wait for this lock, and this thread for it
            missing = [name for name in names if name not in self._contents]
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                self._contents.update(zip(missing, pool.map(self._fetched, missing), strict=True))
            return [self._contents[name][1] for name in names]

    def remove_folder(self, name: str) -> None:
        """Remove the notes and logs of a folder."""
        with self._lock:
            if any(each.startswith(f"{name}/") for each in self._listed()):
                inside = self.names(name)
                self.require_lock()
                self._forget([each for each in inside if each.endswith("/00000000")])
                self._forget([each for each in inside if not each.endswith("/00000000")])

    def write_once(self, name: str, content: bytes) -> bool:
        """Write a note that no machine has written yet, without the pipeline's lock.

        Args:
            name: of the note, which nothing changes afterwards.

        Returns:
            False if another machine was first: its note stays.
        """
        try:
            version = self._store.write_new(self.root / name, content)
        except FileExistsError:
            return False
        with self._lock:
            self._listed()[name] = version
            self._contents[name] = (version, content)
        return True

    def names(self, folder: str) -> list[str]:
        """Return the names of the notes in a folder, as they are now.

        Args:
            folder: whose notes machines write without the pipeline's lock.
        """
        files = {self._name(file.location): file.version for file in self._store.files(self.root / folder)}
        with self._lock:
            self._listed().update(files)
        return sorted(files)

    def read_now(self, name: str) -> bytes | None:
        """Return a note's content as it is now; None without it."""
        try:
            with self._store.open(self.root / name) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def take_over(self, folder: Path) -> None:
        """Bring notes and records here that lie in a folder of this machine, and remove them there.

        Args:
            folder: the state folder of this pipeline before `state.path` was changed.
        """
        notes = [path for note in NOTES if note.moves and (path := folder / note.name).is_file()]
        keys = [path for name in _LOGS for path in (folder / name).glob("*.parquet")]
        for path in (*keys, *notes):
            self.write(path.relative_to(folder).as_posix(), path.read_bytes() or b"{}")
        for name in _LOGS:
            log = folder / name / _LOG
            if log.is_file():
                whole = log.read_bytes()
                self.append(f"{name}/{_LOG}", whole[: whole.rfind(b"\n") + 1])
                log.unlink()
        for path in (*keys, *notes):
            path.unlink()

    @property
    def _store(self) -> Store:
        return stores.store_of(self.root)  # a forked process has one of its own

    def _numbered(self, name: str) -> list[str]:
        listed, pieces = self._listed(), list[str]()
        while (piece := f"{name}/{len(pieces):08d}") in listed:
            pieces.append(piece)
        return pieces

    def _listed(self) -> dict[str, str]:
        if self._versions is None:
            self.refresh()
        assert self._versions is not None
        return self._versions

    def _fetched(self, name: str) -> tuple[str, bytes]:
        with self._store.open(self.root / name) as file:  # `read` may have the content of an earlier one
            return self._listed()[name], file.read()

    def _forget(self, names: Iterable[str]) -> None:
        several = list(names)
        if several:
            self._store.remove([self.root / name for name in several])
        for name in several:
            self._listed().pop(name, None)
            self._contents.pop(name, None)

    def _name(self, location: Location) -> str:
        return location.removeprefix(f"{self.root}/")
