"""Publishes a batch: what apply staged becomes what readers see, in one catalog transaction.

Also what apply and publish both ask of a batch: which point it leads to, which tables it touches,
and whether the lake still lacks it.  Needs no Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType

from slotlake.decoder.errors import LakeError
from slotlake.decoder.server.timeline import Origin
from slotlake.spark import exchange
from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import Catalog, open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName, lake_table, parse_postgres_name, postgres_name
from slotlake.spark.publish.absent import refuse_absent
from slotlake.spark.publish.aside import Name
from slotlake.spark.publish.commits import Point, commits_name
from slotlake.spark.publish.derived_tables import SUFFIXES, derived_table_names, with_derived_names
from slotlake.spark.publish.sidecar import NOTHING, BatchSidecar
from slotlake.spark.publish.swap import (
    Published,
    is_published,
    lake_position,
    publish_tables,
    require_position,
)
from slotlake.spark.tables.schema import TableSchema
from slotlake.spark.tables.shapes import BatchRelation, ChangeBatch

__all__ = ["Published", "lake_position", "pending", "point_of", "publish_batch"]


class DerivedGoneError(LakeError):
    """Derived tables were dropped since a batch was staged in them; nothing was published.

    Attributes:
        gone: their names.
    """

    gone: Sequence[LakeName] = ()


def pending(lake: LakeSettings, batch: ChangeBatch, pipeline: str) -> bool:
    """Return whether the lake still lacks this batch; only Iceberg is asked.

    Raises:
        ApplyError: the batch does not follow what the lake holds.
    """
    with open_catalog(lake) as catalog:
        return is_pending(catalog, point_of(batch, pipeline), batch.start_lsn)


def publish_batch(
    lake: LakeSettings,
    batch: ChangeBatch,
    pipeline: str,
    sidecar: BatchSidecar = NOTHING,
    staged: Mapping[LakeName, Name] = MappingProxyType({}),
) -> Published:
    """Publish what :func:`spark.apply.stage.apply_batch` staged for this batch. Needs no Spark.

    Tables that the lake does not have yet are passed over, as apply did.

    Args:
        staged: tables that were staged, as far as that is known, with the source's schema and name: the
            lake must still have them. Derived tables only if it is to have them.

    Raises:
        DerivedGoneError: derived tables were dropped since they were staged; the batch can be published
            without them.
        LakeError: something of the batch is not staged, or the lake was moved by someone else
            meanwhile; nothing has been moved. It names a mirror that the catalog lacks, and the newest
            point has.
    """
    point = point_of(batch, pipeline)
    changed = touched_tables(lake, batch, sidecar)
    with open_catalog(lake) as catalog:
        pointers = catalog.pointers_of(with_derived_names(changed))
        if any(name not in pointers for name in (*changed, *staged)) and is_pending(
            catalog, point, batch.start_lsn
        ):
            refuse_absent(catalog, changed, pointers)
            _refuse_gone_derived(changed, pointers, staged)
        existing = sorted(name for name in changed if name in pointers)
        # One after another, a mirror that is ahead would hide how what is beside it must change.
        order = [each for name in existing for each in (*derived_table_names(pointers, name).values(), name)]
    rows = {str(name): sum(relation.rows for relation in changed[name]) for name in existing}
    copied_rows = {str(copy.schema.lake_name(lake.namespace)): copy.rows for copy in sidecar.copies}
    rows |= {name: count for name, count in copied_rows.items() if name in rows}
    published = publish_tables(lake, replace(point, changed=rows), order, start=batch.start_lsn)
    remove_folded_rows(lake, point)
    return published


def _mirror(name: LakeName) -> LakeName:
    """The mirror of a derived table; a mirror itself."""
    suffix = next((each for each in SUFFIXES.values() if name.table.lower().endswith(each)), "")
    return LakeName(name.namespace, name.table[: -len(suffix)]) if suffix else name


def _refuse_gone_derived(
    changed: Collection[LakeName], pointers: Mapping[LakeName, str], staged: Mapping[LakeName, Name]
) -> None:
    """Refuse to publish a batch without derived tables in which it was staged."""
    gone = sorted(name for name in staged if name not in pointers and _mirror(name) in changed)
    if not gone:
        return
    error = DerivedGoneError(
        "a derived table was dropped from the catalog by someone else, after the batch was applied to it and "
        "before it was published",
        where=f"table {', '.join(map(str, gone))}",
        way_out="run `slotlake sync`: it begins the table again; remove what is left in its directory before",
    ).of(*staged[min(gone)])
    error.gone = gone
    raise error


def point_of(batch: ChangeBatch, pipeline: str) -> Point:
    """The consistency point that a batch leads to."""
    oldest, committed = (batch.manifest.get(f"{which}_commit_time") for which in ("first", "last"))
    return Point(
        pipeline=pipeline,
        position=batch.end_lsn,
        batch=batch.name,
        digest=batch.digest,
        kind="batch",
        commit_time=datetime.fromisoformat(committed) if committed else None,
        transactions=int(batch.manifest.get("transactions", 0)),
        changes=int(batch.manifest.get("changes", 0)),
        origin=_origin(batch),
        prepared=batch.manifest.get("prepared", ()),
        settled=batch.manifest.get("resolved", ()),
        oldest_commit=datetime.fromisoformat(oldest) if oldest else None,
    )


def _origin(batch: ChangeBatch) -> Origin | None:
    manifest = batch.manifest
    is_known = "system_identifier" in manifest and "timeline" in manifest
    if not is_known:
        return None
    next_xid = str(manifest.get("next_xid", ""))
    return Origin(str(manifest["system_identifier"]), int(manifest["timeline"]), next_xid)


def is_pending(catalog: Catalog, point: Point, start: int) -> bool:
    """As :func:`pending`, within one connection to the catalog.

    Args:
        start: the position at which the batch begins.
    """
    name = commits_name(catalog.lake.namespace)
    commits = load_one(catalog, name)
    if is_published(commits.metadata, name, point):
        return False
    require_position(commits.metadata, name, point, start)
    return True


def touched_tables(
    lake: LakeSettings, batch: ChangeBatch, sidecar: BatchSidecar = NOTHING
) -> dict[LakeName, list[BatchRelation]]:
    """Return the relation versions with changes, by lake table, oldest first.

    A table that is only copied or promoted has an empty list.
    """
    relations: dict[LakeName, list[BatchRelation]] = {}
    for relation in batch.relations:
        if relation.rows and postgres_name(relation.schema, relation.table) not in sidecar.passed_over:
            name = TableSchema.of(relation).lake_name(lake.namespace)
            relations.setdefault(name, []).append(relation)
    for copy in sidecar.copies:
        relations.setdefault(copy.schema.lake_name(lake.namespace), [])
    for table in sidecar.promoted.keys() - sidecar.passed_over:
        relations.setdefault(lake_table(lake.namespace, *parse_postgres_name(table)), [])
    return relations


def folded_rows_parts(point: Point) -> tuple[str, str]:
    """Where under the warehouse's control directory folded rows go."""
    return point.pipeline, point.batch


def remove_folded_rows(lake: LakeSettings, point: Point) -> None:
    """Remove folded rows: Spark has read them, or a crashed attempt left them."""
    exchange.remove_directory(exchange.exchange_path(lake, *folded_rows_parts(point)))
