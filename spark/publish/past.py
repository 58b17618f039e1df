"""Kept points that are not among the newest: their snapshots stand in metadata files of their own.

A table's metadata file is written with every batch, by Spark and by us, so what it holds is bounded: the tags
of the newest :data:`LIVE` points at least, twice as many at most.  Older ones move, many at a time, to a
*past file* beside it: metadata of the same table as every reader of Iceberg understands it, with those tags
and snapshots and no others.  It never changes; one that is not full yet is written anew, with more.  The
table's property ``slotlake.past`` says which there are, oldest first, and what the oldest kept point is.

Invariant: every tag in a past file is older than all that the table's own metadata has, so a point's snapshot
is in one place: the newest that begins at or before it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.spark import lake_files
from slotlake.spark.catalog import tags as catalog_tags
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import LSN, MAIN, Metadata

PAST_PROPERTY = "slotlake.past"
# Iceberg's own expiry, removal of orphans and PURGE, which know of no past files, refuse to work then.
_GUARD: dict[str, str | None] = {"gc.enabled": "false"}
# Who keeps a hundred points, as is usual, has no past files.
LIVE = 50
_LIVE_MAX = 2 * LIVE
_SNAPSHOTS_MAX = 3 * LIVE
_FILE_POINTS = 500


@dataclass(frozen=True)
class PastFile:
    """Where some kept points stand.

    Attributes:
        first, last: positions of the oldest and the newest of them.
        published_ms: when the oldest was published, in milliseconds since 1970.
    """

    location: str
    first: int
    last: int
    points: int
    published_ms: int

    @property
    def metadata(self) -> Metadata:
        """Its content."""
        return catalog_metadata.load(self.location)


def past_files(metadata: Metadata) -> list[PastFile]:
    """The past files of a table, oldest first."""
    record = json.loads(metadata.get("properties", {}).get(PAST_PROPERTY, "{}"))
    return [
        PastFile(e["file"], parse_lsn(e["first"]), parse_lsn(e["last"]), e["points"], e["published-ms"])
        for e in record.get("files", ())
    ]


def oldest_readable(metadata: Metadata) -> int:
    """Of a table with past files: what is older is kept no more, though it may still be in one."""
    record = json.loads(metadata.get("properties", {}).get(PAST_PROPERTY, "{}"))
    return parse_lsn(record["oldest"]) if record else 0


def location_at(location: str, position: int) -> str:
    """Where the metadata is that has a table's snapshot of a position: the table's own, or a past file's."""
    top = catalog_metadata.load_top(location)
    if PAST_PROPERTY not in top["properties"]:
        return location
    newest = catalog_metadata.newest_position(top)
    if newest is not None and newest <= position:
        return location
    if min(catalog_tags.tags(catalog_metadata.load(location)), default=position + 1) <= position:
        return location
    reached = [file for file in past_files(top) if file.first <= position]
    return reached[-1].location if reached else location


def all_snapshots(metadata: Metadata) -> Iterator[Metadata]:
    """A table's snapshots, those of its past files too."""
    yield from metadata.get("snapshots", ())
    for file in past_files(metadata):
        yield from file.metadata.get("snapshots", ())


def with_past_files(metadata: Metadata, oldest: int, unused_seconds: float | None = None) -> Metadata:
    """A table about to be written, with no more points in it than it may have; past files are written.

    Args:
        unused_seconds: snapshots that nobody can name any more leave too, when there are many of them and
            they have not been current for so long; None: this is left to others.
    """
    files = past_files(metadata)
    tags = catalog_tags.tags(metadata)
    if len(tags) > _LIVE_MAX:
        moved = dict(list(tags.items())[:-LIVE])
        files = _with_moved(metadata, files, moved)
        metadata = _without_tags(metadata, moved)
        tags = {position: id_ for position, id_ in tags.items() if position not in moved}
    elif unused_seconds is None or len(metadata.get("snapshots", ())) <= _SNAPSHOTS_MAX:
        return _with_record(metadata, _needed(files, tags, oldest), oldest)
    if unused_seconds is not None:
        metadata = without_unused_snapshots(metadata, unused_seconds)
    return _with_record(metadata, _needed(files, tags, oldest), oldest)


def with_all_in_the_past(metadata: Metadata, position: int) -> Metadata:
    """A table whose points before a position stand in past files only."""
    tags = catalog_tags.tags(metadata)
    moved = {point: id_ for point, id_ in tags.items() if point < position}
    files = past_files(metadata)
    if moved:
        oldest = oldest_readable(metadata) or min(moved)
        metadata = _with_record(metadata, _with_moved(metadata, files, moved), oldest)
    names = {catalog_tags.tag(point) for point in moved}
    return {**metadata, "refs": {n: ref for n, ref in metadata.get("refs", {}).items() if n not in names}}


def without_points_above(metadata: Metadata, position: int) -> Metadata:
    """A table whose past files have no point above a position, which a later history may come to again."""
    files = []
    for file in past_files(metadata):
        if file.last > position:
            remaining = {p: id_ for p, id_ in catalog_tags.tags(file.metadata).items() if p <= position}
            files += (
                [_write_past_file(file.metadata, remaining, file.metadata["snapshots"])] if remaining else []
            )
        else:
            files.append(file)
    return _with_record(metadata, files, oldest_readable(metadata))


def _needed(files: list[PastFile], tags: Collection[int], oldest: int) -> list[PastFile]:
    """Without those that are followed by a tag at or before the oldest kept point."""
    following = [*(file.first for file in files[1:]), min(tags, default=oldest + 1)]
    return [file for file, after in zip(files, following, strict=False) if after > oldest]


def _with_record(metadata: Metadata, files: list[PastFile], oldest: int) -> Metadata:
    record = {
        "oldest": format_lsn(oldest),
        "files": [
            {
                "file": file.location,
                "first": format_lsn(file.first),
                "last": format_lsn(file.last),
                "points": file.points,
                "published-ms": file.published_ms,
            }
            for file in files
        ],
    }
    if files:
        return catalog_metadata.with_properties(metadata, {PAST_PROPERTY: json.dumps(record), **_GUARD})
    if PAST_PROPERTY not in metadata.get("properties", {}):
        return metadata
    return catalog_metadata.with_properties(metadata, {PAST_PROPERTY: None})


def _without_tags(metadata: Metadata, moved: Mapping[int, int]) -> Metadata:
    names = {catalog_tags.tag(position) for position in moved}
    refs = {name: ref for name, ref in metadata.get("refs", {}).items() if name not in names}
    present = {s["snapshot-id"] for s in metadata["snapshots"]}
    return catalog_metadata.without_unreferenced({**metadata, "refs": refs}, present - set(moved.values()))


def _with_moved(metadata: Metadata, files: list[PastFile], moved: Mapping[int, int]) -> list[PastFile]:
    """The past files once these tags have moved there; the newest one takes them, if it has room."""
    snapshots = list(metadata["snapshots"])
    if files and files[-1].points + len(moved) <= _FILE_POINTS:
        newest = files[-1].metadata
        moved = catalog_tags.tags(newest) | dict(moved)
        snapshots += newest["snapshots"]
        files = files[:-1]
    return [*files, _write_past_file(metadata, moved, snapshots)]


def _write_past_file(metadata: Metadata, tags: Mapping[int, int], snapshots: list[Any]) -> PastFile:
    """A past file with these tags, and those of the snapshots that they name."""
    by_id = {s["snapshot-id"]: s for s in snapshots}
    named_snapshots = [by_id[id_] for id_ in dict.fromkeys(tags.values())]
    newest = named_snapshots[-1]["snapshot-id"]
    refs = {catalog_tags.tag(position): {"snapshot-id": id_, "type": "tag"} for position, id_ in tags.items()}
    content = {
        **metadata,
        "current-snapshot-id": newest,
        "refs": {MAIN: {"snapshot-id": newest, "type": "branch"}, **refs},
        "snapshots": named_snapshots,
        "snapshot-log": [{"snapshot-id": newest, "timestamp-ms": named_snapshots[-1]["timestamp-ms"]}],
        "metadata-log": [],
        "statistics": [],
        "partition-statistics": [],
        "last-updated-ms": int(max(time.time() * 1000, metadata["last-updated-ms"])),
    }
    content = catalog_metadata.with_properties(content, {PAST_PROPERTY: None})
    first, last = min(tags), max(tags)
    location = f"{metadata['location']}/metadata/past-{first:X}-{last:X}-{uuid.uuid4()}.metadata.json"
    lake_files.write_new(location, json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode())
    return PastFile(location, first, last, len(tags), int(by_id[tags[first]]["timestamp-ms"]))


def point_snapshots(metadata: Metadata) -> list[Metadata]:
    """The snapshots that tags of `commits`' own metadata, or of a past file, name: one a point."""
    by_id = {s["snapshot-id"]: s for s in metadata.get("snapshots", ())}
    snapshots = (by_id.get(id_) for id_ in catalog_tags.tags(metadata).values())
    return [snapshot for snapshot in snapshots if snapshot and LSN in catalog_metadata.summary(snapshot)]


# Snapshots of a table that nobody can name any more.


def without_unused_snapshots(metadata: Metadata, unused_seconds: float) -> Metadata:
    """A table without the snapshots that nobody can name any more."""
    oldest = time.time() * 1000 - unused_seconds * 1000
    until = _last_current(metadata)
    recent = {s["snapshot-id"] for s in metadata.get("snapshots", ()) if until[s["snapshot-id"]] >= oldest}
    return catalog_metadata.without_unreferenced(metadata, recent | set(_down_to_a_point(metadata)))


def _last_current(metadata: Metadata) -> dict[int, float]:
    """Snapshot id → until when it was main's, in ms since 1970; when it was made, if it never was."""
    log = metadata.get("snapshot-log", [])
    ends = [*(entry["timestamp-ms"] for entry in log[1:]), time.time() * 1000]
    made_ms = {s["snapshot-id"]: float(s["timestamp-ms"]) for s in metadata.get("snapshots", ())}
    return made_ms | {entry["snapshot-id"]: float(end) for entry, end in zip(log, ends, strict=True)}


def _down_to_a_point(metadata: Metadata) -> Iterator[int]:
    """Main's newest snapshots, down to the one of a point."""
    for snapshot in catalog_metadata.ancestry(metadata, MAIN):
        yield snapshot["snapshot-id"]
        if catalog_metadata.LSN in catalog_metadata.summary(snapshot):
            return
