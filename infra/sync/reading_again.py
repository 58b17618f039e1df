"""Read whole tables again under one snapshot, whatever the lake has of them, and publish them at its LSN.

Under the pipeline's lock: the lake is brought exactly to the snapshot's LSN first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.infra.copy.tables import InPlace, TableCopies, require_all
from slotlake.infra.reports import TableCopy
from slotlake.infra.selection.aside import SettingAside
from slotlake.infra.selection.tables import lake_schema
from slotlake.infra.sync.at_lsn import Advance
from slotlake.infra.sync.nonblocking import at_nonblocking_snapshot
from slotlake.spark.publish.lives import Event

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.tables.schema import TableSchema

_OTHERWISE = "the pipeline file takes other rows or columns of it than before, so it is copied again"
_RESUME = "run slotlake resume; a later sync does, too"


class WholeTablesAgain:
    """Whole tables that are read again under one snapshot."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline, self._lake = pipeline, pipeline.lake

    def read_again(
        self,
        tables: Sequence[SourceTable],
        wait_seconds: float,
        progress: Progressing,
        *,
        at_slot: bool = False,
    ) -> tuple[int, list[TableCopy]]:
        """Read whole tables again, and publish them in one point.

        Args:
            tables: published; those that the lake lacks are added.
            wait_seconds: how long transactions may stay open.
            at_slot: read under a snapshot that waits for open transactions; needed for a table whose place in
                the publications changed.

        Returns:
            The LSN at which the tables are published, and what was read of each.
        """
        for table in tables:
            self._drop_if_taken_otherwise(table)
        present, absent = by_presence(self._lake, tables)
        with self.snapshot_for(tables, wait_seconds, progress, at_slot=at_slot) as snapshot:
            copies: list[TableCopy] = []
            if present:
                replaced = TableCopies(self._pipeline).copy_in_place(present, snapshot, progress, InPlace())
                require_all(present, replaced)
                copies += replaced.copies
            if absent:
                copied = TableCopies(self._pipeline).copy_all(absent, snapshot, progress)
                for error in copied.errors.values():
                    raise error
                copies += copied.copies
            return snapshot.lsn, copies

    def snapshot_for(
        self,
        tables: Sequence[SourceTable],
        wait_seconds: float,
        progress: Progressing,
        *,
        at_slot: bool = False,
    ) -> AbstractContextManager[ExportedSnapshot]:
        """Bring the lake exactly to a snapshot of the source under which these tables can be read.

        Args:
            wait_seconds: how long transactions may stay open.
            at_slot: wait for them in any case.
        """
        # What is copied for the first time may have joined while transactions of now were open already.
        needs_slot = at_slot or by_presence(self._lake, tables)[1]
        if needs_slot:
            return Advance(self._pipeline).at_slot_snapshot(wait_seconds, progress)
        return at_nonblocking_snapshot(self._pipeline, wait_seconds, progress)

    def drop_filtered(self, tables: Sequence[SourceTable]) -> bool:
        """Drop those of these tables that the lake has under a row filter; return whether there was one."""
        dropped = [self._drop(table, lambda mirror: bool(mirror.selection)) for table in tables]
        return any(dropped)

    def _drop_if_taken_otherwise(self, table: SourceTable) -> None:
        """Drop the lake's table if it takes other rows or columns, or has another choice for deleted rows.

        Its readers miss it until the copy is published; in any other case it is replaced in place instead.
        """
        new_schema = lake_schema(table)
        self._drop(table, lambda mirror: _taken(mirror) != _taken(new_schema))

    def _drop(self, table: SourceTable, condition: Callable[[TableSchema], bool]) -> bool:
        """Drop the lake's table if it exists and meets the condition; return whether it was dropped."""
        from slotlake.spark.maintenance.removal import drop_tables

        mirror = mirrors_of(self._lake).get((table.schema, table.table))
        if mirror is None or not condition(mirror):
            return False
        # Else a run that is ended here would leave a lake of which nobody knows why it lacks the table.
        name = (table.schema, table.table)
        SettingAside(self._pipeline).record_aside(
            {name: ("again", _OTHERWISE, "backfill", _RESUME)}, Event.AGAIN
        )
        drop_tables(self._lake, self._pipeline.name, [mirror.lake_name(self._lake.namespace)])
        return True


def by_presence(
    lake: LakeSettings, tables: Sequence[SourceTable]
) -> tuple[list[SourceTable], list[SourceTable]]:
    """Those of the tables that the lake has, and those that it lacks."""
    mirrors = mirrors_of(lake)
    present = [table for table in tables if (table.schema, table.table) in mirrors]
    return present, [table for table in tables if table not in present]


def mirrors_of(lake: LakeSettings) -> dict[tuple[str, str], TableSchema]:
    """The lake's mirrors at its newest point, by schema and name of their source tables."""
    from slotlake.spark.read.point import ReadPoint

    return {(entry.schema, entry.table): entry for entry in ReadPoint.latest(lake).tables()}


def _taken(schema: TableSchema) -> tuple[str, bool]:
    return schema.selection, schema.soft_deletes
