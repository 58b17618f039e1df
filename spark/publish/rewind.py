"""Takes the lake's position back to a lower one, its content unchanged.

A server that was restored from a backup, or another cluster in its place, stands before the position that the
lake has reached.  Every table's main gets a snapshot on top with the very same files, which names the lower
position; the points above it could not be told from later ones any more, and are removed.  All tables change
in one catalog transaction; where the catalog has no such transaction, `commits` is the last.

Invariant: no data file is written or removed, and readers of `latest` see the same rows before and after.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.spark.catalog import tags as catalog_tags
from slotlake.spark.catalog.base import Loaded, load
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName, belongs
from slotlake.spark.publish.commits import ABANDONED_PROPERTY, commits_name
from slotlake.spark.publish.past import without_points_above
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.manifests import with_snapshot_on_top
from slotlake.spark.tables.metadata import LSN, MAIN, STAGE, Metadata
from slotlake.spark.tables.schema import PIPELINE_PROPERTY
from slotlake.spark.tables.settle import HISTORY_PROPERTY, with_past_shape


def rewind_position(lake: LakeSettings, pipeline: str, position: int) -> list[LakeName]:
    """Take the lake's position back to a lower one; return the tables that were above it.

    Raises:
        LakeError: someone else changed a table meanwhile; nothing was moved.
    """
    with open_catalog(lake) as catalog:
        pointers = catalog.pointers()
        commits = commits_name(lake.namespace)
        names = [name for name in pointers if belongs(name.namespace, lake.namespace)]
        # `commits` is the last: where tables go down one after another, a reader begins with it.
        tables = [load(pointers, name) for name in sorted(names, key=lambda name: (name == commits, name))]
        own = [t for t in tables if t.metadata.get("properties", {}).get(PIPELINE_PROPERTY) == pipeline]
        above = [t for t in own if (catalog_metadata.newest_position(t.metadata) or 0) > position]
        catalog.move(
            [catalog.prepared(t, _rewound(t.metadata, position, is_commits=t.name == commits)) for t in above]
        )
    return [table.name for table in above]


def _rewound(metadata: Metadata, position: int, *, is_commits: bool) -> Metadata:
    """The metadata with the files of main's at another position, also where their list is damaged."""
    removed_tags = {catalog_tags.tag(point) for point in catalog_tags.tags(metadata) if point > position}
    remaining = {name: ref for name, ref in metadata.get("refs", {}).items() if name not in removed_tags}
    point = catalog_metadata.summary(catalog_metadata.newest_of_a_point(metadata))
    entries = {key: value for key, value in point.items() if key.startswith("slotlake.")}
    moved = with_snapshot_on_top(
        {**metadata, "refs": remaining}, {**entries, LSN: format_lsn(position)}, come_past_damage=True
    )
    if not is_commits:  # what it holds at the points until it is changed; a tag of `commits` would be a point
        tag = {"snapshot-id": catalog_metadata.ref(moved, MAIN), "type": "tag"}
        moved = {**moved, "refs": {**moved["refs"], catalog_tags.tag(position): tag}}
    moved = catalog_metadata.with_ref(moved, STAGE, None)
    moved = catalog_metadata.with_properties(moved, _properties(metadata, position, is_commits=is_commits))
    return without_points_above(moved, position)


def _properties(metadata: Metadata, position: int, *, is_commits: bool) -> dict[str, str | None]:
    properties = metadata.get("properties", {})
    changed: dict[str, str | None] = {}
    if is_commits:
        abandoned = json.loads(properties.get(ABANDONED_PROPERTY, "[]"))
        now = datetime.now(UTC).isoformat()
        changed[ABANDONED_PROPERTY] = json.dumps([*abandoned, {"lsn": format_lsn(position), "at": now}])
    shapes = json.loads(properties.get(HISTORY_PROPERTY, "[]"))
    below = [entry for entry in shapes if parse_lsn(entry["lsn"]) <= position]
    if len(below) < len(shapes):  # the present shape is the newest of those above
        rewound = [
            *(e for e in below if parse_lsn(e["lsn"]) < position),
            shapes[-1] | {"lsn": format_lsn(position)},
        ]
        changed[HISTORY_PROPERTY] = json.dumps(rewound, ensure_ascii=False)
    return changed


# Takes tables that are ahead of `commits` back to where readers see them: at the position of `commits`.
#
# Tables are ahead where they are published one after another and the run ended in between, or where
# `commits` has lost its newest point.  The next run could go on from there, but only with the very same
# batch; a recovery has another one.  Invariant: no file is written or removed, and no reader is moved,
# because readers use the position of `commits`, at which these tables were not changed yet.


def ahead(lake: LakeSettings, pipeline: str) -> list[LakeName]:
    """The tables that are ahead of `commits`."""
    with open_catalog(lake) as catalog:
        return [table.name for table in _ahead(catalog.pointers(), lake, pipeline)[0]]


def rewind_tables(lake: LakeSettings, pipeline: str) -> list[LakeName]:
    """Take tables that are ahead of `commits` back; return their names.

    Raises:
        LakeError: someone else changed a table meanwhile; nothing was moved.
    """
    with open_catalog(lake) as catalog:
        tables, position = _ahead(catalog.pointers(), lake, pipeline)
        moved = {table.name: _as_of(table.metadata, position) for table in tables}
        catalog.move([catalog.prepared(t, back) for t in tables if (back := moved[t.name]) is not None])
    if any(back is None for back in moved.values()):
        rewind_position(lake, pipeline, position)  # what these hold counts as of this position
    return [table.name for table in tables]


def _ahead(pointers: Mapping[LakeName, str], lake: LakeSettings, pipeline: str) -> tuple[list[Loaded], int]:
    """The tables, and where `commits` stands, which is asked first."""
    position = catalog_metadata.newest_position(load(pointers, commits_name(lake.namespace)).metadata) or 0
    names = sorted(name for name in pointers if belongs(name.namespace, lake.namespace))
    tables = [load(pointers, name) for name in names]
    own = [t for t in tables if t.metadata.get("properties", {}).get(PIPELINE_PROPERTY) == pipeline]
    return [t for t in own if (catalog_metadata.newest_position(t.metadata) or 0) > position], position


def _as_of(metadata: Metadata, position: int) -> Metadata | None:
    """The table as it was at a position, in its shape of then; None if that is not there any more."""
    pin = _snapshot_at(metadata, position)
    shaped = None if pin is None else with_past_shape(metadata, pin, position)
    if pin is None or shaped is None:
        return None
    removed_tags = {catalog_tags.tag(point) for point in catalog_tags.tags(metadata) if point > position}
    shaped = without_points_above(shaped, position)
    reduced = {
        **shaped,
        "refs": {n: ref for n, ref in shaped.get("refs", {}).items() if n not in removed_tags},
    }
    return catalog_metadata.with_ref(catalog_metadata.with_ref(reduced, MAIN, pin), STAGE, None)


def _snapshot_at(metadata: Metadata, position: int) -> int | None:
    """The snapshot that readers see at a position."""
    for snapshot in catalog_metadata.ancestry(metadata):
        lsn = catalog_metadata.summary(snapshot).get(LSN)
        if lsn is not None and parse_lsn(lsn) <= position:
            return int(snapshot["snapshot-id"])
    tagged = catalog_tags.at(metadata, position)
    return tagged if catalog_metadata.snapshot(metadata, tagged) else None
