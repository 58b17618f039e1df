"""Tables that get their whole content from the source: the initial copy, and tables that join later."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from slotlake.decoder.catalog.publications import SourceTable, source_tables
from slotlake.decoder.catalog.vanished import vanished_error
from slotlake.decoder.failpoints import reach
from slotlake.decoder.server.privileges import require_readable
from slotlake.decoder.server.source import source_errors, source_session
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.decoder.slots.upgraded import xid_of_snapshot
from slotlake.infra.config.of_tables import derived_modes
from slotlake.infra.copy.described import Described
from slotlake.infra.copy.states import unmark_process
from slotlake.infra.reports import TableCopy
from slotlake.infra.selection.aside import Errors, tables_aside
from slotlake.infra.selection.tables import lake_selections, selected
from slotlake.infra.state.verified import note_copied
from slotlake.spark.names import postgres_name

if TYPE_CHECKING:
    import psycopg

    from slotlake.infra.copy.copying import Attempt
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.copy.initial import InitialCopy
    from slotlake.spark.copy.replacement import Replacement
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.publish.commits import Point
    from slotlake.spark.tables.schema import TableSchema


def published_tables(
    pipeline: OpenPipeline, *, to_read: bool = True, include_aside: Collection[tuple[str, str]] = ()
) -> list[SourceTable]:
    """Read the tables that the pipeline's publications publish now, as far as the lake takes them.

    Args:
        to_read: their rows are to be read, which this role must be allowed to; the stream obeys no rights.
        include_aside: schema and name of tables that are set aside and wanted; the others are left out.

    Raises:
        SourceError: a publication is missing; or the role may not read all that is published.
    """
    source = pipeline.source
    excluded = tables_aside(pipeline.lake).keys() - set(include_aside)
    with source_session(source.dsn, "reading the publications") as connection:
        return published_over(pipeline, connection, excluded, to_read=to_read)


def published_over(
    pipeline: OpenPipeline,
    connection: psycopg.Connection[Any],
    excluded: Collection[tuple[str, str]] = (),
    *,
    to_read: bool = True,
) -> list[SourceTable]:
    """Read the published tables, as `published_tables`, over a connection that is open.

    Args:
        pipeline: the pipeline, with its publications.
        excluded: schema and name of tables to leave out.
        to_read: their rows are to be read, which this role must be allowed to.

    Raises:
        SourceError: as `published_tables`.
    """
    source = pipeline.source
    with source_errors(source.dsn, "reading the publications"):
        published = source_tables(connection, source.publications)
        followed = [table for table in published if (table.schema, table.table) not in excluded]
        tables = selected(pipeline.file, connection, followed, lake_selections(pipeline.memory))
        if to_read:
            require_readable(connection, {t.relation_id: [c.name for c in t.columns] for t in tables})
        return tables


@dataclass(frozen=True)
class Copied:
    """What became of the copies of several tables.

    Attributes:
        copies: of the tables that are whole, and published.
        errors: tables that were left out, and why; those that were dropped are not among them.
    """

    copies: Sequence[TableCopy]
    errors: Errors


class TableCopies:
    """Copies of whole tables under one snapshot, published or staged."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline = pipeline
        self._file, self._lake, self._source = pipeline.file, pipeline.lake, pipeline.source

    def copy_all(
        self,
        tables: Sequence[SourceTable],
        snapshot: ExportedSnapshot,
        progress: Progressing,
        attempt: Attempt | None = None,
    ) -> Copied:
        """Copy tables as seen in the snapshot, and publish at its LSN, at once, those that are whole.

        A table that cannot be copied, or that changes meanwhile, is left out.

        Args:
            tables: published tables that the lake does not have.
            attempt: the record of what is copied, if that is to stay when this is cut off, or is not to be
                finished now.

        Raises:
            SlotlakeError: something else than one table's error; or one that is to stop all.
        """
        from slotlake.infra.copy.copying import Filling

        described = Described.at(self._pipeline, snapshot, tables)
        schemas = described.schemas
        finishes = attempt is None or attempt.finishes
        next_xid = xid_of_snapshot(self._source.dsn, snapshot.snapshot)
        # The snapshot was made before: all that it shows was committed by then.
        committed_by = source_clock(self._source.dsn)
        try:
            with self._initial_copy(schemas, attempt) as copy:
                copies, states = Filling(self._pipeline).fill_tables(
                    copy, described, snapshot, progress, attempt
                )
                remaining = described.remaining()
                copies = copies_of(copies, remaining)
                names = {each.table for each in copies}
                copy.leave_out([schema for schema in schemas.values() if schema.source_name not in names])
                if copies or (finishes and not remaining):
                    rows = sum(each.rows for each in copies)
                    point = self.copy_point(snapshot.lsn, "copy", rows, next_xid=next_xid)
                    note_copied(self._file.state_dir, names, snapshot.lsn)
                    copy.publish(replace(point, commit_time=committed_by))
        except BaseException:
            unmark_process(self._file.state_dir)
            raise
        states.finish(copies)
        return Copied(copies, described.errors)

    def _initial_copy(
        self, schemas: Mapping[SourceTable, TableSchema], attempt: Attempt | None
    ) -> InitialCopy:
        """Begin copies out of sight; derived tables come with those that can be finished now."""
        from slotlake.spark.copy.initial import InitialCopy

        finishes = attempt is None or attempt.finishes
        names = [(table.schema, table.table) for table in schemas] if finishes else []
        return InitialCopy.begin(
            self._pipeline.session,
            self._lake,
            self._pipeline.name,
            list(schemas.values()),
            derived_modes(self._file, names),
            None if attempt is None else attempt.recorded_files(schemas, self._lake.namespace),
        )

    def copy_point(self, lsn: int, kind: str, rows: int, name: str = "", next_xid: str = "") -> Point:
        """Describe the consistency point of a copy.

        Args:
            lsn: the LSN at which the copy is published.
            kind: of the point, as "copy" or "backfill".
            rows: how many rows were copied.
            name: what was copied, to tell points of one LSN apart.
            next_xid: as `Origin` has it.
        """
        from slotlake.decoder.lsn import format_lsn
        from slotlake.infra.source.history import server_origin
        from slotlake.spark.publish.commits import Point

        origin = replace(server_origin(self._source), next_xid=next_xid)
        batch = "-".join(part for part in (kind, format_lsn(lsn).replace("/", "_"), name) if part)
        return Point(self._pipeline.name, lsn, batch, digest="", kind=kind, changes=rows, origin=origin)

    def copy_in_place(
        self,
        tables: Sequence[SourceTable],
        snapshot: ExportedSnapshot,
        progress: Progressing,
        how: InPlace,
        attempt: Attempt | None = None,
    ) -> Copied:
        """As `copy_all`, in place of what the lake has of these tables, at whose position the snapshot is.

        Args:
            tables: published tables that the lake has.
            how: where their ranges lie, and what is published.
            attempt: as for `copy_all`.

        Raises:
            SlotlakeError: as `copy_all`.
        """
        from slotlake.infra.copy.copying import Filling

        described = Described.at(self._pipeline, snapshot, tables)
        place = self.replacement(tables, snapshot.lsn, how)
        try:
            require_none(described.errors, how)
            place.begin(described.schemas.values(), resumes=attempt is not None)
            copies, states = Filling(self._pipeline).fill_tables(
                place, described, snapshot, progress, attempt
            )
            copies = copies_of(copies, described.remaining())
            require_none(described.errors, how)
            if copies:
                reach(how.staged)
            names = {each.table for each in copies}
            note_copied(self._file.state_dir, names, snapshot.lsn)
            place.publish(names)
        except BaseException:
            unmark_process(self._file.state_dir)
            raise
        finally:
            if attempt is None:
                clear_ranges(self._lake, described.schemas.values(), how)
        states.finish(copies)
        clear_ranges(self._lake, [s for s in described.schemas.values() if s.source_name in names], how)
        return Copied(copies, described.errors)

    def replacement(self, tables: Sequence[SourceTable], lsn: int, how: InPlace) -> Replacement:
        """Where the copies of tables go that replace what the lake has, which stands at an LSN."""
        from slotlake.spark.copy.replacement import Replacement

        point = self.backfill_point(lsn, tables, 0)
        return Replacement(self._pipeline.session, self._lake, point, how.final, how.purpose)

    def backfill_point(self, lsn: int, tables: Sequence[SourceTable], changes: int) -> Point:
        """Describe the consistency point of tables, or rows of them, that are read again.

        Args:
            lsn: where the lake stands.
            tables: all that are read.
            changes: rows that are inserted, changed and deleted.
        """
        others = f"+{len(tables) - 1}" if len(tables) > 1 else ""
        name = f"{postgres_name(tables[0].schema, tables[0].table)}{others}"
        return self.copy_point(lsn, "backfill", changes, name)

    def replace_content(self, table: SourceTable, snapshot: ExportedSnapshot, progress: Progressing) -> int:
        """Replace a lake table's rows by those that the snapshot shows; return how many they are.

        Args:
            snapshot: the snapshot under which it is read.

        Raises:
            VanishedError: the table was dropped.
        """
        copied = self.copy_in_place([table], snapshot, progress, InPlace())
        require_all([table], copied)
        return copied.copies[0].rows


def copies_of(copies: Sequence[TableCopy], schemas: Mapping[SourceTable, TableSchema]) -> list[TableCopy]:
    """Those copies that are of these tables."""
    names = {schema.source_name for schema in schemas.values()}
    return [copy for copy in copies if copy.table in names]


def source_clock(dsn: str) -> datetime:
    """The time at the source, in UTC."""
    with source_session(dsn) as connection:
        row = connection.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        now: datetime = row[0]
        return now.astimezone(UTC)


@dataclass(frozen=True)
class InPlace:
    """How tables that the lake has get their content again.

    Attributes:
        purpose: where the ranges lie, as of `spark.copy.replacement.Replacement`.
        final: a table's shape as it is published.
        staged: the failpoint between staging and publication.
        together: one table that cannot be copied ends all, and nothing is published.
    """

    purpose: str = "backfill"
    final: Callable[[TableSchema], TableSchema] = lambda schema: schema
    staged: str = "backfill.staged"
    together: bool = True


def require_none(errors: Errors, how: InPlace) -> None:
    """Raise one of these errors, if no table is to be published without the others."""
    if how.together:
        for error in errors.values():
            raise error


def clear_ranges(lake: LakeSettings, schemas: Iterable[TableSchema], how: InPlace) -> None:
    """Remove the ranges of these tables."""
    from slotlake.spark.copy.replacement import remove_ranges

    names = [schema.lake_name(lake.namespace) for schema in schemas]
    remove_ranges(lake, names, how.purpose)


def require_all(tables: Sequence[SourceTable], copied: Copied) -> None:
    """Check that none of the tables that were to be copied was dropped meanwhile.

    Raises:
        VanishedError: one was.
    """
    names = {copy.table for copy in copied.copies}
    for table in tables:
        if postgres_name(table.schema, table.table) not in names:
            raise vanished_error(table.quoted)
