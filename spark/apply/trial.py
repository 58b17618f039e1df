"""A batch staged for some tables only, to be looked at before it is decided what the batch brings them.

Invariant: nothing of it is ever published; what is staged is thrown away, here or by who stages next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from slotlake.spark.apply.stage import apply_batch
from slotlake.spark.apply.together import Engine
from slotlake.spark.catalog.base import Loaded
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.fold.conflicts import Choices
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName, postgres_name
from slotlake.spark.publish.derived_tables import load_derived_tables
from slotlake.spark.publish.sidecar import BatchSidecar
from slotlake.spark.publish.swap import load, reset_stage
from slotlake.spark.read.pinned import Pinned
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import MAIN, STAGE, Metadata
from slotlake.spark.tables.schema import TableSchema, schema_of
from slotlake.spark.tables.settle import with_shape
from slotlake.spark.tables.shapes import ChangeBatch


@dataclass(frozen=True)
class _Staged(Pinned):
    """A table as it would be if what is staged of it were published."""

    loaded: Loaded

    @cached_property
    def location(self) -> str:
        """The pointer: what is staged is in no file of the past."""
        return self.pointer

    @cached_property
    def metadata(self) -> Metadata:
        """Main moved to what is staged."""
        before = self.loaded.metadata
        moved = catalog_metadata.with_ref(before, MAIN, catalog_metadata.ref(before, STAGE))
        return with_shape(moved, self.position, ())

    @cached_property
    def properties(self) -> dict[str, str]:
        """The table's properties."""
        properties: dict[str, str] = self.metadata.get("properties", {})
        return properties

    @cached_property
    def snapshot(self) -> Metadata | None:
        """What is staged."""
        return catalog_metadata.head(self.metadata)

    @cached_property
    def schema_id(self) -> int:
        """The Iceberg schema that it will have."""
        return int(self.metadata["current-schema-id"])

    @cached_property
    def shape(self) -> TableSchema:
        """The shape that it will have."""
        return schema_of(self.metadata, self.name)


@contextmanager
def staged_trial(
    engine: Engine,
    lake: LakeSettings,
    batch: ChangeBatch,
    pipeline: str,
    choices: Choices,
    sidecar: BatchSidecar,
    tables: Collection[str],
) -> Iterator[ReadPoint]:
    """The lake as it would be if the batch were published, of some of its tables.

    Raises:
        ApplyError: the batch holds a change of theirs that the lake cannot, or may not, take.
        LakeError: Spark failed, or the lake cannot be reached.
    """
    others = {postgres_name(r.schema, r.table) for r in batch.relations} - set(tables)
    reduced = replace(sidecar, passed_over=sidecar.passed_over | others, copies=())
    before = ReadPoint.latest(lake)
    names = [before.find(table) for table in tables]
    try:
        apply_batch(engine, lake, batch, pipeline, choices, reduced)
        with open_catalog(lake) as catalog:
            pointers = catalog.pointers()
            loaded = {name: load(pointers, name) for name in names}
        pinned: dict[LakeName, Pinned] = dict(before.pinned)
        for name, table in loaded.items():
            pinned[name] = _Staged(name, table.location, batch.end_lsn, table)
        yield ReadPoint(lake, batch.end_lsn, pinned)
    finally:
        _clear_stage(lake, names)


def _clear_stage(lake: LakeSettings, names: Collection[LakeName]) -> None:
    with open_catalog(lake) as catalog:
        pointers = catalog.pointers()
        for name in names:
            reset_stage(catalog, [load(pointers, name), *load_derived_tables(pointers, name).values()])
