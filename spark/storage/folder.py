"""The lake's files in folders of this machine, or of a disk that all processes share."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from slotlake.spark.storage.base import Store, StoredFile
from slotlake.spark.storage.location import Location


def local_path(location: str) -> Path:
    """Return the path of a location on this machine.

    Hadoop writes ``file:/a b``, unescaped; only ``file://`` locations made by a URI library are escaped.
    Names that need escapes are never made (spark/names.py), but the warehouse's own path may need them.
    """
    raw = Location(location).path
    return Path(raw) if Path(raw).exists() or "%" not in raw else Path(unquote(raw))


def sync_directory(path: Path) -> None:
    """Put a directory's entries on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class FolderStore(Store):
    """Files of this machine."""

    def read(self, location: Location) -> bytes:
        """Return all bytes of a file."""
        return local_path(location).read_bytes()

    def open(self, location: Location) -> BinaryIO:
        """Open a file."""
        return local_path(location).open("rb")

    def write_new(self, location: Location, content: bytes) -> str:
        """Write a file that must not be there yet; when this returns it is on disk."""
        path = local_path(location)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("xb")  # before the `try`: a file of somebody else is not to be removed
        try:
            with file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            sync_directory(path.parent)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return ""

    def put(self, source: Path, location: Location) -> None:
        """Link a file, or copy it where links cannot be."""
        path = local_path(location)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, path)
        except OSError:  # another file system, or one without links
            shutil.copy2(source, path)
            with path.open("rb") as file:
                os.fsync(file.fileno())
        sync_directory(path.parent)

    def size(self, location: Location) -> int | None:
        """Return a file's size."""
        try:
            return local_path(location).stat().st_size
        except FileNotFoundError:
            return None

    def files(self, folder: Location, after: str = "") -> Iterator[StoredFile]:
        """Every regular file of a folder."""
        root = local_path(folder)
        for path in root.rglob("*"):
            if after and str(path.relative_to(root)) <= after:
                continue
            try:
                state = path.stat()
            except FileNotFoundError:  # a statement at work cleans up after itself
                continue
            if stat.S_ISREG(state.st_mode):
                yield StoredFile(Location(f"file://{path}"), state.st_size, state.st_mtime)

    def remove(self, locations: Collection[Location]) -> None:
        """Remove files, and the checksums that Hadoop writes next to them."""
        for location in locations:
            path = local_path(location)
            path.unlink(missing_ok=True)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    def remove_tree(self, folder: Location) -> None:
        """Remove a directory."""
        shutil.rmtree(local_path(folder), ignore_errors=True)
