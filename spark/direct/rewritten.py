"""Rewrites files of a table while batches go on, and commits them later, by a short step of its own.

Iceberg's ``rewrite_data_files`` commits to the table that it reads, at a moment that nobody chooses: a batch
that is staged then would build on a main that is no more.  So Spark works on a *clone*: another name in the
catalog, whose one snapshot is the table's newest, and whose new files go to the table's own folder.  Each
group of files is a commit of the clone.  Later, when no batch is at work, the groups whose old files the
table still has, with the same deletion vectors, are taken over by one snapshot that is written here.  A group
of which a batch has changed a file meanwhile is given up: positions of deleted rows mean nothing in a new
file.

Invariant: the clone has nothing of its own but metadata in a folder of its own.  Whenever a run is killed,
the table is as it was or has all rows; what is left is an entry of the catalog, which the next maintenance
removes (`forget_clones`), and files that nothing leads to.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from slotlake.decoder.errors import LakeError
from slotlake.spark import lake_files
from slotlake.spark.catalog.base import Loaded, load_one
from slotlake.spark.catalog.open import Catalog, open_catalog
from slotlake.spark.direct.live import FORMAT, Live, LiveFile, live_files
from slotlake.spark.direct.snapshot import with_replaced
from slotlake.spark.direct.unsuitable import UnsuitableError
from slotlake.spark.lake import LakeSettings
from slotlake.spark.merge.during_statements import within_bounds
from slotlake.spark.merge.failures import explained
from slotlake.spark.names import LakeName, literal
from slotlake.spark.storage.location import Location
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import MAIN, Metadata
from slotlake.spark.tables.schema import PIPELINE_PROPERTY

_NAMESPACE = "slotlake_rewriting__"
_GROUP_BYTES = 512 << 20
_COMMITS_MAX = 1000


@dataclass(frozen=True)
class _Group:
    """Files that were rewritten together: old locations, and what replaces them."""

    old: frozenset[str]
    new: Sequence[LiveFile]


@dataclass
class Rewritten:
    """Files of a table that are written anew, and do not belong to it yet.

    Attributes:
        table: the table as it was when they were.
        clone: its other name in the catalog.
        folder: the clone's metadata.
    """

    lake: LakeSettings
    table: Loaded
    clone: LakeName
    folder: Location
    _live: Live
    _groups: list[_Group] = field(default_factory=list)
    _taken: set[str] = field(default_factory=set)

    def commit(self, catalog: Catalog, present: Loaded) -> int:
        """Make the new files the table's, in place of the old ones; return how many old files are left.

        Args:
            present: the table as it is now; nothing is staged.

        Raises:
            PointerMovedError: someone else changed the table meanwhile; it is as it was.
        """
        old = sum(len(group.old) for group in self._groups)
        if not _is_same(self.table.metadata, present.metadata):
            return old
        live = live_files(present.metadata, catalog_metadata.head(present.metadata))
        groups = [group for group in self._groups if self._unchanged(live, group)]
        if not groups:
            return old
        new = [file for group in groups for file in group.new]
        removed = {location for group in groups for location in group.old}
        catalog.move([catalog.prepared(present, with_replaced(present.metadata, live, new, removed))])
        self._taken.update(file.location for file in new)
        return old - len(removed)

    def close(self) -> None:
        """Remove the clone, and the new files that the table did not take over."""
        with open_catalog(self.lake) as catalog:
            catalog.drop([self.clone])
            catalog.drop_namespace(self.clone.namespace)
        unused = {file.location for group in self._groups for file in group.new} - self._taken
        lake_files.remove(sorted(unused))
        lake_files.remove_tree(self.folder)

    def read_groups(self) -> None:
        """Read what the clone's commits have replaced."""
        with open_catalog(self.lake) as catalog:
            metadata = load_one(catalog, self.clone).metadata
        after, below = self._live, list(catalog_metadata.ancestry(metadata))[::-1]
        for snapshot in below[1:]:
            before, after = after, live_files(metadata, snapshot)
            new = [file for location, file in after.data.items() if location not in before.data]
            self._groups.append(_Group(frozenset(before.data.keys() - after.data.keys()), new))

    def _unchanged(self, live: Live, group: _Group) -> bool:
        return all(
            location in live.data and _vector(live, location) == _vector(self._live, location)
            for location in group.old
        )


def rewrite_apart(
    session: SparkSession, lake: LakeSettings, table: Loaded, options: Mapping[str, str]
) -> Rewritten | None:
    """Write files of a table anew, without their deleted rows; the table stays as it is.

    Args:
        options: of Iceberg's ``rewrite_data_files``; they say which files.

    Returns:
        The new files; None if this lake or this table has to be rewritten in place.

    Raises:
        LakeError: Spark failed, or a file cannot be read or written.
    """
    if not can_rewrite_apart(lake, table.metadata):
        return None
    try:
        live = live_files(table.metadata, catalog_metadata.head(table.metadata))
    except UnsuitableError:
        return None
    number = uuid.uuid4().hex
    folder = Location(table.metadata["location"]) / "metadata" / f"rewriting-{number}"
    name = LakeName(_NAMESPACE + lake.namespace, f"r{number}")
    rewritten = Rewritten(lake, table, name, folder, live)
    try:
        _make_clone(rewritten)
        try:
            _run(session, lake, table, name, options)
        finally:
            rewritten.read_groups()
    except BaseException:
        with suppress(LakeError):
            rewritten.close()
        raise
    return rewritten


def can_rewrite_apart(lake: LakeSettings, metadata: Metadata) -> bool:
    """Return whether a table can have a clone that shares its folder, and deletes rows by vectors."""
    return (
        lake.can_clone
        and metadata["format-version"] == FORMAT
        and catalog_metadata.head(metadata) is not None
    )


def forget_clones(lake: LakeSettings, pipeline: str) -> None:
    """Remove the clones that killed runs of this pipeline have left in the catalog.

    Args:
        lake: the lake; no other run rewrites its files.
    """
    if not lake.can_clone:
        return
    with open_catalog(lake) as catalog:
        for name in [each for each in catalog.names() if each.namespace == _NAMESPACE + lake.namespace]:
            location = catalog.pointer(name)
            if location is not None and _owner(location) in {None, pipeline}:
                catalog.drop([name])
                catalog.drop_namespace(name.namespace)


def _owner(location: str) -> str | None:
    """Whose clone it is; None if its metadata is gone with the table."""
    with suppress(LakeError):
        owner: str | None = catalog_metadata.load_top(location)["properties"].get(PIPELINE_PROPERTY)
        return owner
    return None


def _make_clone(rewritten: Rewritten) -> None:
    metadata = _clone_of(rewritten.table.metadata, rewritten.folder)
    file = rewritten.folder / f"00000-{uuid.uuid4()}.metadata.json"
    lake_files.write_new(file, json.dumps(metadata, ensure_ascii=False).encode())
    with open_catalog(rewritten.lake) as catalog:
        catalog.make_namespace(rewritten.clone.namespace)
        catalog.add(rewritten.clone, file)


def _clone_of(metadata: Metadata, folder: Location) -> Metadata:
    """A table whose past is the newest snapshot only; what it writes of metadata goes to its own folder."""
    snapshot = catalog_metadata.head(metadata) or {}
    alone = {key: value for key, value in snapshot.items() if key != "parent-snapshot-id"}
    number, now = snapshot["snapshot-id"], metadata["last-updated-ms"]
    return {
        **metadata,
        "table-uuid": str(uuid.uuid4()),
        "snapshots": [alone],
        "current-snapshot-id": number,
        "refs": {MAIN: {"type": "branch", "snapshot-id": number}},
        "snapshot-log": [{"snapshot-id": number, "timestamp-ms": now}],
        # A commit may remove the files that its log names: they are the table's.
        "metadata-log": [],
        "statistics": [],
        "partition-statistics": [],
        "properties": {**metadata.get("properties", {}), "write.metadata.path": str(folder)},
    }


def _run(
    session: SparkSession, lake: LakeSettings, table: Loaded, clone: LakeName, options: Mapping[str, str]
) -> None:
    group_bytes = max(_GROUP_BYTES, 4 * int(options.get("target-file-size-bytes", 0)))
    grouped = {
        **options,
        "partial-progress.enabled": "true",
        "partial-progress.max-commits": str(_COMMITS_MAX),
        "max-file-group-size-bytes": str(group_bytes),
    }
    listed = ", ".join(f"{literal(key)}, {literal(value)}" for key, value in grouped.items())
    target = literal(clone.sql(lake.catalog))
    call = f"CALL {lake.catalog}.system.rewrite_data_files(table => {target}, options => map({listed}))"
    with explained(table), within_bounds(session, str(table.name)):
        (row,) = session.sql(call).collect()
    if row["failed_data_files_count"]:
        raise LakeError(
            f"Spark could not rewrite {row['failed_data_files_count']:,} files of a table; it is as it was",
            where=f"table {table.name}",
            way_out="if the table lost files, copy it again: slotlake backfill --table",
        )


def _vector(live: Live, location: str) -> tuple[str, int, int] | None:
    """What tells a data file's deletion vector from another one; None if no row is deleted."""
    vector = live.vectors.get(location)
    if vector is None:
        return None
    return vector.location, vector.offset, vector.file.record_count


def _is_same(before: Metadata, now: Metadata) -> bool:
    """Return whether new files of the table as it was are like those that are written now."""
    keys = ("table-uuid", "location", "default-spec-id", "default-sort-order-id", "format-version")
    return all(before.get(key) == now.get(key) for key in keys)
