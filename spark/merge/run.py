"""Runs the SQL that stages one table: shapes it, hands Spark the folded rows, names the result."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.fold.batch import Folded, SegmentFold
from slotlake.spark.fold.conflicts import Conflicts, OnConflict, conflict_error
from slotlake.spark.lake import LakeSettings
from slotlake.spark.merge.bag_sql import bag_statements
from slotlake.spark.merge.bounds import Markers
from slotlake.spark.merge.during_statements import failpoint_during, temporary_settings, within_bounds
from slotlake.spark.merge.failures import explained
from slotlake.spark.merge.fields import field_changes, field_types
from slotlake.spark.merge.folded_views import folded_views
from slotlake.spark.merge.probe import changed_as_expected, counts_on_the_lake, lake_rows_query
from slotlake.spark.merge.representation import in_representation
from slotlake.spark.merge.rows import view_of_rows
from slotlake.spark.merge.schema_changes import Constant
from slotlake.spark.merge.sizes import broadcast_bytes_max, shuffle_partitions
from slotlake.spark.merge.sql import Target, should_gather, statements, view_schema, with_known_moves
from slotlake.spark.names import literal, quote
from slotlake.spark.publish.commits import RUN, STEPS, Point
from slotlake.spark.publish.derived_tables import empty_insert
from slotlake.spark.publish.swap import Loaded, reset_stage, steps_staged
from slotlake.spark.tables.metadata import STAGE, ancestry, head, summary
from slotlake.spark.tables.schema import (
    SCHEMA_PROPERTY,
    STAGED_SCHEMA_PROPERTY,
    TableSchema,
    schema_of,
)
from slotlake.spark.tables.settle import STAGED_FIELDS_PROPERTY, settle

_SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property."
_GATHERED = {"spark.sql.iceberg.distribution-mode": "hash"}
_NOTHING: Mapping[str, str] = {}
_NO_MARKERS = Markers()


@dataclass(frozen=True)
class Work:
    """One table to be staged for one point.

    Attributes:
        directory: where folded rows go for Spark to read.
        run: in every snapshot that this work makes. A statement that a killed run left in a Spark server may
            write to the same branch at any moment, and an INSERT meets no conflict.
        gathers: the rows that a MERGE writes are brought together first, so that they fill few files.
    """

    session: SparkSession
    lake: LakeSettings
    point: Point
    table: Loaded
    directory: Path
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    gathers: bool = False


@dataclass(frozen=True)
class Staged:
    """What was done to a table: rows folded to, and what the changes met that the source did not have."""

    folded: int
    conflicts: Conflicts


def stage(
    work: Work,
    schema: TableSchema,
    parts: Sequence[SegmentFold],
    choice: OnConflict,
    constants: Sequence[Constant] = (),
) -> Staged:
    """Stage a batch's changes in the table's branch ``stage``.

    The lake is trusted to have the rows that the changes expect, and the statements' counts verify it.  The
    lake is asked beforehand if the counts were different, if the choice depends on it, or if one segment
    builds on another.

    Args:
        work: the table.
        schema: the table's shape after the changes.
        parts: at least one; folded and applied one after the other.
        choice: what to do with a conflict.
        constants: given to all rows first.

    Raises:
        ApplyError: a conflict, and the choice is ``fail``.
        LakeError: Spark failed.
    """
    before = Conflicts.total_in(map(summary, ancestry(work.table.metadata)))
    if choice == "apply" and len(parts) == 1 and not constants:
        fold = parts[0].fold()
        target = with_known_moves(
            replace(target_of(work, schema, fold, apply_shape(work, schema)), trusted=True)
        )
        apply_fold(work, target, fold.counts.conflicts.properties(before))
        if not counts_on_the_lake(fold) or changed_as_expected(target, summaries(work)):
            return Staged(fold.rows.num_rows, fold.counts.conflicts)
        work = with_stage_reset(work)
    return _stage_after_lookup(work, schema, parts, choice, before, constants)


def _stage_after_lookup(
    work: Work,
    schema: TableSchema,
    parts: Sequence[SegmentFold],
    choice: OnConflict,
    before: Conflicts,
    constants: Sequence[Constant],
) -> Staged:
    companions = apply_shape(work, schema)
    if constants:
        fill_constants(work, constants, companions)
    nothing_staged = len(parts) == 1 and not constants
    rows, conflicts = 0, Conflicts()
    for part in parts:
        lake_counts = lake_rows(work, target_of(work, schema, part.fold(), companions), part)
        fold = part.fold(lake_counts, skip=choice == "skip")
        rows, conflicts = rows + fold.rows.num_rows, conflicts + fold.counts.conflicts
        if conflicts and choice == "fail":
            raise conflict_error(schema.source_name, conflicts)
        final = conflicts.properties(before) if part is parts[-1] else None
        apply_fold(
            work,
            with_known_moves(target_of(work, schema, fold, companions)),
            final,
            nothing_staged=nothing_staged,
        )
    return Staged(rows, conflicts)


def target_of(work: Work, schema: TableSchema, fold: Folded, companions: frozenset[str]) -> Target:
    """Return the table and a fold, for the statements.

    Args:
        work: the table.
        schema: its shape after the changes.
        fold: the folded changes.
        companions: lake names of the exact-text columns that the table has.
    """
    totals = summary(head(work.table.metadata))
    rows, files = (int(totals.get(f"total-{what}", 0)) for what in ("records", "data-files"))
    target = Target.of(work.table.name, work.lake.catalog, schema, fold, companions)
    broadcast = broadcast_bytes_max(work.session) if rows else target.broadcast_bytes
    return replace(target, lake_rows=rows, lake_files=files, broadcast_bytes=broadcast)


def apply_fold(
    work: Work, target: Target, final: Mapping[str, str] | None, *, nothing_staged: bool = True
) -> None:
    """Run a fold's statements.

    Args:
        work: the table.
        target: the table and the fold.
        final: properties of the last statement's snapshot, if that completes the table.
        nothing_staged: nothing was staged before.

    Raises:
        LakeError: Spark failed.
    """
    fold = target.fold
    rows = fold.rows
    work = replace(work, gathers=should_gather(target))
    if fold.bag:
        rows = rows.append_column("row", pa.array(np.arange(rows.num_rows)))
    with folded_views(work.session, work.directory, target, rows) as (view, lookup_view):
        sql = bag_statements(target, view) if fold.bag else statements(target, view, lookup_view)
        if final is None:
            run_steps(work, sql, target.markers)
        else:
            run_statements(work, sql, final, nothing_staged=nothing_staged, markers=target.markers)


def fill_constants(
    work: Work, constants: Sequence[Constant], companions: Collection[str], deleted: str = ""
) -> None:
    """Set columns that joined later to their constant, in all rows of the table.

    Args:
        work: the table.
        constants: the columns and their values.
        companions: lake names of the exact-text columns that the table has.
        deleted: rows in which this column is true are left as they are.
    """
    columns = [constant.column for constant in constants]
    values = pa.table({f"n{i}": constant.value for i, constant in enumerate(constants)})
    rows = in_representation(columns, values)
    kinds, assignments = [], []
    for name in rows.column_names:
        column, exact = columns[int(name.lstrip("xn"))], name.startswith("x")
        kinds.append(f"{name} {'string' if exact else column.spark_type}")
        if not exact or column.exact_name in companions:
            assignments.append(f"t.{quote(column.exact_name if exact else column.lake_name)} = s.{name}")
    branch = f"{work.table.name.sql(work.lake.catalog)}.branch_stage"
    which = f"NOT t.{quote(deleted)}" if deleted else "true"
    with view_of(work, rows, ", ".join(kinds)) as view:
        merge = f"MERGE INTO {branch} AS t USING {quote(view)} AS s ON {which} WHEN MATCHED THEN UPDATE SET"
        run_steps(work, [f"{merge} {', '.join(assignments)}"])


def lake_rows(work: Work, target: Target, part: SegmentFold) -> pa.Table | None:
    """Return how many rows the lake has per code of a segment; None if the segment looks nothing up.

    Args:
        work: the table.
        target: the table and the segment's fold.
        part: the segment.

    Raises:
        LakeError: Spark failed.
    """
    lookup = part.lookup_rows()
    if not lookup.num_rows:
        return None
    lookup = in_representation(target.columns, lookup)
    target = replace(target, view_columns=frozenset(lookup.column_names))
    with view_of(work, lookup, view_schema(target, lookup.column_names)) as view:
        return run_query(work, lake_rows_query(target, lookup, view), target.markers)


def summaries(work: Work, *, before: int = 0) -> list[dict[str, str]]:
    """Return the summaries of the snapshots that lead from main to what is staged.

    Args:
        work: the table.
        before: so many of the oldest are left out.
    """
    with open_catalog(work.lake) as catalog:
        metadata = load_one(catalog, work.table.name).metadata
    staged = itertools.islice(ancestry(metadata, STAGE), steps_staged(metadata) - before)
    return [summary(snapshot) for snapshot in staged]


def with_stage_reset(work: Work) -> Work:
    """The same work, with nothing staged."""
    with open_catalog(work.lake) as catalog:
        reset_stage(catalog, [load_one(catalog, work.table.name)])
        return replace(work, table=load_one(catalog, work.table.name))


def run_statements(
    work: Work,
    sql: Sequence[str],
    properties: Mapping[str, str] = _NOTHING,
    *,
    nothing_staged: bool = True,
    markers: Markers = _NO_MARKERS,
) -> None:
    """Run statements that make one snapshot each on ``stage``; the last snapshot gets the point's name.

    Args:
        work: the table.
        sql: the statements.
        properties: further properties for the summary of the last snapshot.
        nothing_staged: nothing was staged before.
        markers: the values that the statements name.

    Raises:
        LakeError: Spark failed.
    """
    _run_with_properties(work, sql[:-1], {}, markers)
    steps = 1 if len(sql) == 1 and nothing_staged else 1 + _steps_so_far(work)
    properties_of_last = {**work.point.summary, STEPS: str(steps), **properties}
    with failpoint_during("apply.mid_merge"):
        _run_with_properties(work, sql[-1:], properties_of_last, markers)


def run_steps(work: Work, sql: Sequence[str], markers: Markers = _NO_MARKERS) -> None:
    """Run statements that do not complete the table.

    Args:
        work: the table.
        sql: the statements.
        markers: the values that the statements name.

    Raises:
        LakeError: Spark failed.
    """
    _run_with_properties(work, sql, {}, markers)


def run_query(work: Work, sql: str, markers: Markers = _NO_MARKERS) -> pa.Table:
    """Run a query and return its rows.

    Args:
        work: the table that it reads.
        sql: the query.
        markers: the values that the query names.

    Raises:
        LakeError: Spark failed.
    """
    with (
        explained(work.table),
        within_bounds(work.session, str(work.table.name)),
        shuffle_partitions(work.session, work.table.metadata),
    ):
        return _execute(work.session, sql, markers).toArrow()


def _run_with_properties(
    work: Work, sql: Sequence[str], properties: Mapping[str, str], markers: Markers
) -> None:
    """Run statements whose snapshots say whose they are, and this."""
    settings = {_SNAPSHOT_PROPERTY + key: value for key, value in {RUN: work.run, **properties}.items()}
    with (
        temporary_settings(work.session, settings | (_GATHERED if work.gathers else {})),
        shuffle_partitions(work.session, work.table.metadata),
    ):
        for statement in sql:
            run(work.session, work.table, statement, markers)


def run(session: SparkSession, table: Loaded, sql: str, markers: Markers = _NO_MARKERS) -> None:
    """Run one statement.

    Args:
        session: runs it.
        table: the table, for errors.
        sql: the statement.
        markers: the values that it names.

    Raises:
        StageConflictError: another statement changed the table meanwhile.
        LakeError: with Spark's error class; its whole message may hold row values.
    """
    with explained(table), within_bounds(session, str(table.name)):
        _execute(session, sql, markers).collect()


def _execute(session: SparkSession, sql: str, markers: Markers) -> DataFrame:
    values = markers.of(sql)
    return session.sql(sql, args=dict(values)) if values else session.sql(sql)


def apply_shape(work: Work, schema: TableSchema) -> frozenset[str]:
    """Give the table the columns that the shape names; the lake names of all companions it has then."""
    metadata, present = work.table.metadata, field_types(work.table.metadata)
    for change in field_changes(work.table, work.lake.catalog, schema):
        run(work.session, work.table, change)
    final = settle(schema, schema_of(metadata, work.table.name))
    if metadata["properties"].get(SCHEMA_PROPERTY) != final.schema.to_json():
        properties = {STAGED_SCHEMA_PROPERTY: final.schema.to_json(), STAGED_FIELDS_PROPERTY: final.plan}
        listed = ", ".join(
            f"'{key}' = {literal(value)}" for key, value in properties.items() if value is not None
        )
        table = work.table.name.sql(work.lake.catalog)
        run(work.session, work.table, f"ALTER TABLE {table} SET TBLPROPERTIES ({listed})")
    return frozenset(c.exact_name for c in schema.columns if c.exact or c.exact_name in present)


def stage_shape(work: Work, schema: TableSchema) -> None:
    """Bring another shape into the table's branch ``stage``, and not one row.

    Raises:
        LakeError: Spark failed.
    """
    apply_shape(work, schema)
    run_statements(work, [empty_insert(work.table.name, work.lake.catalog)])


@contextmanager
def view_of(work: Work, rows: pa.Table, schema: str) -> Iterator[str]:
    """Make a temporary view of rows for the time of the context; yields its name.

    Args:
        work: the session and the directory for a file.
        rows: the rows.
        schema: their columns as DDL of Spark SQL, so that Spark opens no file to infer them.
    """
    with view_of_rows(work.session, rows, schema, work.directory, "folded") as view:
        yield view


def _steps_so_far(work: Work) -> int:
    with open_catalog(work.lake) as catalog:
        return steps_staged(load_one(catalog, work.table.name).metadata)
