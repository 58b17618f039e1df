"""Copy tables again whose rows changed without a row event."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.catalog.vanished import VanishedError
from slotlake.infra.copy.tables import TableCopies, published_tables
from slotlake.infra.selection.aside import setting_aside
from slotlake.infra.selection.pending import note_pending
from slotlake.infra.source.partitions import repartitioned
from slotlake.infra.sync.nonblocking import at_nonblocking_snapshot
from slotlake.infra.sync.schema.large_tables import postpone_large

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.tables.schema import TableSchema

FILL_WAIT_SECONDS = 60.0


class Refill:
    """Tables whose rows changed without a row event."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline, self._lake, self._source = pipeline, pipeline.lake, pipeline.source

    def fill_added_columns(self, progress: Progressing) -> list[str]:
        """Copy again the tables of which rows got values that no row event had.

        These are tables whose added columns have a default: PostgreSQL stores a constant default in the
        catalog (pg_attribute.attmissingval), or rewrites the table for a volatile one, and neither reaches
        the stream; tables to which a row came with a value that was not sent
        (`spark.row_filter.selection.Taken.lost`); and those that partitions joined or left. Several at once
        are read under one snapshot.

        Returns:
            The tables that were copied, quoted.
        """
        stale = self._unfilled()
        if stale:
            postponed = postpone_large(
                self._pipeline, dict.fromkeys(stale, "rows got values that no change had")
            )
            stale = [table for table in stale if table not in postponed]
        if stale:
            with at_nonblocking_snapshot(self._pipeline, FILL_WAIT_SECONDS, progress) as snapshot:
                for table in stale:
                    # The next batch finds that a table was dropped.
                    with suppress(VanishedError), setting_aside(self._pipeline):
                        TableCopies(self._pipeline).replace_content(table, snapshot, progress)
        return [table.quoted for table in stale]

    def has_unfilled_columns(self) -> bool:
        """Return whether a table must be copied again to be exact."""
        return bool(self._unfilled())

    def _unfilled(self) -> list[SourceTable]:
        from slotlake.spark.read.point import ReadPoint

        point = ReadPoint.latest(self._lake)
        note_pending(self._pipeline.memory, point)
        mirrors, aside = point.all_mirrors, point.aside.keys()
        unfilled = {name: columns for name, columns in mirrors.unfilled.items() if name not in aside}
        lost = mirrors.lost - aside
        lost |= repartitioned(
            self._lake,
            self._source.dsn,
            [mirror for mirror in mirrors.partitioned if _name(mirror) not in aside],
        )
        if not unfilled and not lost:
            return []
        return [
            table
            for table in published_tables(self._pipeline, to_read=False)
            if _name(table) in lost
            or any(
                column.has_default and column.name in unfilled.get(_name(table), ())
                for column in table.columns
            )
        ]


def _name(table: SourceTable | TableSchema) -> tuple[str, str]:
    return table.schema, table.table
