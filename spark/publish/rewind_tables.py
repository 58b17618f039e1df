"""Takes tables that are ahead of `commits` back to where readers see them: at the position of `commits`.

Tables are ahead where they are published one after another and the run ended in between, or where `commits`
has lost its newest point.  The next run could go on from there, but only with the very same batch; a recovery
has another one.  Invariant: no file is written or removed, and no reader is moved, because readers use the
position of `commits`, at which these tables were not changed yet.
"""

from __future__ import annotations

from collections.abc import Mapping

from slotlake.decoder.lsn import parse_lsn
from slotlake.spark.catalog import tags as catalog_tags
from slotlake.spark.catalog.base import Loaded, load
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName, belongs
from slotlake.spark.publish.commits import commits_name
from slotlake.spark.publish.past import without_points_above
from slotlake.spark.publish.rewind_position import rewind_position
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import LSN, MAIN, STAGE, Metadata
from slotlake.spark.tables.schema import PIPELINE_PROPERTY
from slotlake.spark.tables.settle import with_past_shape


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
        moved = {table.name: _rewound(table.metadata, position) for table in tables}
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


def _rewound(metadata: Metadata, position: int) -> Metadata | None:
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
