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
import time
from collections.abc import Collection
from dataclasses import dataclass

from slotlake.spark import lake_files
from slotlake.spark.catalog.base import Catalog, Loaded
from slotlake.spark.maintenance.table_files import TableFiles
from slotlake.spark.publish.past import all_snapshots, past_files, without_unused_snapshots
from slotlake.spark.storage.base import StoredFile
from slotlake.spark.storage.location import Location
from slotlake.spark.storage.stores import canonical
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import MAIN, STAGE, Metadata

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

    Raises:
        PointerMovedError: someone else changed the table meanwhile; nothing was changed.
    """
    after = without_unused_snapshots(_without_old_stage(table.metadata), grace.unused)
    if not catalog.lake.server_writes_metadata:  # such a server keeps its own log
        after = _with_short_log(after, grace.unused)
    if after == table.metadata:
        return 0
    catalog.move([catalog.prepared(table, after)])
    return len(table.metadata.get("snapshots", ())) - len(after.get("snapshots", ()))


def _without_old_stage(metadata: Metadata) -> Metadata:
    """Without the branch ``stage`` where it holds what was main before a rewrite, and so its files."""
    staged = catalog_metadata.ref(metadata, STAGE)
    if staged == catalog_metadata.ref(metadata, MAIN) or catalog_metadata.is_staged(metadata):
        return metadata
    return catalog_metadata.with_ref(metadata, STAGE, None)


@dataclass(frozen=True)
class Removed:
    """Files removed, and their bytes."""

    files: int = 0
    size: int = 0

    def __add__(self, other: Removed) -> Removed:
        return Removed(self.files + other.files, self.size + other.size)


Candidates = dict[str, StoredFile]


def unneeded_files(
    table: Loaded,
    dropped: Collection[str],
    files: TableFiles,
    grace: Grace,
    of_catalog: Collection[str] = (),
    views: Collection[str] = (),
) -> Candidates:
    """Find the files that neither the table, as it is now, nor a pinned view of it leads to.

    Batches may go on meanwhile; so ask `still_unneeded` before they are removed.

    Args:
        dropped: files that snapshots led to which the table has no more.
        views: the metadata files by which pinned views show the table.

    Raises:
        LakeError: a metadata file of the table cannot be read.
    """
    referenced = _referenced(table, files, views)
    stored = _stored_files(Location(table.metadata["location"]))
    unneeded = {path for path in dropped if path not in referenced and path in stored}
    if referenced <= stored.keys():  # else names differ from what is there, and nothing can be told from them
        now, present = time.time(), _version(table.location)
        needed = referenced | {canonical(location) for location in of_catalog}
        unneeded |= {
            path
            for path, file in stored.items()
            if path not in needed and now - file.modified >= _minimum_age(path, present, grace)
        }
    return {path: stored[path] for path in unneeded}


def still_unneeded(
    candidates: Candidates,
    table: Loaded,
    files: TableFiles,
    of_catalog: Collection[str] = (),
    views: Collection[str] = (),
) -> Candidates:
    """Those of the files that no run has made part of the table since they were found.

    Call it when no run is at work: an old file may be linked to the table's folder first, and be named by
    its metadata later.  What nothing leads to then, no later run will name.

    Args:
        views: the metadata files by which pinned views show the table.

    Raises:
        LakeError: a metadata file of the table cannot be read.
    """
    needed = _referenced(table, files, views) | {canonical(location) for location in of_catalog}
    return {path: file for path, file in candidates.items() if path not in needed}


def remove_files(candidates: Candidates) -> Removed:
    """Remove files that nothing needs.

    Args:
        candidates: as `still_unneeded` returns them.
    """
    lake_files.remove(sorted(file.location for file in candidates.values()))
    return Removed(len(candidates), sum(file.size for file in candidates.values()))


def _referenced(table: Loaded, files: TableFiles, views: Collection[str]) -> set[str]:
    shown = [catalog_metadata.head(catalog_metadata.load(location)) for location in views]
    snapshots = [*all_snapshots(table.metadata), *(snapshot for snapshot in shown if snapshot)]
    return set(files.referenced_files(snapshots)) | _named(table) | {canonical(each) for each in views}


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
    return {canonical(location) for location in listed}


def _version(location: str) -> int:
    match = _METADATA_FILE.fullmatch(location.rpartition("/")[2])
    return int(match[1]) if match else -1


def _stored_files(root: Location) -> dict[str, StoredFile]:
    """The files of a table's two folders, by canonical location."""
    folders = (root / folder for folder in ("data", "metadata"))
    listed = (file for folder in folders for file in lake_files.files(folder))
    stored = {canonical(file.location): file for file in listed}
    return {path: file for path, file in stored.items() if _of_checksum(path) not in stored}


def _of_checksum(location: Location) -> str | None:
    """The file that a checksum of Hadoop's is of; it goes with that file."""
    name = location.name
    is_checksum = name.startswith(".") and name.endswith(".crc")
    return location.parent / name[1:-4] if is_checksum else None
