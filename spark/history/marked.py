"""Stages a batch in a mirror whose deleted rows stay (`on_delete: mark`).

The batch is folded as for a history (`spark.history.fold`): what a key held at the end of each transaction.
The mirror has the last of it: the live row, or the row as it was when it was deleted, marked.  So it does not
depend on where batches end: a row that was inserted by one transaction and deleted by the next one, in the
same batch, is there, marked.

Invariant: of one key at most one row is live, and a key that is live has no marked row
(`spark.tables.soft_deletes`).  A row is found by its key among the live ones; marked rows of a key that lives
again are removed first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.errors import ApplyError
from slotlake.spark.fold.batch import FoldCounts, Folded, segment_folds
from slotlake.spark.fold.columns import Array, Part, fold_key
from slotlake.spark.fold.conflicts import Conflicts, OnConflict, conflict_error
from slotlake.spark.fold.segments import segments_with_truncates
from slotlake.spark.history.fold import HistoryFold, Versions
from slotlake.spark.history.table import open_versions_query, versions_source, view_schema
from slotlake.spark.history.walk import Events
from slotlake.spark.merge.bag_sql import alias_of
from slotlake.spark.merge.fields import key_fields
from slotlake.spark.merge.run import (
    Staged,
    Work,
    apply_shape,
    fill_constants,
    run_query,
    run_statements,
    run_steps,
    view_of,
)
from slotlake.spark.merge.schema_changes import Constant
from slotlake.spark.merge.sql import Target, insert_values, key_range, same_key
from slotlake.spark.names import quote
from slotlake.spark.publish.derived_tables import empty_insert, timestamp
from slotlake.spark.tables import soft_deletes
from slotlake.spark.tables.metadata import ancestry, head, summary
from slotlake.spark.tables.schema import TableSchema, schema_of

_FILES_TOGETHER = 4
_DELETED = quote(soft_deletes.DELETED)


class LastVersionFold(HistoryFold):
    """Changes that name their row by the same columns; of each key only the last version remains."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__(parts)
        self._parts = parts

    def conflicts(self, live_counts: pa.Table, *, skip: bool) -> Conflicts:
        """Count the changes after the last TRUNCATE that met what they should not.

        Args:
            live_counts: ``code`` of `lookup_rows`, and how many live rows the lake has (``held``).
            skip: pass over such changes.
        """
        if not self.truncates:
            return self.fold(live_counts, skip=skip).counts.conflicts
        after_truncate = segment_folds(self._parts)
        return sum((each.fold(skip=skip).counts.conflicts for each in after_truncate), Conflicts())

    def _keyed_versions(self, events: Events, has_open: Array, transactions: pa.Table) -> Versions:
        versions = super()._keyed_versions(events, has_open, transactions)
        closed = events.key[events.first & has_open[events.key]]
        begun = events.key[events.last >= 0]
        is_last = np.ones(len(begun), np.bool_)
        is_last[:-1] = begun[1:] != begun[:-1]
        remaining = np.concatenate([~np.isin(closed, begun), is_last])
        return replace(versions, rows=versions.rows.filter(pa.array(remaining)))


@dataclass(frozen=True)
class _Counts:
    """How many rows the lake has: live ones per ``code`` of `lookup_rows`; a missing code means 0."""

    live: pa.Table
    marked: int


def stage_marked(
    work: Work,
    schema: TableSchema,
    parts: Sequence[Part],
    transactions: pa.Table,
    choice: OnConflict,
    constants: Sequence[Constant] = (),
) -> Staged:
    """Stage a batch's changes in the branch ``stage`` of a mirror whose deleted rows stay.

    Args:
        work: the work on the mirror.
        schema: the mirror's shape after the changes.
        parts: the changes as the lake takes them.
        transactions: as `decoder.changelog.batches.Batch.transaction_table` has them.
        choice: what to do with a conflict.
        constants: given to all live rows first.

    Raises:
        PipelineFileError: a column has the name of one that the mirror needs itself.
        ApplyError: a conflict, and the choice is ``fail``; or the table has no key any more.
        LakeError: Spark failed.
    """
    schema = replace(schema, key=_identity(schema, parts))
    soft_deletes.require_unused_names(schema.schema, schema.table, [c.lake_name for c in schema.live])
    before = Conflicts.total_in(map(summary, ancestry(work.table.metadata)))
    companions = apply_shape(work, schema)
    if constants:
        fill_constants(work, constants, companions, soft_deletes.DELETED)
    segments = [
        LastVersionFold(part) for part in segments_with_truncates([p for p in parts if p[1].num_rows])
    ]
    if not segments:
        run_statements(work, [empty_insert(work.table.name, work.lake.catalog)], nothing_staged=False)
    rows, conflicts = 0, Conflicts()
    key = schema_of(work.table.metadata, work.table.name).key
    for segment in segments:
        if set(segment.key) != set(key):  # rows that were marked by another key may have this one
            branch = f"{work.table.name.sql(work.lake.catalog)}.branch_stage"
            key = segment.key
            run_steps(work, [soft_deletes.superseded(branch, key_fields(schema, companions, key))])
        counts = _lake_counts(work, schema, companions, segment)
        met = segment.conflicts(counts.live, skip=choice == "skip")
        conflicts = met if segment.truncates else conflicts + met
        if met and choice == "fail":
            raise conflict_error(schema.source_name, met)
        versions = segment.versions(counts.live, transactions, skip=choice == "skip")
        final = conflicts.properties(before) if segment is segments[-1] else None
        _apply(work, _target(work, schema, companions, versions), versions, counts, final)
        rows += versions.rows.num_rows
    return Staged(rows, conflicts)


def _identity(schema: TableSchema, parts: Sequence[Part]) -> tuple[str, ...]:
    """Return the key by which the newest changes name their rows; marked rows are told apart by it."""
    keys = [fold_key(relation) for relation, _ in parts]
    if all(keys):
        return keys[-1] if keys else schema.key
    raise ApplyError(
        "changes of a table with `on_delete: mark` do not name its rows by a key",
        where=f"table {schema.source_name}",
        way_out="give the table a primary key and REPLICA IDENTITY DEFAULT (or FULL), then copy it again: "
        "slotlake resume; or set on_delete: delete for it and copy it again: "
        f"slotlake backfill --table '{schema.source_name}'",
    ).of(schema.schema, schema.table)


def _target(work: Work, schema: TableSchema, companions: frozenset[str], versions: Versions) -> Target:
    rows = versions.rows
    counts = FoldCounts(rows.num_rows, Conflicts())
    nothing = np.empty(0, np.int64)
    fold = Folded(str(work.table.name), versions.columns, versions.key, False, rows, counts, nothing)
    files = int(summary(head(work.table.metadata)).get("total-data-files", 0))
    return replace(Target.of(work.table.name, work.lake.catalog, schema, fold, companions), lake_files=files)


def _lake_counts(
    work: Work, schema: TableSchema, companions: frozenset[str], segment: LastVersionFold
) -> _Counts:
    lookup = segment.lookup_rows()
    if not lookup.num_rows:
        return _Counts(pa.table({name: pa.array([], pa.int64()) for name in ("code", "held")}), 0)
    target = _target(work, schema, companions, segment.without_versions(lookup))
    with _view(work, target) as view:
        queries = [
            open_versions_query(target, target.fold.rows, view, holds)
            for holds in (soft_deletes.LIVE, _DELETED)
        ]
        live, marked = (f"SELECT code, held, {i} AS kind FROM ({query})" for i, query in enumerate(queries))
        answer = run_query(work, f"{live} UNION ALL {marked}", target.markers)
    is_marked = pc.equal(answer["kind"], 1)
    marked_count = pc.sum(answer.filter(is_marked)["held"]).as_py() or 0
    return _Counts(answer.filter(pc.invert(is_marked)), marked_count)


def _apply(
    work: Work, target: Target, versions: Versions, counts: _Counts, final: Mapping[str, str] | None
) -> None:
    """Run the statements of a segment; ``final``: of the last snapshot, if that completes the table."""
    gathers = target.lake_files > _FILES_TOGETHER and versions.rows.num_rows > 1
    work = replace(work, gathers=gathers)
    with _view(work, target) as view:
        steps = [_remove_marked(target, view)] if counts.marked else []
        nothing = not versions.rows.num_rows and versions.truncated is None
        # A MERGE of nothing need not make a snapshot.
        last = empty_insert(target.name, target.catalog) if nothing else _merge(target, versions, view)
        steps.append(last)
        if final is None:
            run_steps(work, steps, target.markers)
        else:
            run_statements(work, steps, final, nothing_staged=False, markers=target.markers)


def _remove_marked(target: Target, view: str) -> str:
    """Remove the marked rows of keys that get a row."""
    rows = target.fold.rows
    condition = " AND ".join([f"t.{_DELETED}", *same_key(target, "t"), *key_range(target, rows, "t")])
    source = f"(SELECT * FROM {quote(view)} WHERE NOT close)"
    return f"MERGE INTO {target.branch} AS t USING {source} AS s ON {condition} WHEN MATCHED THEN DELETE"


def _merge(target: Target, versions: Versions, view: str) -> str:
    t = alias_of(target)
    own = soft_deletes.values(
        "s.to_lsn IS NOT NULL", "coalesce(s.to_lsn, s.from_lsn)", "coalesce(s.to_time, s.from_time)"
    )
    values = [*_row_values(target), *own.items()]
    assigned = ", ".join(f"{t}.{name} = {value}" for name, value in values)
    marking = ", ".join(f"{t}.{name} = {value}" for name, value in own.items())
    names, inserted = (", ".join(side) for side in zip(*values, strict=True))
    clauses = [
        f"WHEN MATCHED AND s.close THEN UPDATE SET {marking}",
        f"WHEN MATCHED THEN UPDATE SET {assigned}",
        f"WHEN NOT MATCHED AND NOT s.close THEN INSERT ({names}) VALUES ({inserted})",
    ]
    bounds = key_range(target, target.fold.rows, t)
    if versions.truncated is not None:
        at, when = versions.truncated
        ended = soft_deletes.values("true", f"{at}L", timestamp(when))
        listed = ", ".join(f"{t}.{name} = {value}" for name, value in ended.items())
        # What no row of the batch matches is marked too: then no file may be left out.
        bounds = []
        clauses.append(f"WHEN NOT MATCHED BY SOURCE AND NOT {t}.{_DELETED} THEN UPDATE SET {listed}")
    condition = " AND ".join([f"NOT {t}.{_DELETED}", *same_key(target, t), *bounds])
    source = versions_source(target, versions, view, "", soft_deletes.LIVE)
    return f"MERGE INTO {target.branch} AS {t} USING {source} AS s ON {condition} {' '.join(clauses)}"


def _row_values(target: Target) -> list[tuple[str, str]]:
    """(lake column, value) of every column; of those that the changes know nothing of, the row's before."""
    values = [pair for pair in insert_values(target) if pair[1] != "NULL"]
    past = [name for name, value in insert_values(target) if value == "NULL"]
    return values + [(name, f"s.p{number}") for number, name in enumerate(past)]


@contextmanager
def _view(work: Work, target: Target) -> Iterator[str]:
    with view_of(work, target.fold.rows, view_schema(target, target.fold.rows)) as view:
        yield view
