"""Copy large tables again that the lake has, over several syncs.

They are set aside (`sync.schema.large_tables`), and copied like tables that join: ranges for a bounded time
in each sync, keys of what changes meanwhile noted from each batch, all of it at a settled snapshot in the end
(`infra.sync.over_syncs`).  Until then their content stays what it was.  Why so: docs/adr/0036.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.publications import SourceTable, published_names
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.source import source_session
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.infra.copy.copying import Attempt
from slotlake.infra.copy.joining_record import RECOPYING_FOLDER
from slotlake.infra.copy.tables import Copied, InPlace, TableCopies
from slotlake.infra.selection.aside import tables_aside
from slotlake.infra.state.notes import SETTLING_AGAIN
from slotlake.infra.sync.over_syncs import OverSyncs
from slotlake.infra.sync.schema.findings import drops_columns, with_copy_reason
from slotlake.infra.sync.schema.large_tables import copy_reason_of, resumable_by_size
from slotlake.spark.names import postgres_name

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.names import LakeName
    from slotlake.spark.publish.aside import Name
    from slotlake.spark.tables.schema import TableSchema

_IN_PLACE = InPlace("recopying", staged="recopy.staged", together=False)
_NAMES_OF = """
SELECT c.oid::bigint, n.nspname, c.relname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY (%s)
"""


def reasons(pipeline: OpenPipeline) -> dict[str, str]:
    """Return, for reports, the tables that are set aside, why, and how much is copied again."""
    aside = tables_aside(pipeline.lake)
    ranges = RecopiedTables(pipeline).progress_by_table() if aside else {}
    return {each.source_name: each.reason_with(ranges.get(each.source_name)) for each in aside.values()}


def lake_row_count(lake: LakeSettings, name: Name) -> int:
    """The number of rows that the lake has of a table."""
    from slotlake.spark.read.point import ReadPoint
    from slotlake.spark.tables import metadata as catalog_metadata

    point = ReadPoint.latest(lake)
    metadata = point.pinned[point.find(postgres_name(*name))].metadata
    return catalog_metadata.live_rows(catalog_metadata.head(metadata)) or 0


def give_up_all(pipeline: OpenPipeline) -> list[str]:
    """Remove what all half copied tables have left, also those that join; return the tables."""
    from slotlake.infra.sync import joining_tables

    return joining_tables.JoiningTables(pipeline).give_up() + RecopiedTables(pipeline).give_up()


class RecopiedTables(OverSyncs):
    """Tables that the lake has, and that are set aside to be copied again."""

    folder, settling, waits = RECOPYING_FOLDER, SETTLING_AGAIN, "its copy was to begin"

    def copy_more(self, tables: Sequence[SourceTable], progress: Progressing) -> list[str]:
        """Copy what there is time for of these tables.

        Returns:
            The tables that are whole, and followed again, as PostgreSQL writes them.

        Raises:
            SlotlakeError: a table cannot be copied; what is copied of the others stays.
        """
        return self.copy_some(resumable_by_size(self._pipeline.source, tables), [], progress)

    def give_up_stale(self, progress: Progressing) -> None:
        """Give up copies that cannot be continued, and those of tables that are not set aside any more."""
        joining = self.record.joining
        if not joining:
            return
        source, aside = self._pipeline.source, tables_aside(self._pipeline.lake)
        with source_session(source.dsn, "looking at tables set aside") as connection:
            published = published_names(connection, source.publications)
            rows = connection.execute(_NAMES_OF, (list(joining),)).fetchall()
        named = {int(oid): (str(schema), str(table)) for oid, schema, table in rows}
        current_names = {oid: name for oid, name in named.items() if name in aside and name in published}
        self._give_up_others(current_names, progress)

    def _copy(
        self,
        tables: Sequence[SourceTable],
        snapshot: ExportedSnapshot,
        progress: Progressing,
        attempt: Attempt,
    ) -> Copied:
        aside = tables_aside(self._pipeline.lake).values()
        reasons = {each.source_name: copy_reason_of(each) for each in aside}

        def final_shape(schema: TableSchema) -> TableSchema:
            name = schema.source_name
            reason = f"{format_lsn(snapshot.lsn)}: {reasons.get(name, '')}"
            drop = drops_columns(self._pipeline.file, name)
            return replace(with_copy_reason(schema, reason), drop=drop)

        how = replace(_IN_PLACE, final=final_shape)
        return TableCopies(self._pipeline).copy_in_place(tables, snapshot, progress, how, attempt)

    def _clear(self, names: Sequence[LakeName]) -> None:
        from slotlake.spark.copy.replacement import remove_ranges

        remove_ranges(self._pipeline.lake, names, _IN_PLACE.purpose)
