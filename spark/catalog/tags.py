"""Tags: the snapshots of kept consistency points, by name, in every table.

A point's tag is its LSN as PostgreSQL writes it, with an underscore for the slash: ``lsn_0_1A2B3C4D``.
Two things follow from it: any reader of Iceberg can name the point, and no expiry of snapshots takes
away what the point needs.

Which points are kept, the tags of `commits` say (spark/publish/points.py).  Another table gets its tags when
a
point changes it, in the metadata file that is written anyway: the new point's, and those of the points
since its last change, which left it as it was.  So a table that no point touches costs nothing; what it
was at the points since its last tag is what it is now.

Invariant: a table's newest tag that is not younger than the oldest kept point stays, so every kept
point finds the table's snapshot: that of its newest tag at or before it.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import Metadata

_TAG = re.compile(r"lsn_([0-9A-F]{1,8})_([0-9A-F]{1,8})")


def tag(position: int) -> str:
    """The name of a point's tag."""
    return "lsn_" + format_lsn(position).replace("/", "_")


def tags(metadata: Metadata) -> dict[int, int]:
    """Position → snapshot id of a table's tags, oldest first."""
    positions = {}
    for name, ref in metadata.get("refs", {}).items():
        match = _TAG.fullmatch(name)
        if match and ref.get("type") == "tag":
            positions[parse_lsn(f"{match[1]}/{match[2]}")] = int(ref["snapshot-id"])
    return dict(sorted(positions.items()))


def tagged(metadata: Metadata, before: Metadata, position: int, keep_positions: Collection[int]) -> Metadata:
    """A table that a point changed, with the tags that it should have.

    Args:
        before: the table as it was; empty if the point made it.
        keep_positions: positions of all points that are kept, this one among them if it is.
    """
    tags_by_position = tags(metadata)
    last = catalog_metadata.newest_of_a_point(before)
    if last is not None:  # not what may lie on top of it, a compaction: rows of `commits` name this one
        since = catalog_metadata.newest_position(before) or 0
        unchanged = {point: int(last["snapshot-id"]) for point in keep_positions if since <= point < position}
        tags_by_position = unchanged | tags_by_position
    after = catalog_metadata.ref(metadata, catalog_metadata.MAIN)
    if position in keep_positions and after is not None:
        tags_by_position[position] = after
    oldest = min(keep_positions, default=position)
    floor = max((point for point in tags_by_position if point <= oldest), default=oldest)
    return _with_tags(metadata, {point: id_ for point, id_ in tags_by_position.items() if point >= floor})


def at(metadata: Metadata, position: int) -> int | None:
    """The snapshot of a table's newest tag at or before a position."""
    reached = [snapshot for point, snapshot in tags(metadata).items() if point <= position]
    return reached[-1] if reached else None


def _with_tags(metadata: Metadata, tags_by_position: dict[int, int]) -> Metadata:
    names = {tag(point) for point in tags(metadata)}
    refs = {name: ref for name, ref in metadata.get("refs", {}).items() if name not in names}
    refs |= {tag(point): {"snapshot-id": id_, "type": "tag"} for point, id_ in tags_by_position.items()}
    return {**metadata, "refs": refs}
