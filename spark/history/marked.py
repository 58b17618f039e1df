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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.errors import ApplyError
from slotlake.spark.fold.batch import FoldCounts, Folded, segment_folds
from slotlake.spark.fold.columns import Array, Part, fold_key
from slotlake.spark.fold.conflicts import Conflicts, OnConflict, conflict_error
from slotlake.spark.fold.slices import ChangeSlice
from slotlake.spark.history.divided import TransactionPart, part_of, restore_all, restore_deleted
from slotlake.spark.history.fold import HistoryFold, Versions
from slotlake.spark.history.table import open_versions_query, versions_source, view_schema
from slotlake.spark.history.walk import Events
from slotlake.spark.merge.bag_sql import alias_of
from slotlake.spark.merge.fields import key_fields
from slotlake.spark.merge.run import (
    Work,
    apply_shape,
    run_query,
    run_statements,
    run_steps,
    view_of,
)
from slotlake.spark.merge.schema_changes import Constant
from slotlake.spark.merge.slices import complete, end_slice
from slotlake.spark.merge.sql import Target, insert_values, key_range, same_key
from slotlake.spark.merge.stage import Staged, fill_constants
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
    """How many rows the lake has: live ones per ``code`` of `lookup_rows`; a missing code means 0.

    ``marked``: rows that are marked; ``written``: live rows that earlier slices of the transaction wrote.
    """

    live: pa.Table
    marked: int = 0
    written: int = 0


class MarkedChanges(Protocol):
    """The changes that a batch has for a mirror whose deleted rows stay.

    Attributes:
        schema: the mirror's shape after them.
        sliced: there is more than one slice.
    """

    schema: TableSchema
    sliced: bool

    @property
    def relations(self) -> Sequence[Any]:
        """The relation versions, as the lake takes them."""

    def slices(self) -> Iterable[ChangeSlice]:
        """Return the changes, one slice after the other: whole transactions, or changes of a single one."""


def stage_marked(
    work: Work, changes: MarkedChanges, choice: OnConflict, constants: Sequence[Constant] = ()
) -> Staged:
    """Stage a batch's changes in the branch ``stage`` of a mirror whose deleted rows stay.

    Args:
        constants: given to all live rows first.

    Raises:
        PipelineFileError: a column has the name of one that the mirror needs itself.
        ApplyError: a conflict, and the choice is ``fail``; or the table has no key any more.
        LakeError: Spark failed.
    """
    schema = replace(changes.schema, key=_identity(changes))
    soft_deletes.require_unused_names(schema.schema, schema.table, [c.lake_name for c in schema.live])
    before = Conflicts.total_in(map(summary, ancestry(work.table.metadata)))
    companions = apply_shape(work, schema)
    if constants:
        fill_constants(work, constants, companions, soft_deletes.DELETED)
    stage = _Stage(work, schema, companions, choice, before)
    for each in changes.slices():
        for number, parts in enumerate(each.segments):
            segment = LastVersionFold(parts)
            part = part_of(work, each, segment.key, stage.part) if changes.sliced else None
            last = not changes.sliced and number == len(each.segments) - 1
            stage.segment(segment, each.transactions, part, last=last)
            del parts, segment
        del each
        if changes.sliced:
            end_slice(work)
    if not stage.complete:
        complete(work, stage.conflicts.properties(before))
    return Staged(stage.rows, stage.conflicts)


class _Stage:
    """The branch, segment after segment.

    Attributes:
        part: what the last segment was of its only transaction.
        complete: the table is complete.
    """

    def __init__(
        self,
        work: Work,
        schema: TableSchema,
        companions: frozenset[str],
        choice: OnConflict,
        before: Conflicts,
    ) -> None:
        self._work, self._schema, self._companions = work, schema, companions
        self._choice, self._before = choice, before
        self._key = schema_of(work.table.metadata, work.table.name).key
        self.part: TransactionPart | None = None
        self.rows, self.conflicts, self.complete = 0, Conflicts(), False

    def segment(
        self, segment: LastVersionFold, transactions: pa.Table, part: TransactionPart | None, *, last: bool
    ) -> None:
        """Stage a segment; ``last``: that completes the table."""
        work, schema, skip = self._work, self._schema, self._choice == "skip"
        if set(segment.key) != set(self._key):  # rows that were marked by another key may have this one
            branch = f"{work.table.name.sql(work.lake.catalog)}.branch_stage"
            self._key = segment.key
            run_steps(
                work, [soft_deletes.superseded(branch, key_fields(schema, self._companions, self._key))]
            )
        self.part = part
        counts = _lake_counts(work, schema, self._companions, segment, part)
        met = segment.conflicts(counts.live, skip=skip)
        self.conflicts = met if segment.truncates else self.conflicts + met
        if met and self._choice == "fail":
            raise conflict_error(schema.source_name, met)
        versions = segment.versions(counts.live, transactions, skip=skip)
        final = self.conflicts.properties(self._before) if last else None
        target = _target(work, schema, self._companions, versions)
        _apply(work, target, versions, (counts, part), final)
        self.rows, self.complete = self.rows + versions.rows.num_rows, last


def _identity(changes: MarkedChanges) -> tuple[str, ...]:
    """Return the key by which the newest changes name their rows; marked rows are told apart by it."""
    schema, keys = changes.schema, [fold_key(relation) for relation in changes.relations]
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
    work: Work,
    schema: TableSchema,
    companions: frozenset[str],
    segment: LastVersionFold,
    part: TransactionPart | None,
) -> _Counts:
    lookup = segment.lookup_rows()
    if not lookup.num_rows:
        return _Counts(pa.table({name: pa.array([], pa.int64()) for name in ("code", "held")}))
    target = _target(work, schema, companions, segment.without_versions(lookup))
    kinds = [soft_deletes.LIVE, _DELETED, *([part.wrote] if part and part.continued else [])]
    with _view(work, target) as view:
        queries = [open_versions_query(target, target.fold.rows, view, holds) for holds in kinds]
        counts = [f"SELECT code, held, {i} AS kind FROM ({query})" for i, query in enumerate(queries)]
        answer = run_query(work, " UNION ALL ".join(counts), target.markers)
    of_kind = [answer.filter(pc.equal(answer["kind"], kind)) for kind in range(3)]
    return _Counts(of_kind[0], *(pc.sum(each["held"]).as_py() or 0 for each in of_kind[1:]))


def _apply(
    work: Work,
    target: Target,
    versions: Versions,
    known: tuple[_Counts, TransactionPart | None],
    final: Mapping[str, str] | None,
) -> None:
    """Run the statements of a segment; ``final``: of the last snapshot, if that completes the table."""
    gathers = target.lake_files > _FILES_TOGETHER and versions.rows.num_rows > 1
    work = replace(work, gathers=gathers)
    with _view(work, target) as view:
        steps = _statements(target, versions, view, *known)
        if final is None:
            run_steps(work, steps, target.markers)
        else:
            run_statements(work, steps, final, nothing_staged=False, markers=target.markers)


def _statements(
    target: Target, versions: Versions, view: str, counts: _Counts, part: TransactionPart | None
) -> list[str]:
    if not versions.rows.num_rows and versions.truncated is None:
        # A MERGE of nothing need not make a snapshot.
        return [empty_insert(target.name, target.catalog)]
    steps: list[str] = []
    begins = versions.rows.num_rows > versions.closes
    removes, wrote = bool(counts.marked), ""
    if part and part.continued and versions.truncated is not None:
        steps = restore_all(part, target)
        removes = begins  # some of what was restored may live again
    elif part and counts.written and versions.closes:
        steps = [restore_deleted(part, target, target.fold.rows.slice(0, versions.closes), view)]
        wrote = f"{soft_deletes.LSN} = {part.lsn}L"
    if removes:
        steps.append(_remove_marked(target, view))
    return [*steps, _merge(target, versions, view, wrote)]


def _remove_marked(target: Target, view: str) -> str:
    """Remove the marked rows of keys that get a row."""
    rows = target.fold.rows
    condition = " AND ".join([f"t.{_DELETED}", *same_key(target, "t"), *key_range(target, rows, "t")])
    source = f"(SELECT * FROM {quote(view)} WHERE NOT close)"
    return f"MERGE INTO {target.branch} AS t USING {source} AS s ON {condition} WHEN MATCHED THEN DELETE"


def _merge(target: Target, versions: Versions, view: str, wrote: str) -> str:
    """The MERGE; ``wrote``: tells the rows that leave with a delete, as what they were before is restored."""
    t = alias_of(target)
    own = soft_deletes.values(
        "s.to_lsn IS NOT NULL", "coalesce(s.to_lsn, s.from_lsn)", "coalesce(s.to_time, s.from_time)"
    )
    values = [*_row_values(target), *own.items()]
    assigned = ", ".join(f"{t}.{name} = {value}" for name, value in values)
    marking = ", ".join(f"{t}.{name} = {value}" for name, value in own.items())
    names, inserted = (", ".join(side) for side in zip(*values, strict=True))
    clauses = [
        *([f"WHEN MATCHED AND s.close AND {t}.{wrote} THEN DELETE"] if wrote else []),
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
    values = [
        (name, f"s.{source}") for i in range(len(target.columns)) for source, _, name in target.pair(i, "n")
    ]
    past = [name for name, value in insert_values(target) if value == "NULL"]
    return values + [(name, f"s.p{number}") for number, name in enumerate(past)]


@contextmanager
def _view(work: Work, target: Target) -> Iterator[str]:
    with view_of(work, target.fold.rows, view_schema(target, target.fold.rows)) as view:
        yield view
