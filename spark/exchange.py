"""Files that pass between processes of this machine: rows for Spark, copies on their way into the lake.

They lie in the warehouse where it is a folder, else in the folder `LakeSettings.exchange`; nobody else reads
them, and each piece of work removes its own.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pyarrow as pa

from slotlake.decoder.errors import LakeError
from slotlake.spark.lake import LakeSettings
from slotlake.spark.storage.folder import sync_directory

CONTROL_DIRECTORY: Final = "_slotlake"
# So many rows per row group that a batch of any interest is read by all cores.
_ROW_GROUP_ROWS = 128 * 1024


def exchange_path(lake: LakeSettings, *parts: str) -> Path:
    """Return a folder's path; it may be missing.

    Raises:
        LakeError: the warehouse is in an object store, and no folder of this machine is named.
    """
    if not lake.is_in_bucket:
        return lake.warehouse_path.joinpath(CONTROL_DIRECTORY, *parts)
    if lake.exchange is None:
        raise LakeError(
            "a lake in an object store needs a folder of this machine for files on their way there",
            where=str(lake.root),
            way_out="give LakeSettings the folder `exchange`",
        )
    return lake.exchange.joinpath(*parts)


def exchange_directory(lake: LakeSettings, *parts: str) -> Path:
    """Make such a folder if it is missing.

    Raises:
        LakeError: it cannot be made.
    """
    return make_directory(exchange_path(lake, *parts))


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


def remove_directory(path: Path) -> None:
    """Remove a directory with all in it; a missing one is fine."""
    shutil.rmtree(path, ignore_errors=True)


def write_file(path: Path, content: bytes) -> None:
    """Write a file that must not exist yet; when this returns it is on disk.

    Raises:
        LakeError: it cannot be written.
    """
    try:
        with path.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(path.parent)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise LakeError(
            f"a file cannot be written: {error.strerror}",
            where=str(path),
            way_out="free space there and let this user write there; nothing was published",
        ) from error


def write_parquet(rows: pa.Table, path: Path) -> Path:
    """Write rows for Spark to read, replacing what a crashed attempt left.

    Raises:
        LakeError: it cannot be written.
    """
    import pyarrow.parquet as pq  # late: who only reads need not wait for it

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


def probe_folder(path: Path, *, what: str = "the warehouse") -> None:
    """See that a folder can be written, or made where it is missing; nothing is left of it.

    Raises:
        LakeError: it is no directory, or cannot be written.
    """
    existing = next(each for each in (path, *path.parents) if each.exists())
    if not existing.is_dir():
        raise not_a_directory(existing, what)
    probe(existing, path, what)


def probe(folder: Path, path: Path, what: str) -> None:
    """See that a file can be written in a folder.

    Raises:
        LakeError: it cannot.
    """
    file = folder / f"probe-{os.getpid()}"
    try:
        file.write_bytes(b"")
        file.unlink()
    except OSError as error:
        raise LakeError(
            f"{what} cannot be written: {error.strerror}",
            where=str(path),
            way_out="give this user the right to write there, or name another folder in the pipeline file",
        ) from error


def not_a_directory(path: Path, what: str) -> LakeError:
    """Return the error of a path that is something else."""
    return LakeError(
        f"{what} is not a directory", where=str(path), way_out="name a directory in the pipeline file"
    )
