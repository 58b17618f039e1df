"""The methods of an open pipeline that are about whole tables: add, remove, resume, format, layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slotlake.infra.opened.open_pipeline import OpenPipeline
from slotlake.infra.progress import Progressing, silent
from slotlake.infra.reports import FormatReport, LayoutReport, ResumeReport
from slotlake.infra.state.events import note_copies

if TYPE_CHECKING:
    from slotlake.infra.maintain.adding import AddReport
    from slotlake.infra.maintain.removing import RemoveReport


class PipelineTables(OpenPipeline):
    """What is done to tables that are named."""

    def add(
        self, tables: str | Sequence[str], *, publication: str | None = None, progress: Progressing = silent
    ) -> AddReport:
        """Publish tables, where the role may, and follow them; docs/tables.md.

        Args:
            tables: one or several, as PostgreSQL writes them.
            publication: which one takes them; the pipeline's own, or its first, when not given.

        Raises:
            PipelineFileError: the source has no such table, or cannot publish it.
            SourceError: the role may not; the error has the statements for somebody who may.
        """
        from slotlake.infra.maintain.adding import Adding

        names = (tables,) if isinstance(tables, str) else tuple(tables)
        return Adding(self).add(names, publication, progress)

    def remove(self, tables: str | Sequence[str], *, drop: bool = False) -> RemoveReport:
        """Take tables out of the publications; with ``drop`` out of the lake too; docs/tables.md.

        Args:
            tables: one or several, as PostgreSQL writes them.
            drop: also remove the lake's tables, with what they have of the past.

        Raises:
            PipelineFileError: there is no such table, or its publication has all tables.
            SourceError: the role may not; the error has the statements for somebody who may.
        """
        from slotlake.infra.maintain.removing import Removing

        with self.exclusively(60.0, step="remove"):
            return Removing(self).remove((tables,) if isinstance(tables, str) else tables, drop=drop)

    def resume(self, table: str, *, progress: Progressing = silent) -> ResumeReport:
        """Copy a table again that was set aside, and follow it from there on (docs/operations.md).

        Args:
            table: as PostgreSQL writes it.

        Raises:
            PipelineFileError: the lake has no such table, and none is set aside.
            SlotlakeError: it cannot be followed yet; it stays set aside.
        """
        from slotlake.infra.sync.resuming import TablesAside

        with self.exclusively(60.0, step="resume"):
            report = TablesAside(self).resume(table, progress)
            if not report.already and not report.copying:
                note_copies(self.file.state_dir, [report.table])
            return report

    def change_format(
        self, tables: Sequence[str] = (), *, progress: Progressing = silent, wait_seconds: float = 60.0
    ) -> FormatReport:
        """Give lake tables the Iceberg format that the pipeline file asks for, all at once.

        Args:
            tables: only these, as PostgreSQL writes them, with their derived tables.

        Raises:
            PipelineFileError: the lake has no such table.
            LakeError: a table cannot have that format; nothing was changed.
        """
        from slotlake.infra.maintain.table_format import change_format

        with self.exclusively(wait_seconds, step="format"):
            return change_format(self, tables, progress)

    def change_layout(
        self, tables: Sequence[str] = (), *, progress: Progressing = silent, wait_seconds: float = 60.0
    ) -> LayoutReport:
        """Give lake tables the partitions and the sort order that the pipeline file asks for, all at once.

        Args:
            tables: only these, as PostgreSQL writes them, with their derived tables.

        Raises:
            PipelineFileError: the lake has no such table, or a table cannot have that layout.
        """
        from slotlake.infra.maintain.table_layout import change_layout

        with self.exclusively(wait_seconds, step="layout"):
            return change_layout(self, tables, progress)
