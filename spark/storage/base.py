"""What the lake asks of a storage, whichever kind it is.

Invariant: a file is there whole or not at all, and when a method that writes returns, a crash of this machine
cannot take it away.  A catalog must never point at a file that can vanish.

Errors are those of files (OSError: FileNotFoundError, FileExistsError, PermissionError, …), of every kind of
storage.  Those of an object store that fails or refuses are errors of the lake at the same time, which say
what to do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from slotlake.decoder.errors import LakeError
from slotlake.spark.storage.location import Location


class StoreUnavailableError(LakeError, OSError):
    """The object store does not answer, or not as it should; a later try may succeed."""

    retryable = True


class PassingStoreError(StoreUnavailableError):
    """A connection to the object store broke in the middle of a statement; the next try may pass."""


class StoreRefusedError(LakeError, PermissionError):
    """The object store refuses the keys."""


@dataclass(frozen=True)
class StoredFile:
    """A file that is there.

    Attributes:
        size: bytes.
        modified: when it was written, in seconds since 1970.
        version: another one for another content (ETag); empty if the storage has none.
    """

    location: Location
    size: int
    modified: float
    version: str = ""


class Store(ABC):
    """Files of one folder of this machine, or of one bucket."""

    @abstractmethod
    def read(self, location: Location) -> bytes:
        """Return all bytes of a file.

        Raises:
            OSError: it cannot be read.
        """

    @abstractmethod
    def open(self, location: Location) -> BinaryIO:
        """Open a file to read parts of it; the object can seek.

        Raises:
            OSError: it cannot be read.
        """

    @abstractmethod
    def write_new(self, location: Location, content: bytes) -> str:
        """Write a file that must not be there yet, and return its version, if it is known.

        Raises:
            FileExistsError: it is there.
            OSError: it cannot be written.
        """

    @abstractmethod
    def put(self, source: Path, location: Location) -> None:
        """Make a file of this machine a file of the storage, under a name that nothing else has.

        Raises:
            OSError: it cannot be read, or written there.
        """

    @abstractmethod
    def size(self, location: Location) -> int | None:
        """Return a file's size in bytes; None if there is none.

        Raises:
            OSError: the storage does not answer.
        """

    @abstractmethod
    def files(self, folder: Location, after: str = "") -> Iterator[StoredFile]:
        """Every file in a folder and its folders; nothing if there is no such folder.

        Args:
            after: only files whose name in the folder comes after this text.

        Raises:
            OSError: the storage does not answer.
        """

    @abstractmethod
    def remove(self, locations: Collection[Location]) -> None:
        """Remove files; missing ones are fine.

        Raises:
            OSError: the storage does not answer, or refuses.
        """

    @abstractmethod
    def remove_tree(self, folder: Location) -> None:
        """Remove a folder with all in it; a missing one is fine.

        Raises:
            OSError: the storage does not answer, or refuses.
        """
