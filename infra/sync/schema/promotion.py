"""Widen columns in the lake that became wider at the source (``int`` to ``bigint``), where no value changed.

The server rewrites all rows for that, and nobody can see from outside whether ``USING`` gave them other
values.  So it is proven: the lake, as the batch leaves it with wider columns, is compared with the source, as
the snapshot at the batch's end shows it, by a hash of every row.  Where they are equal the batch is all that
the table needs.  Where they are not, or cannot be compared, the table is copied again.

Invariant: nothing is widened that was not compared whole, at the very LSN where it is published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.errors import ApplyError, LakeError
from slotlake.decoder.failpoints import reach
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.infra.config.of_tables import on_conflict
from slotlake.infra.copy.described import Described
from slotlake.infra.copy.tables import TableCopies
from slotlake.infra.selection.tables import comparable
from slotlake.infra.sync.schema.findings import Findings, sidecar_of
from slotlake.infra.sync.schema.rules import Verdict
from slotlake.spark.names import postgres_name

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.read.point import ReadPoint


class Promotion:
    """Copies that a look at the rows makes needless."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline = pipeline
        self._file, self._lake, self._source = pipeline.file, pipeline.lake, pipeline.source

    def without_needless_copies(
        self,
        batch: Batch,
        findings: Findings,
        snapshot: ExportedSnapshot,
        progress: Progressing,
    ) -> Findings:
        """Return the findings without the copies of tables that equal the source once columns are widened.

        Args:
            batch: ends where the snapshot is.
            findings: what the batch meets.
            snapshot: the snapshot that shows the source at the batch's end.
            progress: called with a line when tables are compared.
        """
        tables = comparable(list(findings.alternatives))
        if not tables:
            return findings
        described = Described.at(self._pipeline, snapshot, tables)
        tables = list(described.schemas)  # what changes meanwhile is copied after all
        tried = _promoted(
            replace(findings, copies={}), {table: findings.alternatives[table] for table in tables}
        )
        progress(f"compare {len(tables)} tables, before they are copied again", 0)
        equal = self._equal(batch, tried, snapshot, tables)
        unchanged = described.remaining()
        equal = [table for table in equal if table in unchanged]
        reach("evolve.compared")
        promoted = _promoted(findings, {table: findings.alternatives[table] for table in equal})
        return replace(promoted, copies={t: why for t, why in findings.copies.items() if t not in equal})

    def widen(self, findings: Findings, snapshot: ExportedSnapshot) -> None:
        """Publish the wider columns at the lake's position, where no batch does.

        Args:
            findings: what an empty batch met; its ``promotions`` name the columns.
            snapshot: the snapshot at which lake and source were compared.
        """
        from slotlake.spark.copy.replace import publish_wider_columns
        from slotlake.spark.read.point import ReadPoint
        from slotlake.spark.tables.change import with_types

        for table, types in findings.promotions.items():
            mirror = ReadPoint.latest(self._lake).schema(_name(table))
            schema = replace(with_types(mirror, types), fingerprint=findings.fingerprints[_name(table)])
            point = TableCopies(self._pipeline).copy_point(snapshot.lsn, "backfill", 0, schema.source_name)
            publish_wider_columns(self._pipeline.session, self._lake, point, schema)

    def _equal(
        self,
        batch: Batch,
        tried: Findings,
        snapshot: ExportedSnapshot,
        tables: Sequence[SourceTable],
    ) -> Sequence[SourceTable]:
        from slotlake.expectations.same import equal_tables

        try:
            with self._tried(batch, tried, tables) as point:
                return equal_tables(self._source.dsn, snapshot.snapshot, tables, point)
        except (ApplyError, LakeError):  # a conflict, which a copy does not meet; or Spark cannot do it
            return []

    @contextmanager
    def _tried(self, batch: Batch, tried: Findings, tables: Sequence[SourceTable]) -> Iterator[ReadPoint]:
        """Stage the batch for these tables, and yield the lake as it would leave them."""
        from slotlake.spark.apply.trial import staged_trial
        from slotlake.spark.read.point import ReadPoint

        changed = {postgres_name(r.schema, r.table) for r in batch.relations if r.rows}
        names = sorted(changed & {_name(table) for table in tables})
        if not names:
            yield ReadPoint.latest(self._lake)
            return
        lake, choices = self._lake, on_conflict(self._file)
        sidecar = sidecar_of(self._file, tried)
        with staged_trial(
            self._pipeline.engine, lake, batch, self._pipeline.name, choices, sidecar, names
        ) as point:
            yield point


def _promoted(findings: Findings, same: Mapping[SourceTable, Verdict]) -> Findings:
    """The findings if these tables are followed, some with wider columns."""
    numbers = {ordinal: named for each in same.values() for ordinal, named in each.numbers.items()}
    fingerprints = {_name(table): each.fingerprint for table, each in same.items() if each.fingerprint}
    return replace(
        findings,
        numbers={**findings.numbers, **numbers},
        fingerprints={**findings.fingerprints, **fingerprints},
        constants={
            **findings.constants,
            **{_name(t): each.constants for t, each in same.items() if each.constants},
        },
        new_shapes=[*findings.new_shapes, *(each.new_shape for each in same.values() if each.new_shape)],
        promotions={table: each.wider_types for table, each in same.items() if each.wider_types},
    )


def _name(table: SourceTable) -> str:
    return postgres_name(table.schema, table.table)
