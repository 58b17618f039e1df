"""Tables that get their whole content from the source: the initial copy, and tables that join later."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from slotlake.decoder.catalog.publications import SourceTable, source_tables
from slotlake.decoder.copy.table import CopiedFile, copy_table
from slotlake.decoder.server.privileges import require_readable
from slotlake.decoder.server.source import source_errors, source_session
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.decoder.slots.upgraded import xid_of_snapshot
from slotlake.infra.config.modes import derived_modes
from slotlake.infra.copy.described import Described, require_as_copied, schemas_at
from slotlake.infra.copy.states import unmark_process
from slotlake.infra.journal.verified import note_copied
from slotlake.infra.reports import TableCopy
from slotlake.infra.selection.aside import Errors, tables_aside
from slotlake.infra.selection.tables import lake_selections, selected
from slotlake.infra.selection.types import refuse_lossy_copy

if TYPE_CHECKING:
    import psycopg

    from slotlake.infra.copy.copying import Attempt
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.copy.initial import CopyTarget, InitialCopy
    from slotlake.spark.publish.commits import Point
    from slotlake.spark.tables.schema import TableSchema


def published_tables(
    pipeline: OpenPipeline, *, to_read: bool = True, include_aside: Collection[tuple[str, str]] = ()
) -> list[SourceTable]:
    """Read the tables that the pipeline's publications publish now, as far as the lake takes them.

    Args:
        pipeline: the pipeline, with its source and publications.
        to_read: their rows are to be read, which this role must be allowed to; the stream obeys no rights.
        include_aside: schema and name of tables that are set aside and wanted; the others are left out.

    Raises:
        SourceError: a publication is missing; or the role may not read all that is published.
    """
    source = pipeline.source
    excluded = tables_aside(pipeline).keys() - set(include_aside)
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


def copy_all(
    pipeline: OpenPipeline,
    tables: Sequence[SourceTable],
    snapshot: ExportedSnapshot,
    progress: Progressing,
    attempt: Attempt | None = None,
) -> Copied:
    """Copy tables as seen in the snapshot, and publish at its LSN, at once, those that are whole.

    A table that cannot be copied, or that changes meanwhile, is left out.

    Args:
        pipeline: the pipeline, with its source and lake.
        tables: published tables that the lake does not have.
        snapshot: the snapshot under which they are read.
        progress: called with a `CopyStep`, the rows, and how many they will be.
        attempt: the record of what is copied, if that is to stay when this is cut off, or is not to be
            finished now.

    Raises:
        SlotlakeError: something else than one table's error; or one that is to stop all.
    """
    from slotlake.infra.copy.copying import fill_tables, never_finishes

    described = Described.at(pipeline, snapshot, tables)
    schemas = described.schemas
    next_xid = xid_of_snapshot(pipeline.source.dsn, snapshot.snapshot)
    # The snapshot was made before: all that it shows was committed by then.
    committed_by = source_clock(pipeline)
    try:
        with _initial_copy(pipeline, schemas, attempt) as copy:
            copies, states = fill_tables(pipeline, copy, described, snapshot, progress, attempt)
            remaining = described.remaining()
            copies = copies_of(copies, remaining)
            names = {each.table for each in copies}
            copy.leave_out([schema for schema in schemas.values() if schema.source_name not in names])
            if copies or not (remaining or never_finishes(attempt)):
                rows = sum(each.rows for each in copies)
                point = copy_point(pipeline, snapshot.lsn, "copy", rows, next_xid=next_xid)
                note_copied(pipeline.file.state_dir, names, snapshot.lsn)
                copy.publish(replace(point, commit_time=committed_by))
    except BaseException:
        unmark_process(pipeline.file.state_dir)
        raise
    states.finish(copies)
    return Copied(copies, described.errors)


def _initial_copy(
    pipeline: OpenPipeline, schemas: Mapping[SourceTable, TableSchema], attempt: Attempt | None
) -> InitialCopy:
    """Begin copies out of sight; derived tables come with those that can be finished now."""
    from slotlake.infra.copy.copying import never_finishes
    from slotlake.spark.copy.initial import InitialCopy

    names = [] if never_finishes(attempt) else [(table.schema, table.table) for table in schemas]
    return InitialCopy.begin(
        pipeline.session,
        pipeline.lake,
        pipeline.name,
        list(schemas.values()),
        derived_modes(pipeline.file, names),
        None if attempt is None else attempt.recorded_files(schemas, pipeline.lake.namespace),
    )


def copies_of(copies: Sequence[TableCopy], schemas: Mapping[SourceTable, TableSchema]) -> list[TableCopy]:
    """Those copies that are of these tables."""
    names = {schema.source_name for schema in schemas.values()}
    return [copy for copy in copies if copy.table in names]


def source_clock(pipeline: OpenPipeline) -> datetime:
    """The time at the source, in UTC."""
    with source_session(pipeline.source.dsn) as connection:
        row = connection.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        now: datetime = row[0]
        return now.astimezone(UTC)


def copy_into(
    pipeline: OpenPipeline,
    table: SourceTable,
    snapshot: ExportedSnapshot,
    target: CopyTarget,
    progress: Progressing,
) -> list[CopiedFile]:
    """Write a table's rows, as seen in the snapshot, as Parquet files where the lake wants them.

    Args:
        pipeline: the pipeline, with its source.
        snapshot: the snapshot under which it is read.
        target: where the files go, with the names and ids of their columns.
        progress: called with the rows so far.

    Raises:
        ApplyError: a value does not fit its column, and the pipeline file refuses that.
    """
    step = f"copy {table.quoted}: rows"
    files = copy_table(
        pipeline.source.dsn,
        snapshot.snapshot,
        table,
        target,
        workers=pipeline.file.copy_workers,
        progress=lambda done: progress(step, done.rows),
    )
    refuse_lossy_copy(pipeline, table, snapshot, files)
    return files


def copy_point(
    pipeline: OpenPipeline, lsn: int, kind: str, rows: int, name: str = "", next_xid: str = ""
) -> Point:
    """Describe the consistency point of a copy.

    Args:
        pipeline: the pipeline, with its source.
        lsn: the LSN at which the copy is published.
        kind: of the point, as "copy" or "backfill".
        rows: how many rows were copied.
        name: what was copied, to tell points of one LSN apart.
        next_xid: as `Origin` has it.
    """
    from slotlake.decoder.lsn import format_lsn
    from slotlake.infra.source.history import server_origin
    from slotlake.spark.publish.commits import Point

    origin = replace(server_origin(pipeline), next_xid=next_xid)
    batch = "-".join(part for part in (kind, format_lsn(lsn).replace("/", "_"), name) if part)
    return Point(pipeline.name, lsn, batch, digest="", kind=kind, changes=rows, origin=origin)


def replace_content(
    pipeline: OpenPipeline, table: SourceTable, snapshot: ExportedSnapshot, progress: Progressing
) -> int:
    """Replace a lake table's rows by those that the snapshot shows.

    Args:
        pipeline: the pipeline, whose lake stands at the snapshot's LSN.
        snapshot: the snapshot under which it is read.
        progress: called with the rows so far.

    Returns:
        The number of rows.
    """
    from slotlake.spark.copy.replace import Replacement

    schemas, fingerprints = schemas_at(pipeline, snapshot, [table])
    schema = schemas[table]
    with Replacement.begin(pipeline.session, pipeline.lake, pipeline.name, schema) as replacement:
        files = copy_into(pipeline, table, snapshot, replacement.target, progress)
        require_as_copied(pipeline, schemas, fingerprints)
        rows = sum(file.rows for file in files)
        note_copied(pipeline.file.state_dir, [schema.source_name], snapshot.lsn)
        replacement.publish(copy_point(pipeline, snapshot.lsn, "backfill", rows, schema.source_name))
    return rows
