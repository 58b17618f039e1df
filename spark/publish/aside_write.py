"""Sets tables aside in the lake, and takes them off that record (spark/publish/aside.py): one change."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from slotlake.decoder.lsn import format_lsn
from slotlake.spark.catalog.base import load, load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import lake_table
from slotlake.spark.publish.aside import ASIDE_PROPERTY, Aside, Name, entries_in, with_entries
from slotlake.spark.publish.commits import Point, commits_name, position_of
from slotlake.spark.publish.points import positions_to_keep
from slotlake.spark.publish.swap import point_move
from slotlake.spark.tables import metadata as catalog_metadata

_KIND = "set_aside"


def write(lake: LakeSettings, pipeline: str, entries: Sequence[Aside]) -> None:
    """Set tables aside, or update the record of tables that are.

    Raises:
        LakeError: someone else changed the lake meanwhile; nothing was changed.
    """
    name = commits_name(lake.namespace)
    with open_catalog(lake) as catalog:
        tables = [lake_table(lake.namespace, *each.name) for each in entries]
        pointers = catalog.pointers_of([name, *tables])
        commits = load(pointers, name)
        before = entries_in(commits.metadata)
        record = before | {each.name: each for each in entries}
        new = [each for each in entries if each.name not in before]
        moves = []
        for each in new:
            table = lake_table(lake.namespace, *each.name)
            if table in pointers:
                loaded = load(pointers, table)
                properties: dict[str, str | None] = {
                    ASIDE_PROPERTY: f"since {format_lsn(each.lsn or 0)}: {each.what}"
                }
                moves.append(
                    catalog.prepared(loaded, catalog_metadata.with_properties(loaded.metadata, properties))
                )
        if new:
            point = _point(pipeline, position_of(commits.metadata, name), new, lake.namespace)
            keep_positions = positions_to_keep(commits.metadata, point.position, False, lake.keep)
            last = point_move(catalog, commits, point, {}, keep_positions, record)
        else:
            last = catalog.prepared(commits, with_entries(commits.metadata, record))
        catalog.move([*moves, last])


def forget(lake: LakeSettings, names: Collection[Name]) -> None:
    """Remove tables that the lake does not have from the record: they will be copied like new tables.

    Raises:
        LakeError: someone else changed the lake meanwhile; nothing was changed.
    """
    with open_catalog(lake) as catalog:
        commits = load_one(catalog, commits_name(lake.namespace))
        remaining = {name: each for name, each in entries_in(commits.metadata).items() if name not in names}
        catalog.move([catalog.prepared(commits, with_entries(commits.metadata, remaining))])


def _point(pipeline: str, position: int, entries: Sequence[Aside], namespace: str) -> Point:
    names = [str(lake_table(namespace, *each.name)) for each in entries]
    batch = f"aside-{format_lsn(position).replace('/', '_')}-{entries[0].source_name}"
    return Point(pipeline, position, batch, "", _KIND, changed=dict.fromkeys(names, 0))
