"""Copy tables again, in place, of which the lake has lost something while the slot still has everything.

The next batch is pulled so that it ends at a snapshot's LSN; the damaged tables get a copy read there, the
others the batch's changes, all in one consistency point (as when a table changes so that it cannot be
followed).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.slots.slot import ExportedSnapshot, create_slot
from slotlake.infra.copy.tables import TableCopies, published_tables
from slotlake.infra.recover.compare import WHOLE, TableRepair
from slotlake.infra.source.pulling import pull_batch
from slotlake.infra.sync.batch_steps import BatchSteps
from slotlake.infra.sync.schema.evolution import SchemaChanges
from slotlake.spark.names import LakeName, lake_table, postgres_name

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing

WAIT_SECONDS = 60.0
WHY = "files or snapshots of it were missing"


class CopiedAgain:
    """Tables that a recovery copies whole, in place."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline, self._lake, self._source = pipeline, pipeline.lake, pipeline.source

    def copy_again(self, broken: Collection[LakeName], progress: Progressing) -> list[TableRepair]:
        """Copy damaged lake tables again, as far as they are published and in the catalog.

        Raises:
            SlotError: open transactions hold the snapshot up; they are named, and the lake is as it was.
        """
        tables = self._published_in_lake(broken)
        if not tables:
            return []
        progress("waiting for a snapshot of the source", 0)
        with create_slot(self._source, temporary=True, wait_seconds=WAIT_SECONDS) as snapshot:
            rows = self._copy_at(tables, snapshot, progress)
        BatchSteps(self._pipeline).confirm_position()
        return [
            TableRepair(postgres_name(table.schema, table.table), WHOLE, rows=rows[table], why=WHY)
            for table in tables
        ]

    def _published_in_lake(self, names: Collection[LakeName]) -> list[SourceTable]:
        """The published tables whose lake tables are among these, and in the catalog."""
        from slotlake.spark.read.point import ReadPoint

        lake_tables = ReadPoint.latest(self._lake).pinned.keys()
        namespace = self._lake.namespace
        return [
            table
            for table in published_tables(self._pipeline)
            if (name := lake_table(namespace, table.schema, table.table)) in names and name in lake_tables
        ]

    def _copy_at(
        self,
        tables: Sequence[SourceTable],
        snapshot: ExportedSnapshot,
        progress: Progressing,
    ) -> dict[SourceTable, int]:
        """Bring the lake to the snapshot with copies of these tables; return how many rows each has."""
        batch = pull_batch(self._pipeline, self._pipeline.position(), snapshot.lsn, progress, whole=True)
        if batch.empty:
            return {
                table: TableCopies(self._pipeline).replace_content(table, snapshot, progress)
                for table in tables
            }
        SchemaChanges(self._pipeline).write_copies(
            batch, snapshot, dict.fromkeys(tables, WHY), progress, examined=False
        )
        applied = BatchSteps(self._pipeline).apply_named(batch.name, judged=True)
        BatchSteps(self._pipeline).publish_named(batch.name)
        names = {table: postgres_name(table.schema, table.table) for table in tables}
        return {table: applied.tables.get(names[table], 0) for table in tables}
