"""Stages one table's changes: folds them, asks the lake where that is needed, and runs the statements."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.fold.batch import Folded, SegmentFold
from slotlake.spark.fold.conflicts import Conflicts, OnConflict, conflict_error
from slotlake.spark.merge.bag_sql import bag_statements
from slotlake.spark.merge.probe import changed_as_expected, counts_on_the_lake, lake_rows_query
from slotlake.spark.merge.replacement import Replacement, replacement_of, should_gather, with_known_moves
from slotlake.spark.merge.representation import in_representation
from slotlake.spark.merge.rows import view_of_rows
from slotlake.spark.merge.run import (
    Work,
    apply_shape,
    run_query,
    run_statements,
    run_steps,
    summaries,
    view_of,
)
from slotlake.spark.merge.schema_changes import Constant
from slotlake.spark.merge.sizes import broadcast_bytes_max
from slotlake.spark.merge.sql import Target, statements, view_schema
from slotlake.spark.names import quote
from slotlake.spark.publish.swap import reset_stage
from slotlake.spark.session import is_remote, shares_files
from slotlake.spark.tables.metadata import ancestry, head, summary
from slotlake.spark.tables.schema import TableSchema


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
        parts: at least one; folded and applied one after the other.
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
        final: properties of the last statement's snapshot, if that completes the table.

    Raises:
        LakeError: Spark failed.
    """
    rows, replacement = target.fold.rows, replacement_of(target)
    if target.fold.bag:
        rows = rows.append_column("row", pa.array(np.arange(rows.num_rows)))
    work = replace(work, gathers=should_gather(target, replacement))
    schema = view_schema(target, rows.column_names)
    if replacement is None:
        with view_of(work, rows, schema) as view:
            sql = bag_statements(target, view) if target.fold.bag else statements(target, view)
            _run_last(work, target, sql, final, nothing_staged=nothing_staged)
        return
    with views_to_replace_with(work.session, work.directory, replacement, rows) as (lookup_view, rows_view):
        statement = replacement.take_away(lookup_view)
        if replacement.appends:
            run_steps(work, [statement], target.markers)
            statement, nothing_staged = replacement.append(rows_view()), False
        _run_last(work, target, [statement], final, nothing_staged=nothing_staged)


def _run_last(
    work: Work, target: Target, sql: Sequence[str], final: Mapping[str, str] | None, *, nothing_staged: bool
) -> None:
    if final is None:
        run_steps(work, sql, target.markers)
    else:
        run_statements(work, sql, final, nothing_staged=nothing_staged, markers=target.markers)


def fill_constants(
    work: Work, constants: Sequence[Constant], companions: Collection[str], deleted: str = ""
) -> None:
    """Set columns that joined later to their constant, in all rows of the table.

    Args:
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


def with_stage_reset(work: Work) -> Work:
    """The same work, with nothing staged."""
    with open_catalog(work.lake) as catalog:
        reset_stage(catalog, [load_one(catalog, work.table.name)])
        return replace(work, table=load_one(catalog, work.table.name))


# Temporary views of folded rows, for the two statements that replace rows in the lake.


@contextmanager
def views_to_replace_with(
    session: SparkSession, directory: Path, replacement: Replacement, rows: pa.Table
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Make views for the time of the context.

    Where they are two, the rows are handed to Spark while the first statement is at work: it needs the keys.

    Yields:
        The name of the view for the first statement; and what returns that for the second, once it is there.

    Raises:
        LakeError: a file cannot be written.
    """
    schema = view_schema(replacement.target, rows.column_names)

    def view_of(part: pa.Table, schema: str) -> AbstractContextManager[str]:
        return view_of_rows(session, part, schema, directory, "folded", sized=False)

    with ExitStack() as views:
        if _are_columns(session, replacement.lookup, rows):
            view = views.enter_context(view_of(rows, schema))
            yield view, lambda: view
            return
        lookup_view = views.enter_context(view_of(replacement.lookup, replacement.schema))
        if not replacement.appends:
            yield lookup_view, lambda: lookup_view  # nobody asks
            return
        with ThreadPoolExecutor(1) as beside:
            made = beside.submit(views.enter_context, view_of(rows, schema))
            yield lookup_view, made.result


def _are_columns(session: SparkSession, lookup: pa.Table, rows: pa.Table) -> bool:
    """Return whether both statements read one view.

    They do where all of it is looked up with, and where Spark reads some columns of a file, or of what it
    has.  Where slotlake's own process drives a cluster, it sends rows whole to the executors, which send back
    what is broadcast (docs/adr/0072).
    """
    if not set(lookup.column_names) <= set(rows.column_names):
        return False
    return lookup.num_columns == rows.num_columns or shares_files(session) or is_remote(session)
