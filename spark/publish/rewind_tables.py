"""Tables that are ahead of `commits` go back to where readers see them at the position that it says.

There are some where tables are published one after another and that was ended in between, or where `commits`
has lost its newest point.  The next run goes on from there, but only with the very same batch; a recovery has
another one.  Invariant: no file is written or removed, and no reader is moved, for readers look at the
position that `commits` says, where these tables were not yet.
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
from slotlake.spark.publish.rewind_position import lower
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import LSN, MAIN, STAGE, Metadata
from slotlake.spark.tables.schema import PIPELINE_PROPERTY
from slotlake.spark.tables.settle import with_past_shape


def ahead(lake: LakeSettings, pipeline: str) -> list[LakeName]:
    """The tables that are ahead of `commits`."""
    with open_catalog(lake) as catalog:
        return [table.name for table in _ahead(catalog.pointers(), lake, pipeline)[0]]


def take_back(lake: LakeSettings, pipeline: str) -> list[LakeName]:
    """Move tables that are ahead of `commits` back; which those are.

    Raises:
        LakeError: someone else changed a table meanwhile; nothing was moved.
    """
    with open_catalog(lake) as catalog:
        found, position = _ahead(catalog.pointers(), lake, pipeline)
        moved = {table.name: _taken_back(table.metadata, position) for table in found}
        catalog.move([catalog.prepared(t, back) for t in found if (back := moved[t.name]) is not None])
    if any(back is None for back in moved.values()):
        lower(lake, pipeline, position)  # what these hold counts as of this position
    return [table.name for table in found]


def _ahead(pointers: Mapping[LakeName, str], lake: LakeSettings, pipeline: str) -> tuple[list[Loaded], int]:
    """The tables, and where `commits` stands, which is asked first."""
    position = catalog_metadata.newest_position(load(pointers, commits_name(lake.namespace)).metadata) or 0
    names = sorted(name for name in pointers if belongs(name.namespace, lake.namespace))
    tables = [load(pointers, name) for name in names]
    own = [t for t in tables if t.metadata.get("properties", {}).get(PIPELINE_PROPERTY) == pipeline]
    return [t for t in own if (catalog_metadata.newest_position(t.metadata) or 0) > position], position


def _taken_back(metadata: Metadata, position: int) -> Metadata | None:
    """The table as it was at a position, in its shape of then; None if that is not there any more."""
    pin = _seen_at(metadata, position)
    shaped = None if pin is None else with_past_shape(metadata, pin, position)
    if pin is None or shaped is None:
        return None
    gone = {catalog_tags.tag(point) for point in catalog_tags.tags(metadata) if point > position}
    shaped = without_points_above(shaped, position)
    kept = {**shaped, "refs": {n: ref for n, ref in shaped.get("refs", {}).items() if n not in gone}}
    return catalog_metadata.with_ref(catalog_metadata.with_ref(kept, MAIN, pin), STAGE, None)


def _seen_at(metadata: Metadata, position: int) -> int | None:
    """The snapshot that readers see at a position."""
    for snapshot in catalog_metadata.ancestry(metadata):
        lsn = catalog_metadata.summary(snapshot).get(LSN)
        if lsn is not None and parse_lsn(lsn) <= position:
            return int(snapshot["snapshot-id"])
    found = catalog_tags.at(metadata, position)
    return found if catalog_metadata.snapshot(metadata, found) else None
