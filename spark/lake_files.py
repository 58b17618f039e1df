"""The only place that touches warehouse files directly; another file system would be added here.

What is written here is on disk before its name is told to anyone: a catalog must never point at a
metadata file that a crash can take away.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from slotlake.decoder.errors import LAKE_ALTERED, LakeError
from slotlake.spark.lake import LakeSettings

CONTROL_DIRECTORY = "_slotlake"
# So many rows per row group that a batch of any interest is read by all cores.
_ROW_GROUP_ROWS = 128 * 1024


def local_path(location: str) -> Path:
    """Return the path of an Iceberg location.

    Hadoop writes ``file:/a b``, unescaped; only ``file://`` locations made by a URI library are escaped.
    Names that need escapes are never made (see spark/names.py), but the warehouse's own path may need them.

    Raises:
        LakeError: the location is not on this machine.
    """
    if location.startswith("/"):
        return Path(location)
    parts = urlsplit(location)
    if parts.scheme != "file":
        raise LakeError(
            "this version reads files of this machine only",
            where=location,
            way_out="read the table with Spark, or set lake.warehouse to a folder (file:///…)",
        )
    raw = location.removeprefix("file:")
    raw = "/" + raw.lstrip("/")
    return Path(raw) if Path(raw).exists() or "%" not in raw else Path(unquote(raw))


def read(location: str) -> bytes:
    """All bytes of a file.

    Raises:
        LakeError: it cannot be read.
    """
    try:
        return local_path(location).read_bytes()
    except OSError as error:
        raise LakeError(
            f"a file of the lake cannot be read: {error.strerror}", where=location, way_out=LAKE_ALTERED
        ) from error


def write_new(location: str, content: bytes) -> None:
    """Write a file that must not exist yet; when this returns it is on disk.

    Raises:
        LakeError: it cannot be written.
    """
    path = local_path(location)
    try:
        with path.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(path.parent)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise LakeError(
            f"a file of the lake cannot be written: {error.strerror}",
            where=location,
            way_out="free space in the warehouse and let this user write there; nothing was published",
        ) from error


def sync_directory(path: Path) -> None:
    """Put a directory's entries on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(locations: list[str]) -> None:
    """Remove files that nobody points at any more; missing ones are fine."""
    for location in locations:
        local_path(location).unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Remove a directory with all in it; a missing one is fine."""
    shutil.rmtree(path, ignore_errors=True)


def control_directory(lake: LakeSettings, *parts: str) -> Path:
    """A directory for files that pass between processes, made if missing: ``<warehouse>/_slotlake/…``.

    Raises:
        LakeError: it cannot be made.
    """
    path = lake.warehouse_path.joinpath(CONTROL_DIRECTORY, *parts)
    return make_directory(path)


def make_directory(path: Path) -> Path:
    """Make a directory and its parents.

    Raises:
        LakeError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LakeError(
            f"the warehouse cannot be written: {error.strerror}",
            where=str(path),
            way_out="lake.warehouse must be a directory that this user, and Spark's, may write",
        ) from error
    return path


def check_warehouse(lake: LakeSettings) -> None:
    """Make the warehouse if missing and see that it can be written.

    Raises:
        LakeError: it is no directory, or cannot be written.
    """
    path = lake.warehouse_path
    if path.exists() and not path.is_dir():
        raise _not_a_directory(path, "the warehouse")
    _probe(control_directory(lake), path, "the warehouse")


def probe_folder(path: Path, *, what: str = "the warehouse") -> None:
    """See that a folder can be written, or made where it is missing; nothing is left of it.

    Args:
        what: the folder's part in the pipeline, for the error.

    Raises:
        LakeError: it is no directory, or cannot be written.
    """
    existing = next(each for each in (path, *path.parents) if each.exists())
    if not existing.is_dir():
        raise _not_a_directory(existing, what)
    _probe(existing, path, what)


def _probe(folder: Path, path: Path, what: str) -> None:
    probe = folder / f"probe-{os.getpid()}"
    try:
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise LakeError(
            f"{what} cannot be written: {error.strerror}",
            where=str(path),
            way_out="give this user the right to write there, or name another folder in the pipeline file",
        ) from error


def _not_a_directory(path: Path, what: str) -> LakeError:
    return LakeError(
        f"{what} is not a directory", where=str(path), way_out="name a directory in the pipeline file"
    )


def write_parquet(rows: pa.Table, path: Path) -> Path:
    """Write rows for Spark to read, replacing what a crashed attempt left.

    Raises:
        LakeError: it cannot be written.
    """
    make_directory(path.parent)
    try:
        pq.write_table(rows, path, compression="zstd", row_group_size=_ROW_GROUP_ROWS)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise LakeError(
            f"the warehouse cannot be written: {error.strerror or error}",
            where=str(path),
            way_out="free space in the warehouse; nothing was published",
        ) from error
    return path
