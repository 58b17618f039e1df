"""After a major upgrade of the server: go on with the slot that pg_upgrade has brought along.

The new cluster has another system identifier and counts its WAL from a higher position.  If it is proven that
the lake has everything before the kept slot (`decoder.slots.upgraded`), the lake's tables get the catalog
fingerprints of the new cluster, and an empty batch takes the lake to the slot's position.  Invariant: a table
of which the new catalog does not show that it is the same keeps its old fingerprint, so the next batch copies
it again.  A run that is killed in between does all of it again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import psycopg

from slotlake.decoder.catalog.type_texts import LONG_LSN
from slotlake.decoder.changelog.batches import Batch, batch_starting_at
from slotlake.decoder.changelog.writer import BatchWriter
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.source import identify, source_session
from slotlake.decoder.slots.upgraded import is_older
from slotlake.decoder.stream.preflight import identity_of
from slotlake.infra.source.fingerprints import CatalogFingerprint, fingerprints_at
from slotlake.infra.source.history import remove_batch, upgraded_slot
from slotlake.infra.source.partitions import upgraded_partitions
from slotlake.infra.sync.batch_steps import BatchSteps

if TYPE_CHECKING:
    from slotlake.decoder.catalog.fingerprints import TableFingerprint
    from slotlake.decoder.server.source import SourceSettings
    from slotlake.decoder.server.timeline import AnotherClusterError
    from slotlake.decoder.slots.upgraded import UpgradedSlot
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.tables.schema import TableSchema

_log = logging.getLogger(__name__)
_XID: Final = re.compile(r"\d+")
_LABEL: Final = re.compile(r"(e\d+):(\d+)")  # of an enum, `decoder.catalog.type_texts`
_ENTRIES = """
SELECT 'table ' || oid, xmin::text FROM pg_publication_rel
UNION ALL SELECT 'all ' || oid, xmin::text FROM pg_publication
UNION ALL SELECT 'schema ' || oid, xmin::text FROM pg_publication_namespace
"""


def go_on_upgraded(pipeline: OpenPipeline, position: int, error: AnotherClusterError) -> int:
    """Take the lake to the slot that pg_upgrade has kept, and return that position.

    Args:
        pipeline: the pipeline, whose server is of another cluster than its lake.
        error: what says so.

    Raises:
        HistoryError: it is not proven that nothing is missing; nothing was changed.
    """
    from slotlake.spark.publish.shape import write_schemas

    slot = upgraded_slot(pipeline, position, error)
    shapes = list(_shapes(pipeline.lake, pipeline.source, slot))
    if shapes:
        write_schemas(pipeline.lake, shapes)
    batch = _batch_between(pipeline, position, slot.position)
    BatchSteps(pipeline).apply_named(batch.name)
    BatchSteps(pipeline).publish_named(batch.name)
    _log.warning(
        "the server was upgraded, and slot %s was kept: the lake goes on from %s; %s tables are the same",
        pipeline.source.slot, format_lsn(slot.position), len(shapes),
    )  # fmt: skip
    return slot.position


def _batch_between(pipeline: OpenPipeline, position: int, end: int) -> Batch:
    """An empty batch of the new cluster; whatever else began at the lake's position was empty too."""
    changelog = pipeline.file.changelog_dir
    identity = identity_of(identify(pipeline.source.dsn), pipeline.name, pipeline.source)
    waiting = batch_starting_at(changelog, position)
    if waiting is not None and waiting.manifest["system_identifier"] == identity.system_identifier:
        return waiting
    if waiting is not None:
        remove_batch(waiting.path)
    return BatchWriter(changelog, identity, position).finish(end, {})


def _shapes(lake: LakeSettings, source: SourceSettings, slot: UpgradedSlot) -> Iterator[TableSchema]:
    """The lake's tables that are the same in the new cluster, with what its catalog says of them."""
    from slotlake.spark.read.point import ReadPoint

    tables = [
        (table, before)
        for table in ReadPoint.latest(lake).tables()
        if (before := CatalogFingerprint.from_json(table.fingerprint)) is not None
    ]
    now = fingerprints_at(source, {before.relation_id for _, before in tables}, None)
    with source_session(source.dsn, "reading the publications and partitions") as connection:
        entries = _entries_of_upgrade(connection, slot)
        for table, before in tables:
            after = now.get(before.relation_id)
            if after is not None and _is_same(before, after, entries, slot):
                fingerprint = CatalogFingerprint.of(after, before.since.keys(), before).to_json()
                partitions = upgraded_partitions(connection, table, lambda xid: is_older(xid, slot.first_xid))
                yield replace(table, fingerprint=fingerprint, partitions=partitions)


def _entries_of_upgrade(connection: psycopg.Connection[Any], slot: UpgradedSlot) -> set[str]:
    """The entries of publications that pg_upgrade has made."""
    rows = connection.execute(_ENTRIES).fetchall()
    return {str(entry) for entry, xid in rows if is_older(int(xid), slot.first_xid)}


def _is_same(
    before: CatalogFingerprint, now: TableFingerprint, entries: set[str], slot: UpgradedSlot
) -> bool:
    """Whether nothing of a table's description or rows was changed after the slot was made.

    Args:
        before: what the lake's table agrees with.
        now: what the new cluster's catalog says.
        entries: the publications' entries that pg_upgrade has made.
        slot: the one that pg_upgrade has made.
    """
    described = [now.attributes.get(number) for number in before.since]
    if now.storage != before.storage or None in described:
        return False
    if len(now.members) != len(before.members) or not entries >= now.members:
        return False
    if any(LONG_LSN in now.attributes[n].texts - before.texts.get(n, frozenset()) for n in before.since):
        return False  # the new version prints the values in another way
    texts = {number: now.attributes[number].texts for number in before.texts}
    xids = [
        *(each.since for each in described if each is not None),
        *(xid for way in now.ways.values() for xid in _XID.findall(way)),
        *(match[2] for each in texts.values() for match in _labels(each)),
    ]
    return all(is_older(int(xid), slot.first_xid) for xid in xids) and all(
        _without_xids(before.texts[number]) <= _without_xids(each) for number, each in texts.items()
    )


def _labels(traits: Iterable[str]) -> list[re.Match[str]]:
    return [match for trait in traits if (match := _LABEL.fullmatch(trait)) is not None]


def _without_xids(traits: Iterable[str]) -> set[str]:
    return {match[1] if (match := _LABEL.fullmatch(trait)) is not None else trait for trait in traits}
