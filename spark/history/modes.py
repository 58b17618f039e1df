"""Which derived tables a mirror has, and how a batch reaches them.

The lake itself decides: a derived table is made where the pipeline file asks for its mode, and from then on
every batch, copy and backfill that changes the mirror changes it in the same consistency point, whatever the
file says later.  So it has no gaps, and a replay or a crashed run needs to know the lake only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from slotlake.spark.catalog.base import Loaded, load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.fold.conflicts import OnConflict
from slotlake.spark.fold.slices import ChangeSlice
from slotlake.spark.history import changes_table
from slotlake.spark.history import table as history_table
from slotlake.spark.history.changes_table import Numbered, change_rows
from slotlake.spark.history.fold import HistoryFold
from slotlake.spark.merge.representation import in_representation
from slotlake.spark.merge.run import Work, run, run_query, run_statements, run_steps, view_of
from slotlake.spark.merge.slices import end_slice
from slotlake.spark.merge.sql import Target
from slotlake.spark.names import LakeName
from slotlake.spark.publish.derived_tables import Source, empty_insert, field_changes, fields_of
from slotlake.spark.tables.metadata import Metadata
from slotlake.spark.tables.schema import LakeColumn, TableSchema


class Mode(Protocol):
    """What a kind of derived table does; each kind is a module.

    ``IMAGES`` are the names of its structs that hold a row of the mirror; empty if its own columns do.
    """

    def definition(
        self,
        name: LakeName,
        catalog: str,
        schema: TableSchema,
        pipeline: str,
        location: str,
        table_format: int,
    ) -> str:
        """Return the SQL that makes the table.

        Args:
            location: the directory of the table, as a URI.
        """

    IMAGES: Sequence[str]

    def field_name(self, name: str) -> str:
        """Return the name that a field of the mirror has in this table."""

    def derived_column(self, column: LakeColumn) -> LakeColumn:
        """Return a column of the mirror under the name that it has in this table."""

    def copy_statements(self, metadata: Metadata, target: str, source: Source) -> list[str]:
        """Return the SQL that adds a copy of the mirror's rows; the last statement completes the table.

        Args:
            target: the table or branch to write to, as Spark SQL names it.
        """

    def amend_statements(
        self, metadata: Metadata, target: str, new_rows: Source, touched: str, key: Sequence[str]
    ) -> list[str]:
        """Return the SQL for rows that were read again: the rows of some keys end, and the new rows begin.

        Args:
            target: the table or branch to write to, as Spark SQL names it.
            touched: the view of all keys concerned, those of the new rows included.
            key: the columns of that view, which are fields of the mirror.
        """


MODES: Mapping[str, Mode] = {"append": changes_table, "history": history_table}


@dataclass(frozen=True)
class MirrorChanges:
    """The changes that a batch has for a mirror.

    Attributes:
        schema: the mirror's shape after the changes, as it is staged.
        names: field → its new name, of fields that are renamed with the publication.
        slices: returns the changes as the lake takes them, one slice after the other.
        sliced: there is more than one slice.
    """

    schema: TableSchema
    names: Mapping[str, str]
    slices: Callable[[], Iterable[ChangeSlice]]
    sliced: bool = False


def stage_derived_changes(work: Work, mode: str, changes: MirrorChanges, choice: OnConflict) -> None:
    """Stage a batch's changes in a derived table of the mirror.

    Raises:
        LakeError: Spark failed.
    """
    work = with_mirror_fields(work, mode, changes.schema, changes.names)
    if mode == "append":
        _append(work, changes)
    else:
        _versions(work, changes, choice)


def missing_fields(table: Loaded, mode: str, schema: TableSchema, names: Mapping[str, str]) -> list[str]:
    """Return what ALTER TABLE must do so that a derived table has all fields of the mirror.

    Args:
        names: field → its new name, of fields that are renamed with the publication.
    """
    kind = MODES[mode]
    mirror_fields = fields_of(replace(schema, columns=tuple(map(kind.derived_column, schema.columns))))
    plan = {kind.field_name(old): kind.field_name(new) for old, new in names.items()}
    return field_changes(table.metadata, kind.IMAGES, mirror_fields, plan)


def with_mirror_fields(work: Work, mode: str, schema: TableSchema, names: Mapping[str, str]) -> Work:
    """Give a derived table all fields that the mirror has, and return the work on it.

    Args:
        names: field → its new name, of fields that are renamed with the publication.
    """
    changes = missing_fields(work.table, mode, schema, names)
    if not changes:
        return work
    for change in changes:
        if MODES[mode].IMAGES:
            with open_catalog(work.lake) as catalog:
                catalog.make_room_for_columns(work.table.name)
        run(work.session, work.table, f"ALTER TABLE {work.table.name.sql(work.lake.catalog)} {change}")
    with open_catalog(work.lake) as catalog:
        return replace(work, table=load_one(catalog, work.table.name))


def _append(work: Work, changes: MirrorChanges) -> None:
    name, catalog = work.table.name, work.lake.catalog
    numbered = Numbered()
    for each in changes.slices():
        rows = change_rows(changes.schema, each, changes.names, numbered)
        if rows is None:
            continue
        with view_of(work, rows, changes_table.view_schema(changes.schema, rows)) as view:
            branch = f"{name.sql(catalog)}.branch_stage"
            metadata = work.table.metadata
            sql = [changes_table.append_statement(changes.schema, metadata, branch, rows, view)]
            if not changes.sliced:
                run_statements(work, sql)
                return
            run_steps(work, sql)
        del each, rows
        end_slice(work)
    run_statements(work, [empty_insert(name, catalog)], nothing_staged=not changes.sliced)


def _versions(work: Work, changes: MirrorChanges, choice: OnConflict) -> None:
    staged = 0
    for each in changes.slices():
        for number, parts in enumerate(each.segments):
            final = not changes.sliced and number == len(each.segments) - 1
            _stage_versions(work, changes, HistoryFold(parts), each.transactions, choice, (staged, final))
            staged += 1
            if final:
                return
            del parts
        del each
        end_slice(work)
    statement = empty_insert(work.table.name, work.lake.catalog)
    run_statements(work, [statement], nothing_staged=not changes.sliced)


def _stage_versions(
    work: Work,
    changes: MirrorChanges,
    fold: HistoryFold,
    transactions: pa.Table,
    choice: OnConflict,
    place: tuple[int, bool],
) -> None:
    """Stage what one segment does; ``place``: how many were staged before it, whether it is the last."""
    schema, (staged, final) = changes.schema, place
    counts = _open_version_counts(work, schema, fold)
    versions = fold.versions(counts, transactions, skip=choice == "skip")
    target = history_table.target_of(
        work.table.name, work.lake.catalog, schema, work.table.metadata, versions
    )
    if versions.lookup_rows is not None:
        versions = replace(versions, lookup_rows=in_representation(target.columns, versions.lookup_rows))
    with (
        _view(work, target, target.fold.rows) as view,
        _view(work, target, versions.lookup_rows) as lookup_view,
    ):
        continued = changes.sliced and staged > 0
        sql = history_table.statements(target, versions, view, lookup_view, continued=continued)
        if final:
            run_statements(work, sql, nothing_staged=not staged, markers=target.markers)
        else:
            run_steps(work, sql, target.markers)


def _open_version_counts(work: Work, schema: TableSchema, segment: HistoryFold) -> pa.Table | None:
    """Return how many open versions there are per code; None if the segment looks nothing up."""
    lookup = segment.lookup_rows()
    if not lookup.num_rows:
        return None
    target = history_table.target_of(
        work.table.name, work.lake.catalog, schema, work.table.metadata, segment.without_versions(lookup)
    )
    with _view(work, target, target.fold.rows) as view:
        return run_query(
            work, history_table.open_versions_query(target, target.fold.rows, view), target.markers
        )


@contextmanager
def _view(work: Work, target: Target, rows: pa.Table | None) -> Iterator[str]:
    if rows is None:
        yield ""
        return
    with view_of(work, rows, history_table.view_schema(target, rows)) as view:
        yield view
