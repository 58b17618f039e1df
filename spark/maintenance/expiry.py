"""What a table lets go of: snapshots that nobody can name any more, and the files that only they led to.

First the snapshots leave the table's metadata, guarded like every change of it; only then files go.  A crash
in between leaves files that nothing leads to, and a later run removes those as orphans: never the other way.

Kept are the heads of branches, all tags (so every kept point, spark/publish/points.py), main's way down to
the newest snapshot of a point (its summary tells the position, and rows of `commits` name it), and what was
current, or
was made, a moment ago: a reader may stand there.

Three kinds of files go: what only the snapshots let go of led to, at once; metadata files that are current no
more, after the same time as snapshots; and what nothing ever led to (a killed run's, a lost race's) when it
is old, because a statement that is still at work has written files that nothing leads to yet.
"""

from __future__ import annotations

import re
import stat
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from slotlake.spark import lake_files
from slotlake.spark.catalog.base import Catalog, Loaded
from slotlake.spark.maintenance.table_files import TableFiles
from slotlake.spark.publish.past import all_snapshots, past_files
from slotlake.spark.publish.unused import without_unused_snapshots
from slotlake.spark.tables.metadata import Metadata

_LOG_WORTH_TRIMMING = 10
_METADATA_FILE = re.compile(r"(\d+)-.*\.metadata\.json")


@dataclass(frozen=True)
class Grace:
    """For how long what nothing leads to is left alone, in seconds.

    Attributes:
        unused: a snapshot that was current, or made, so recently stays; so does a metadata file.
        orphan: so old is a file that never belonged to the table before it is removed.
    """

    unused: float
    orphan: float


def _with_short_log(metadata: Metadata, seconds: float) -> Metadata:
    """Without the past metadata files that were current only before so many seconds."""
    log = metadata.get("metadata-log", [])
    ends = [*(entry["timestamp-ms"] for entry in log[1:]), metadata["last-updated-ms"]]
    oldest = time.time() * 1000 - seconds * 1000
    recent = [entry for entry, end in zip(log, ends, strict=True) if end >= oldest]
    return {**metadata, "metadata-log": recent} if len(log) - len(recent) >= _LOG_WORTH_TRIMMING else metadata


def expire(catalog: Catalog, table: Loaded, grace: Grace) -> int:
    """Remove from a table's metadata the snapshots that are no longer needed; return how many.

    Args:
        catalog: the lake's catalog.
        table: the table.
        grace: for how long unreferenced snapshots stay.

    Raises:
        PointerMovedError: someone else changed the table meanwhile; nothing was changed.
    """
    after = without_unused_snapshots(table.metadata, grace.unused)
    if not catalog.lake.is_rest:  # such a server keeps its own log
        after = _with_short_log(after, grace.unused)
    if after == table.metadata:
        return 0
    catalog.move([catalog.prepared(table, after)])
    return len(table.metadata.get("snapshots", ())) - len(after.get("snapshots", ()))


@dataclass(frozen=True)
class Removed:
    """Files removed, and their bytes."""

    files: int = 0
    size: int = 0

    def __add__(self, other: Removed) -> Removed:
        return Removed(self.files + other.files, self.size + other.size)


def remove_files(table: Loaded, dropped: Collection[str], files: TableFiles, grace: Grace) -> Removed:
    """Remove what the table, as it is now, does not lead to.

    Args:
        dropped: files that snapshots led to which the table has no more.

    Raises:
        LakeError: a metadata file of the table cannot be read; nothing was removed.
    """
    referenced = set(files.referenced_files(all_snapshots(table.metadata))) | _named(table)
    root = lake_files.local_path(table.metadata["location"])
    files_on_disk = dict(_files_on_disk(root))
    unneeded = {path for path in dropped if path not in referenced and path in files_on_disk}
    if (
        referenced <= files_on_disk.keys()
    ):  # else names differ from what is on disk, and nothing can be told from them
        now, present = time.time(), _version(table.location)
        unneeded |= {
            path
            for path, modified in files_on_disk.items()
            if path not in referenced and now - modified >= _minimum_age(path, present, grace)
        }
    return sum((_remove(Path(path)) for path in unneeded), Removed())


def _minimum_age(path: str, present: int, grace: Grace) -> float:
    """How old a file that nothing leads to must be.

    A metadata file can become current only if its number follows that of the current one.
    """
    return grace.unused if 0 <= _version(path) <= present else grace.orphan


def _named(table: Loaded) -> set[str]:
    """What the metadata itself names: itself, those before it, statistics."""
    metadata = table.metadata
    listed = [table.location, *(entry["metadata-file"] for entry in metadata.get("metadata-log", ()))]
    listed += [file.location for file in past_files(metadata)]
    for kind in ("statistics", "partition-statistics"):
        listed += [entry["statistics-path"] for entry in metadata.get(kind, ())]
    return {str(lake_files.local_path(location)) for location in listed}


def _version(location: str) -> int:
    match = _METADATA_FILE.fullmatch(location.rpartition("/")[2])
    return int(match[1]) if match else -1


def _files_on_disk(root: Path) -> Iterator[tuple[str, float]]:
    """Files of a table's two folders with the time of their last change; not the checksums beside them."""
    for folder in ("data", "metadata"):
        for path in (root / folder).rglob("*"):
            if not _is_checksum_of_another(path):
                try:
                    state = path.stat()
                except FileNotFoundError:  # a statement at work cleans up behind itself
                    continue
                if stat.S_ISREG(state.st_mode):
                    yield str(path), state.st_mtime


def _is_checksum_of_another(path: Path) -> bool:
    name = path.name
    return name.startswith(".") and name.endswith(".crc") and path.with_name(name[1:-4]).exists()


def _remove(path: Path) -> Removed:
    removed = Removed()
    for each in (path, path.with_name(f".{path.name}.crc")):
        try:
            size = each.stat().st_size
            each.unlink()
        except FileNotFoundError:
            continue
        removed += Removed(1, size)
    return removed
