"""Writes the record of tables that are not simply followed (spark/publish/aside.py): one change each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from slotlake.decoder.lsn import format_lsn
from slotlake.spark.catalog.base import load, load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import lake_table
from slotlake.spark.publish.aside import ASIDE_PROPERTY, Aside, Name, Record
from slotlake.spark.publish.commits import Point, commits_name, position_of
from slotlake.spark.publish.lives import Event
from slotlake.spark.publish.points import positions_to_keep
from slotlake.spark.publish.swap import point_move
from slotlake.spark.tables import metadata as catalog_metadata

_KIND = "set_aside"


def write(lake: LakeSettings, pipeline: str, entries: Sequence[Aside], event: Event) -> None:
    """Set tables aside, or update the record of tables that are.

    Args:
        event: what happens to them.

    Raises:
        LakeError: someone else changed the lake meanwhile, or this cannot happen to a table; nothing was
            changed.
    """
    name = commits_name(lake.namespace)
    with open_catalog(lake) as catalog:
        tables = [lake_table(lake.namespace, *each.name) for each in entries]
        pointers = catalog.pointers_of([name, *tables])
        commits = load(pointers, name)
        before = Record.of(commits.metadata)
        by_name = {each.name: each for each in entries}
        in_lake = frozenset(each.name for each in entries if each.lsn is not None)
        record = before.after(dict.fromkeys(by_name, event), by_name, in_lake)
        new = [each for each in entries if each.name not in before.entries]
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
            last = catalog.prepared(commits, record.written_to(commits.metadata))
        catalog.move([*moves, last])


def forget(lake: LakeSettings, names: Collection[Name]) -> None:
    """Remove tables that the lake does not have from the record: they will be copied like new tables.

    Raises:
        LakeError: someone else changed the lake meanwhile; nothing was changed.
    """
    with open_catalog(lake) as catalog:
        commits = load_one(catalog, commits_name(lake.namespace))
        record = Record.of(commits.metadata).after(dict.fromkeys(names, Event.REMOVED))
        catalog.move([catalog.prepared(commits, record.written_to(commits.metadata))])


def note_joining(lake: LakeSettings, events: Mapping[Name, Event]) -> None:
    """Write what happens to tables that join, if it changes their lives.

    Raises:
        LakeError: someone else changed the lake meanwhile, or this cannot happen to a table; nothing was
            changed.
    """
    name = commits_name(lake.namespace)
    with open_catalog(lake) as catalog:
        pointers = catalog.pointers_of([name])
        if name not in pointers:  # `drop` gives copies up also where the lake is gone
            return
        commits = load(pointers, name)
        before = Record.of(commits.metadata)
        record = before.after(events)
        if record != before:
            catalog.move([catalog.prepared(commits, record.written_to(commits.metadata))])


def _point(pipeline: str, position: int, entries: Sequence[Aside], namespace: str) -> Point:
    names = [str(lake_table(namespace, *each.name)) for each in entries]
    batch = f"aside-{format_lsn(position).replace('/', '_')}-{entries[0].source_name}"
    return Point(pipeline, position, batch, "", _KIND, changed=dict.fromkeys(names, 0))
