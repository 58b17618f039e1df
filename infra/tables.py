"""Tables that get their whole content from the source: the first copy, and those that join later."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from decoder.copy import CopiedFile, copy_table
from decoder.privileges import require_readable
from decoder.publications import SourceTable, source_tables
from decoder.slots import ExportedSnapshot
from decoder.source import connect, source_errors
from decoder.table_marks import TableMark
from decoder.vanished import VanishedError, vanished
from infra.aside import require_columns, tables_aside
from infra.copy_states import ended
from infra.marks import marked, marks_at, require_unchanged
from infra.modes import wanted_modes
from infra.partitions import partitions_at, repartitioned, require_same_partitions
from infra.reports import TableCopy
from infra.selection import kept_selections, lake_schema, selected
from infra.types_chosen import refuse_lossy_copy

if TYPE_CHECKING:
    from infra.copying import Attempt
    from infra.output import Progressing
    from infra.pipeline import Pipeline
    from spark.commits import Point
    from spark.initial import CopyTarget
    from spark.tables import TableSchema

FILL_WAIT_SECONDS = 60.0


def published_tables(
    pipeline: Pipeline, *, to_read: bool = True, aside_too: Collection[tuple[str, str]] = ()
) -> list[SourceTable]:
    """The tables that the pipeline's publications publish now, as far as the lake takes them.

    Args:
        aside_too: of those that are set aside, these (schema, table); the others are left out.
        to_read: their rows are to be read, which this role must be allowed to; the stream obeys no rights.

    Raises:
        SourceError: a publication is missing; or the role may not read all that is published.
    """
    source = pipeline.source
    out = tables_aside(pipeline).keys() - set(aside_too)
    with connect(source.dsn) as connection, source_errors(source.dsn, "reading the publications"):
        published = source_tables(connection, source.publications)
        followed = [table for table in published if (table.schema, table.table) not in out]
        tables = selected(pipeline.file, connection, followed, kept_selections(pipeline))
        if to_read:
            require_readable(connection, {t.relation_id: [c.name for c in t.columns] for t in tables})
        return tables
    raise AssertionError("unreachable")


def copy_all(
    pipeline: Pipeline,
    tables: Sequence[SourceTable],
    snapshot: ExportedSnapshot,
    progress: Progressing,
    attempt: Attempt | None = None,
) -> list[TableCopy]:
    """Copy tables as seen in the snapshot, and publish at its LSN, at once, those that are whole.

    Args:
        attempt: when what is copied is to stay if this is cut off, or is not to be finished now.
    """
    from infra.copying import fill_tables
    from spark.initial import InitialCopy

    schemas, marks = schemas_at(pipeline, snapshot, tables)
    taken = source_clock(pipeline)  # the snapshot was made before: all that it shows was committed by then
    going_on = attempt is not None and attempt.only_goes_on
    names = [] if going_on else [(table.schema, table.table) for table in tables]
    modes = wanted_modes(pipeline.file, names)
    given = (pipeline.session, pipeline.lake, pipeline.name, list(schemas.values()))
    kept = None if attempt is None else attempt.kept(schemas, pipeline.lake.namespace)
    try:
        with InitialCopy.begin(*given, modes, kept) as copy:
            copies, states = fill_tables(pipeline, copy, schemas, snapshot, progress, attempt)
            gone = vanished(pipeline.source.dsn, [table.relation_id for table in tables])
            there = [table for table in tables if table.relation_id not in gone]
            require_as_copied(pipeline, {table: schemas[table] for table in there}, marks)
            left = {schemas[table].source_name for table in there}
            copies = [each for each in copies if each.table in left]
            whole = {each.table for each in copies}
            copy.leave_out([schema for schema in schemas.values() if schema.source_name not in whole])
            if copies or not there:
                point = copy_point(pipeline, snapshot.lsn, "copy", sum(c.rows for c in copies))
                copy.publish(replace(point, commit_time=taken))
    except BaseException:
        ended(pipeline.file.state_dir)
        raise
    for each in copies:
        states.move(each.table, "ready")
    states.forget()
    return copies


def schemas_at(
    pipeline: Pipeline, snapshot: ExportedSnapshot, tables: Sequence[SourceTable]
) -> tuple[dict[SourceTable, TableSchema], dict[int, TableMark]]:
    """The lake tables of source tables to be copied, as the snapshot shows them, and the catalog there.

    Raises:
        SourceError: the role may not read one of them whole.
    """
    dsn = pipeline.source.dsn
    require_columns(tables)
    with connect(dsn) as connection, source_errors(dsn, "looking at privileges"):
        require_readable(connection, {t.relation_id: [c.name for c in t.columns] for t in tables})
    partitions = partitions_at(pipeline, snapshot.snapshot, tables)
    marks = marks_at(pipeline, [table.relation_id for table in tables], snapshot.snapshot)
    schemas = {
        table: marked(replace(lake_schema(table), partitions=partitions[table]), marks.get(table.relation_id))
        for table in tables
    }
    return schemas, marks


def require_as_copied(
    pipeline: Pipeline, schemas: Mapping[SourceTable, TableSchema], marks: Mapping[int, TableMark]
) -> None:
    """Raises ChangedMeanwhileError if a table, or a partition of it, is not what `schemas_at` found."""
    require_unchanged(pipeline, marks, schemas)
    require_same_partitions(pipeline, {table: schema.partitions for table, schema in schemas.items()})


def source_clock(pipeline: Pipeline) -> datetime:
    """What time it is at the source."""
    with connect(pipeline.source.dsn) as connection, source_errors(pipeline.source.dsn):
        row = connection.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        now: datetime = row[0]
        return now.astimezone(UTC)
    raise AssertionError("unreachable")


def copy_into(
    pipeline: Pipeline,
    table: SourceTable,
    snapshot: ExportedSnapshot,
    target: CopyTarget,
    progress: Progressing,
) -> list[CopiedFile]:
    """Write a table's rows, as seen in the snapshot, as Parquet files where the lake wants them."""
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


def copy_point(pipeline: Pipeline, lsn: int, kind: str, rows: int, name: str = "") -> Point:
    """The consistency point of a copy at an LSN."""
    from decoder.lsn import format_lsn
    from infra.source_history import server_origin
    from spark.commits import Point

    origin = server_origin(pipeline)
    batch = "-".join(part for part in (kind, format_lsn(lsn).replace("/", "_"), name) if part)
    return Point(pipeline.name, lsn, batch, digest="", kind=kind, changes=rows, origin=origin)


def fill_added_columns(pipeline: Pipeline, progress: Progressing) -> list[str]:
    """Copy again the tables whose added columns have a default: their old rows got it with no row event.

    PostgreSQL keeps a constant default beside the table (pg_attribute.attmissingval) or rewrites the table
    for a volatile one; neither reaches the stream.  Likewise those to which a row came with a value that was
    not sent (`spark.row_filter.Taken.lost`), and those that partitions joined or left.  Several at once are
    read under one snapshot.
    """
    from infra.exact import beside_writers
    from infra.large_tables import put_off

    stale = _unfilled(pipeline)
    if stale:
        off = put_off(pipeline, dict.fromkeys(stale, "rows got values that no change told of"))
        stale = [table for table in stale if table not in off]
    if stale:
        with beside_writers(pipeline, FILL_WAIT_SECONDS, progress) as snapshot:
            for table in stale:
                with suppress(VanishedError):  # the next batch finds that it has left
                    replace_content(pipeline, table, snapshot, progress)
    return [table.quoted for table in stale]


def has_unfilled_columns(pipeline: Pipeline) -> bool:
    """Is there a table that must be copied again to be exact?"""
    return bool(_unfilled(pipeline))


def _unfilled(pipeline: Pipeline) -> list[SourceTable]:
    from spark.read import Cut

    held = Cut.latest(pipeline.lake).followed()
    lacking = {
        (table.schema, table.table): {column.name for column in table.live if column.unfilled}
        for table in held
        if any(column.unfilled for column in table.live)
    }
    lost = {(table.schema, table.table) for table in held if any(column.lost for column in table.live)}
    lost |= repartitioned(pipeline, held)
    if not lacking and not lost:
        return []
    return [
        table
        for table in published_tables(pipeline, to_read=False)
        if (table.schema, table.table) in lost
        or any(
            c.has_default and c.name in lacking.get((table.schema, table.table), ()) for c in table.columns
        )
    ]


def replace_content(
    pipeline: Pipeline, table: SourceTable, snapshot: ExportedSnapshot, progress: Progressing
) -> int:
    """Replace a lake table's rows by those that the snapshot shows; the number of rows."""
    from spark.replace import Replacement

    schemas, marks = schemas_at(pipeline, snapshot, [table])
    schema = schemas[table]
    with Replacement.begin(pipeline.session, pipeline.lake, pipeline.name, schema) as replacement:
        files = copy_into(pipeline, table, snapshot, replacement.target, progress)
        require_as_copied(pipeline, schemas, marks)
        rows = sum(file.rows for file in files)
        replacement.publish(copy_point(pipeline, snapshot.lsn, "backfill", rows, schema.source_name))
    return rows
