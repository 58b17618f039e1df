"""A source whose tables change: what the lake follows as it comes, and what is copied again, per batch.

The stream names columns, and says nothing of rows that a command rewrote.  So each batch is compared with
the source's catalog (`sync.schema.examination`), and a table for which there is more than one explanation is
copied again.  The copy is read under a snapshot, and the batch is pulled once more so that it ends exactly at
that snapshot's LSN: the other tables get its changes, this one its copy, all in one point.  So every point
that is published is the source at one LSN.

ALTER TABLE has waited for all who had written to the table, so the snapshot need wait for nobody
(`infra.sync.nonblocking`).  ALTER PUBLICATION has not: what a transaction wrote before it is not sent,
whenever that commits, and is in a copy only if the snapshot waited for its end.

The findings are written to the batch's sidecar (`spark.publish.sidecar`) before anyone applies the batch, so
that it is applied again, or replayed, in the same way.  docs/schema.md has the rules; why: docs/adr/0013.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.catalog.vanished import VanishedError, vanished_error
from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.errors import SlotError
from slotlake.decoder.failpoints import reach
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.slots.slot import ExportedSnapshot, create_slot
from slotlake.infra.selection.aside import SettingAside, setting_aside
from slotlake.infra.sync.schema.examination import Examination
from slotlake.infra.sync.schema.findings import Findings, sidecar_of, with_copy_reason

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.publish.place import CopyTarget, Names
    from slotlake.spark.publish.sidecar import BatchSidecar, TableCopy
    from slotlake.spark.tables.schema import TableSchema

COPY_WAIT_SECONDS = 60.0
_DROPPED_MAX = 10  # tables, one after the other, that were dropped while they were copied


class UnsettledError(SlotError):
    """A table cannot be copied under this snapshot; it can under one that waits."""

    retryable = True


class SchemaChanges:
    """What the tables of a batch became meanwhile at the source, written to its sidecar."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline = pipeline
        self._file, self._lake, self._source = pipeline.file, pipeline.lake, pipeline.source

    def with_schema_changes(
        self, batch: Batch, snapshot: ExportedSnapshot | None, progress: Progressing
    ) -> Batch:
        """Find out what changed about the batch's tables, and write it to the batch's sidecar.

        Args:
            batch: as pulled from the lake's position.
            snapshot: the snapshot that the batch was pulled up to; None if it ends elsewhere.

        Returns:
            The batch; or another one from the same position that ends later, if a table must be copied.

        Raises:
            SlotError: a snapshot cannot be had because transactions stay open; they are named.
            UnsettledError: a table published again must be copied, and ``snapshot`` waited for nobody.
        """
        from slotlake.spark.publish import sidecar

        if not batch.empty and sidecar.place(batch.path).is_dir():
            return batch
        for _ in range(_DROPPED_MAX):
            with suppress(VanishedError):  # the next look finds that it is not published
                return self._with_schema_changes(batch, snapshot, progress)
        return self._with_schema_changes(batch, snapshot, progress)

    def _with_schema_changes(
        self, batch: Batch, snapshot: ExportedSnapshot | None, progress: Progressing
    ) -> Batch:
        from slotlake.infra.sync.schema.large_tables import without_large

        findings = without_large(
            self._pipeline, Examination(self._pipeline).examine(batch, snapshot), compared=False
        )
        if not findings.copies:
            _write_findings(self._file, self._lake, batch, findings)
            return batch
        if snapshot is not None:
            return self._extended_to_copies(batch, snapshot, progress)
        return self._extended_to_new_snapshot(batch, findings, progress)

    def _extended_to_new_snapshot(self, batch: Batch, findings: Findings, progress: Progressing) -> Batch:
        """The batch that ends at a snapshot made for the copies, which waits for nobody if that will do."""
        from slotlake.infra.source.snapshots import nonblocking_snapshot

        if not findings.republished:
            with suppress(UnsettledError), nonblocking_snapshot(self._pipeline, progress) as snapshot:
                if snapshot is not None:
                    return self._extended_to_copies(batch, snapshot, progress)
        progress("waiting for a snapshot of the source", 0)
        with create_slot(self._source, temporary=True, wait_seconds=COPY_WAIT_SECONDS) as slot_snapshot:
            return self._extended_to_copies(batch, slot_snapshot, progress)

    def _extended_to_copies(self, batch: Batch, snapshot: ExportedSnapshot, progress: Progressing) -> Batch:
        """The batch that ends at the snapshot, with the copies of tables that are read there."""
        from slotlake.infra.copy.tables import TableCopies
        from slotlake.infra.source.pulling import pull_batch
        from slotlake.infra.sync.schema.promotion import Promotion

        if batch.end_lsn != snapshot.lsn or not (batch.empty or batch.path.is_dir()):
            batch = pull_batch(self._pipeline, batch.start_lsn, snapshot.lsn, progress, whole=True)
        reach("evolve.copying")
        findings = self._findings_at(batch, snapshot, progress)
        if batch.empty:
            for table in findings.copies:
                with setting_aside(self._pipeline):
                    TableCopies(self._pipeline).replace_content(table, snapshot, progress)
            Promotion(self._pipeline).widen(findings, snapshot)
            _write_findings(self._file, self._lake, batch, findings)
        elif findings.copies:
            self._write_copies(batch, findings, snapshot, progress)
        else:
            _write_findings(self._file, self._lake, batch, findings)
        return batch

    def _findings_at(self, batch: Batch, snapshot: ExportedSnapshot, progress: Progressing) -> Findings:
        """The findings of a batch that ends at the snapshot, without copies that are needless or put off."""
        from slotlake.infra.sync.schema.large_tables import without_large
        from slotlake.infra.sync.schema.promotion import Promotion

        findings = without_large(
            self._pipeline, Examination(self._pipeline).examine(batch, snapshot), compared=False
        )
        if findings.republished and not snapshot.settled:
            raise UnsettledError(
                "a table published again must be copied, and transactions of before may still be open"
            )
        findings = Promotion(self._pipeline).without_needless_copies(batch, findings, snapshot, progress)
        return without_large(self._pipeline, findings, compared=True)

    def write_copies(
        self,
        batch: Batch,
        snapshot: ExportedSnapshot,
        copies: Mapping[SourceTable, str],
        progress: Progressing,
        *,
        examined: bool = True,
    ) -> None:
        """Write copies of chosen tables to the sidecar of a batch that ends where the snapshot is.

        A table that changes under its copy is set aside instead.

        Args:
            batch: a batch that starts at the lake's position and ends at the snapshot's LSN.
            snapshot: the snapshot of the source under which the tables are read.
            copies: the tables, and why each is copied.
            examined: all is known about the batch; else tables that it needs are copied too.

        Raises:
            VanishedError: a table was dropped while it was copied.
        """
        findings = Findings() if examined else Examination(self._pipeline).examine(batch, snapshot)
        findings = replace(findings, copies={**findings.copies, **copies})
        if findings.copies:
            self._write_copies(batch, findings, snapshot, progress)
        elif not examined:
            _write_findings(self._file, self._lake, batch, findings)

    def _write_copies(
        self,
        batch: Batch,
        findings: Findings,
        snapshot: ExportedSnapshot,
        progress: Progressing,
    ) -> None:
        from slotlake.infra.copy.copying import Filling
        from slotlake.infra.copy.described import Described
        from slotlake.spark.publish import sidecar
        from slotlake.spark.publish.shape import write_schemas

        if findings.new_shapes:
            write_schemas(self._lake, findings.new_shapes)
        described = Described.at(self._pipeline, snapshot, list(findings.copies))
        incoming, contents = sidecar.begin(batch.path), sidecar_of(self._file, findings)
        shapes = _shapes_of_copies(described.schemas, findings, snapshot, contents)
        described = replace(described, schemas=shapes)
        reasons = {shape.source_name: findings.copies[table] for table, shape in shapes.items()}
        place = _SidecarPlace(incoming, reasons)
        _, states = Filling(self._pipeline).fill_tables(place, described, snapshot, progress, None)
        states.forget()
        remaining = described.remaining()
        for table in findings.copies.keys() - remaining.keys() - described.errors.keys():
            raise vanished_error(table.quoted)
        for trouble in described.errors.values():
            SettingAside(self._pipeline).set_aside(trouble)
        reach("evolve.copied")
        contents = replace(
            contents, copies=tuple(place.copies[each.source_name] for each in remaining.values())
        )
        sidecar.finish(batch.path, incoming, contents)
        reach("evolve.noted")


def _write_findings(file: PipelineFile, lake: LakeSettings, batch: Batch, findings: Findings) -> None:
    """Write findings without copies: to the batch's sidecar if the batch needs them, and to the tables."""
    from slotlake.spark.publish import sidecar
    from slotlake.spark.publish.shape import write_schemas

    if findings.new_shapes:
        write_schemas(lake, findings.new_shapes)
    if (findings.numbers or findings.unpublished or findings.promotions) and not batch.empty:
        sidecar.finish(batch.path, sidecar.begin(batch.path), sidecar_of(file, findings))


def _shapes_of_copies(
    schemas: Mapping[SourceTable, TableSchema],
    findings: Findings,
    snapshot: ExportedSnapshot,
    contents: BatchSidecar,
) -> dict[SourceTable, TableSchema]:
    """The shape of each copied table, with why it was copied and whether columns that are gone leave it."""
    shapes = {}
    for table, described in schemas.items():
        schema = with_copy_reason(described, f"{format_lsn(snapshot.lsn)}: {findings.copies[table]}")
        shapes[table] = replace(schema, drop=schema.source_name in contents.drops)
    return shapes


class _SidecarPlace:
    """Where copies of tables go that are part of a batch, which Spark reads when it is applied.

    Attributes:
        copies: those that are whole, by table as PostgreSQL writes it.
    """

    def __init__(self, incoming: Path, reasons: Mapping[str, str]) -> None:
        self._incoming, self._reasons = incoming, reasons
        self._numbers = {name: number for number, name in enumerate(reasons)}
        self.copies: dict[str, TableCopy] = {}

    def target(self, schema: TableSchema) -> CopyTarget:
        """Return where a table's files go."""
        return self._copy(schema).target

    def register(self, schema: TableSchema, stale: pa.Table | None = None, names: Names = None) -> int:
        """Make the files that are there a table's copy; return its rows."""
        copied = self._copy(schema)
        rows = sum(pq.read_metadata(path).num_rows for path in copied.directory.glob("*.parquet"))
        self.copies[schema.source_name] = replace(copied, rows=rows)
        return rows

    def _copy(self, schema: TableSchema) -> TableCopy:
        from slotlake.spark.publish.sidecar import TableCopy

        name = schema.source_name
        directory = self._incoming / f"t{self._numbers[name]}"
        directory.mkdir(exist_ok=True)
        return TableCopy(schema, directory, 0, self._reasons[name])
