"""The initial copy: publication, slot and tables, all or nothing, and nothing of anyone else's touched.

A copy that was cut off is continued: its slot stays, because with the changes since it was made the copied
ranges can be brought forward (`unfinished`, `copying`).  A slot that serves nothing is dropped again, at once
when the copy fails, or by the next `init` after a crash; one that this pipeline did not note is somebody
else's and is left alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from slotlake.decoder.catalog.publications import (
    SourceTable,
    create_publication,
    missing_publications,
    unfit_tables,
    unsent_warnings,
)
from slotlake.decoder.errors import LakeError, PipelineFileError, SlotlakeError, SourceError
from slotlake.decoder.failpoints import reach
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.privileges import require_readable
from slotlake.decoder.server.source import identify, redact, source_errors, source_session
from slotlake.decoder.slots.capacity import require_free_slot
from slotlake.decoder.slots.slot import create_slot, inspect_slot
from slotlake.decoder.stream.options import negotiate
from slotlake.infra.config.identity import note_identity, require_same_lake
from slotlake.infra.copy.copying import Attempt
from slotlake.infra.copy.tables import Copied, TableCopies, published_tables
from slotlake.infra.copy.unfinished import (
    UnfinishedCopy,
    earlier_attempt,
    note_making,
    note_position,
    record_of,
)
from slotlake.infra.reports import InitReport, TableCopy
from slotlake.infra.selection.aside import SettingAside, is_of_one_table, require_columns
from slotlake.infra.selection.file_tables import FileFinding, binary_findings, file_findings, note_names
from slotlake.infra.selection.layouts import require_layouts
from slotlake.infra.selection.named import named_at_source
from slotlake.infra.selection.readers import require_readers
from slotlake.infra.selection.roots import require_roots
from slotlake.infra.selection.tables import require_published
from slotlake.infra.source.own_slot import require_own_slot_name
from slotlake.spark.names import lake_table, require_metastore_name

if TYPE_CHECKING:
    from slotlake.decoder.server.source import SourceSettings
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.lake import LakeSettings

SLOT_WAIT_SECONDS = 60.0


class Bootstrap:
    """The initial copy of a pipeline."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline = pipeline
        self._file, self._lake, self._source = pipeline.file, pipeline.lake, pipeline.source

    def initialise(self, progress: Progressing, known_errors: Sequence[SlotlakeError] = ()) -> InitReport:
        """Make publications, slot and tables; if the lake already has this pipeline's tables, change nothing.

        A table without columns, with a row that cannot be read, or judged by its filter, or that changes
        under its copy, is set aside from the start.  What the role may not read, or the pipeline file
        refuses, stops before anything is made.

        Args:
            known_errors: what is known to be wrong with tables; each error names its table.
        """
        from slotlake.spark.copy.owner import is_initialised

        started = time.monotonic()
        if is_initialised(self._lake, self._pipeline.name):
            return self._report_of_existing()
        require_same_lake(self._file, self._lake)
        require_readers(self._file)
        identity = identify(self._source.dsn)
        if self._source.plugin == "pgoutput":
            negotiate(self._source, identity.server_version)
        attempt = earlier_attempt(self._file, self._source, identity)
        new_publications = list(
            dict.fromkeys([*UnfinishedCopy(self._pipeline).publications_made(), *self._publications()])
        )
        findings = self._file_findings()
        tables = published_tables(self._pipeline)
        with source_session(self._source.dsn, "reading the partitions") as connection:
            require_roots(self._file, connection, tables)
        require_published(self._file, tables)
        require_layouts(self._file, tables)
        tables, errors = without_troubled(self._file, self._lake, tables, known_errors)
        if attempt is None:
            _require_room(self._source.dsn)
        self._pipeline.session  # noqa: B018  start Spark before the slot: no slot is left if it cannot start
        if attempt is None:
            note_making(self._file.state_dir, self._source.slot, identity, new_publications)
        try:
            copied, lsn, machines = self._copied(tables, attempt, progress)
        except BaseException as error:
            UnfinishedCopy(self._pipeline).clean_up_after(error)
            raise
        UnfinishedCopy(self._pipeline).note_published()
        note_identity(self._file, self._lake)
        for trouble in [*errors, *copied.errors.values()]:
            SettingAside(self._pipeline).set_aside(trouble)
        report = self._report(tables, copied.copies, lsn, new_publications, time.monotonic() - started)
        note_names(self._file, {(table.schema, table.table) for table in tables})
        warnings = [*report.warnings, *(each.warning for each in findings)]
        return replace(
            report, set_aside=SettingAside(self._pipeline).reasons(), machines=machines, warnings=warnings
        )

    def _file_findings(self) -> list[FileFinding]:
        """Compare the tables that the file names with the publications.

        Raises:
            PipelineFileError: the source has no such table, or cannot publish it, or not send it in binary.
        """
        with source_session(self._source.dsn, "comparing the file's tables") as connection:
            findings = file_findings(self._pipeline, connection, None) + binary_findings(
                self._source, connection
            )
        if wrong := [each for each in findings if each.wrong]:
            sections = dict.fromkeys(f"section `{each.section}`" for each in wrong)
            raise PipelineFileError(
                "; ".join(each.what for each in wrong),
                where=f"{' and '.join(sections)} of the pipeline file",
                way_out="; ".join(dict.fromkeys(each.way_out for each in wrong)),
            )
        return findings

    def _report_of_existing(self) -> InitReport:
        """The report on a lake that has the pipeline's tables already."""
        require_own_slot_name(self._file, self._source)
        UnfinishedCopy(self._pipeline).note_published()
        note_identity(self._file, self._lake, slot=False)
        return InitReport(
            self._pipeline.name,
            already=True,
            lsn=format_lsn(self._pipeline.position()),
            slot=self._source.slot,
            warnings=_slot_missing(self._source),
        )

    def _copied(
        self, tables: list[SourceTable], attempt: Attempt | None, progress: Progressing
    ) -> tuple[Copied, int, dict[str, int]]:
        """Copy the tables; return what became of it, their LSN, and which machines copied how many ranges.

        A slot is made if there is none to continue with.
        """
        going_on = attempt is not None
        progress("waiting for a snapshot of the source", 0)
        with create_slot(self._source, temporary=going_on, wait_seconds=SLOT_WAIT_SECONDS) as snapshot:
            if attempt is None:
                note_position(self._file.state_dir, snapshot.lsn)
                attempt = Attempt(record_of(self._file), snapshot.lsn)
            reach("init.slot_made")
            return (
                TableCopies(self._pipeline).copy_all(tables, snapshot, progress, attempt),
                snapshot.lsn,
                attempt.machines,
            )

    def _report(
        self,
        tables: list[SourceTable],
        copies: Sequence[TableCopy],
        lsn: int,
        new_publications: list[str],
        seconds: float,
    ) -> InitReport:
        with source_session(self._source.dsn, "reading the publications") as connection:
            unsent = unsent_warnings(connection, self._source.publications)
        warnings = [f"{each.table}: {each.what}; {each.way_out}" for each in [*unfit_tables(tables), *unsent]]
        return InitReport(
            pipeline=self._pipeline.name,
            already=False,
            lsn=format_lsn(lsn),
            slot=self._source.slot,
            publications_made=new_publications,
            tables=list(copies),
            rows=sum(copy.rows for copy in copies),
            seconds=seconds,
            warnings=warnings,
        )

    def _publications(self) -> list[str]:
        with source_session(self._source.dsn) as connection:
            return make_publications(self._file, self._source, connection)


def without_troubled(
    file: PipelineFile, lake: LakeSettings, tables: list[SourceTable], known_errors: Sequence[SlotlakeError]
) -> tuple[list[SourceTable], list[SlotlakeError]]:
    """Leave out tables that cannot be followed from the start.

    Args:
        known_errors: what is known to be wrong with tables; each error names its table.

    Returns:
        The tables that can be followed, and what is wrong with the others.

    Raises:
        SlotlakeError: a table that cannot be followed is to stop all (`on_trouble: stop`).
    """
    errors = list(known_errors)
    for table in tables:
        try:
            require_columns([table])
            _require_name(lake, table)
        except (SourceError, LakeError) as error:
            if not is_of_one_table(file, error):
                raise
            errors.append(error)
    names = {error.table for error in errors}
    return [table for table in tables if (table.schema, table.table) not in names], errors


def _require_name(lake: LakeSettings, table: SourceTable) -> None:
    if lake.is_metastore:
        name = lake_table(lake.namespace, table.schema, table.table)
        require_metastore_name(lake.place, name, (table.schema, table.table))


def _require_room(dsn: str) -> None:
    with source_session(dsn, "counting the slots") as connection:
        require_free_slot(connection, redact(dsn))


def _slot_missing(source: SourceSettings) -> list[str]:
    """Warn if the lake has its tables and no slot any more, as after a `drop` that kept the lake."""
    try:
        with source_session(source.dsn) as connection:
            state = inspect_slot(connection, source.slot)
    except SourceError:
        return []  # nothing is to be made; the next sync says it
    if state is not None:
        return []
    return [f"the lake is there, and the slot {source.slot} is not: slotlake recover begins again from there"]


def make_publications(
    file: PipelineFile, source: SourceSettings, connection: psycopg.Connection[Any]
) -> list[str]:
    """Create the publications that are missing, for the tables that the file names.

    Returns:
        The names of those that were missing.

    Raises:
        SourceError: the role may not read or publish a table, or a table does not exist.
    """
    with source_errors(source.dsn, "making the publication"):
        missing = missing_publications(connection, source.publications)
        tables = named_at_source(file, connection) if missing else []
        if missing:  # what cannot be copied is reported before anything is made
            named = [sql.Identifier(*table).as_string(None) for table in tables]
            rows = connection.execute("SELECT to_regclass(n)::oid FROM unnest(%s::text[]) n", (named,))
            require_readable(connection, {int(oid): None for (oid,) in rows.fetchall() if oid is not None})
        for name in missing:
            create_publication(connection, name, tables, through_root=file.source.partitions == "root")
        return missing
