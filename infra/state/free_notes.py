"""Notes in an object store that any machine may write, without the pipeline's lock: those of the journal.

Nothing here is cached: who reads them knows by the version of a note whether it is another one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from slotlake.infra.state.notes import NoteSeen
from slotlake.spark.storage import stores
from slotlake.spark.storage.base import Store
from slotlake.spark.storage.location import Location


class StoredNotes:
    """Notes of a pipeline's state in an object store; may be called from several threads.

    Args:
        root: where the state is.
        names: gives the names that were there when the state was last listed.

    Attributes:
        away: the store did not answer when the state was last listed.
    """

    def __init__(self, root: Location, names: Callable[[], Collection[str]] = tuple) -> None:
        self.root, self.away = root, False
        self._names = names

    def listed(self) -> dict[str, NoteSeen]:
        """Return all notes of the state that are there now.

        Raises:
            LakeError: the store does not answer, or refuses.
        """
        return {
            file.location.removeprefix(f"{self.root}/"): NoteSeen(file.version, file.modified)
            for file in self._store.files(self.root)
        }

    def known(self) -> Collection[str]:
        """Return the names that were there when this process last listed them, without a request."""
        return self._names()

    def read(self, name: str) -> bytes | None:
        """Return a note's content as it is now; None without it.

        Raises:
            LakeError: the store does not answer, or refuses.
        """
        try:
            with self._store.open(self.root / name) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def replace(self, name: str, content: bytes) -> None:
        """Write a note, whether it is there or not.

        Raises:
            LakeError: the store does not answer, or refuses.
        """
        with tempfile.TemporaryDirectory(prefix="slotlake-") as folder:
            file = Path(folder) / "note"
            file.write_bytes(content)
            self._store.put(file, self.root / name)

    def write_new(self, name: str, content: bytes) -> bool:
        """Write a note that is not there yet; False: it is.

        Raises:
            LakeError: the store does not answer, or refuses.
        """
        try:
            self._store.write_new(self.root / name, content)
        except FileExistsError:
            return False
        return True

    def remove(self, names: Sequence[str]) -> None:
        """Remove notes; missing ones are fine.

        Raises:
            LakeError: the store does not answer, or refuses.
        """
        if names:
            self._store.remove([self.root / name for name in names])

    @property
    def _store(self) -> Store:
        return stores.store_of(self.root)  # a forked process has one of its own
