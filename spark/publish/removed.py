"""A point without some tables: what is then dropped from the catalog is missed by nobody.

The newest row of `commits` names the snapshot of every table, and a table that it names and the catalog lacks
counts as dropped by somebody else (spark/maintenance/integrity.py).  So the row goes first.
"""

from __future__ import annotations

from collections.abc import Collection

from slotlake.decoder.lsn import format_lsn
from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName, lake_table
from slotlake.spark.publish.aside import Name, Record
from slotlake.spark.publish.commits import Point, commits_name, pins_of, position_of
from slotlake.spark.publish.lives import Event
from slotlake.spark.publish.points import positions_to_keep
from slotlake.spark.publish.swap import point_move

_KIND = "removed"


def publish_without(
    lake: LakeSettings, pipeline: str, tables: Collection[LakeName], names: Collection[Name]
) -> None:
    """Publish a point at the lake's position that has not these tables, unless the newest is one.

    Args:
        names: the source's names, by which they may be set aside.

    Raises:
        LakeError: someone else changed the lake meanwhile; nothing was changed.
    """
    name = commits_name(lake.namespace)
    with open_catalog(lake) as catalog:
        commits = load_one(catalog, name)
        pinned = [table for table in tables if table in pins_of(commits)]
        record = Record.of(commits.metadata)
        in_lake = frozenset(each for each in names if lake_table(lake.namespace, *each) in pinned)
        concerned = [each for each in names if each in in_lake or each in record.lives]
        remaining = record.after(dict.fromkeys(concerned, Event.REMOVED), in_lake=in_lake)
        if not pinned and remaining == record:
            return
        position = position_of(commits.metadata, name)
        batch = f"removed-{format_lsn(position).replace('/', '_')}-{'-'.join(map(str, sorted(tables)))}"
        changed = dict.fromkeys(map(str, pinned), 0)
        point = Point(pipeline, position, batch, "", _KIND, changed=changed)
        keep = positions_to_keep(commits.metadata, position, False, lake.keep)
        catalog.move([point_move(catalog, commits, point, {}, keep, remaining, without=tables)])
