"""Which tables are kept beside a mirror, and how a batch feeds them.

What the lake has is fed: a table beside a mirror is made where the pipeline file asks for its mode, and
from then on every batch, copy and backfill that changes the mirror changes it in the same consistency point,
whatever the file says later.  So it has no gaps, and a replay or a crashed run needs to know nothing but the
lake.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from slotlake.decoder.compiled.arrays import python_values
from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.fold.columns import Part
from slotlake.spark.fold.conflicts import OnConflict
from slotlake.spark.history import changes_table
from slotlake.spark.history import table as history_table
from slotlake.spark.history.changes_rows import change_rows
from slotlake.spark.history.fold import HistoryFold, history_folds
from slotlake.spark.merge.represented import as_kept
from slotlake.spark.merge.run import Work, answered, run, run_statements, run_steps, view_of
from slotlake.spark.merge.sql import Target
from slotlake.spark.names import LakeName
from slotlake.spark.publish.derived_tables import Source, empty_insert, field_changes, fields_of
from slotlake.spark.tables.metadata import Metadata
from slotlake.spark.tables.schema import LakeColumn, TableSchema
from slotlake.spark.tables.shapes import ChangeBatch


class Mode(Protocol):
    """A kind of table beside a mirror; its module. ``IMAGES``: the structs that hold a row, if any do."""

    def definition(
        self, name: LakeName, catalog: str, schema: TableSchema, pipeline: str, location: str
    ) -> str:
        """The SQL that makes the table."""

    IMAGES: Sequence[str]

    def field_here(self, name: str) -> str:
        """What a field of the mirror is called in this table."""

    def column_here(self, column: LakeColumn) -> LakeColumn:
        """A column of the mirror as this table names it."""

    def copied(self, metadata: Metadata, target: str, source: Source) -> list[str]:
        """The SQL that takes in a copy of the mirror's rows; the last one completes it."""

    def amended(
        self, metadata: Metadata, target: str, came: Source, touched: str, key: Sequence[str]
    ) -> list[str]:
        """The SQL that takes in that some keys went and some rows came; the last one completes it."""


MODES: Mapping[str, Mode] = {"append": changes_table, "history": history_table}


@dataclass(frozen=True)
class MirrorChanges:
    """What a batch has for a mirror.

    Attributes:
        schema: the mirror's shape after the changes, as it is staged.
        names: fields that get another name with the publication, and that name.
        parts: the changes as the lake takes them.
    """

    schema: TableSchema
    names: Mapping[str, str]
    parts: Sequence[Part]


def stage_derived_changes(
    work: Work, mode: str, changes: MirrorChanges, batch: ChangeBatch, choice: OnConflict
) -> None:
    """Stage a batch's changes in a table beside the mirror.

    Args:
        work: with that table.

    Raises:
        LakeError: Spark failed.
    """
    work = with_mirror_fields(work, mode, changes.schema, changes.names)
    if mode == "append":
        _append(work, changes, batch)
    else:
        _versions(work, changes, batch, choice)


def with_mirror_fields(work: Work, mode: str, schema: TableSchema, names: Mapping[str, str]) -> Work:
    """The same work, on a table that has all the fields that the mirror has."""
    table, kind = work.table, MODES[mode]
    mirror_fields = fields_of(replace(schema, columns=tuple(map(kind.column_here, schema.columns))))
    plan = {kind.field_here(old): kind.field_here(new) for old, new in names.items()}
    changes = field_changes(table.metadata, kind.IMAGES, mirror_fields, plan)
    if not changes:
        return work
    for change in changes:
        run(work.session, table, f"ALTER TABLE {table.name.sql(work.lake.catalog)} {change}")
    with open_catalog(work.lake) as catalog:
        return replace(work, table=load_one(catalog, table.name))


def _append(work: Work, changes: MirrorChanges, batch: ChangeBatch) -> None:
    schema = changes.schema
    rows = change_rows(schema, changes.parts, batch.transaction_table(), changes.names)
    name, catalog = work.table.name, work.lake.catalog
    if rows is None:
        run_statements(work, [empty_insert(name, catalog)])
        return
    with view_of(work, rows, changes_table.view_schema(schema, rows)) as view:
        branch = f"{name.sql(catalog)}.branch_stage"
        run_statements(work, [changes_table.appended(schema, work.table.metadata, branch, rows, view)])


def _versions(work: Work, changes: MirrorChanges, batch: ChangeBatch, choice: OnConflict) -> None:
    schema, parts = changes.schema, changes.parts
    name, catalog = work.table.name, work.lake.catalog
    segments = history_folds([part for part in parts if part[1].num_rows])
    if not segments:
        run_statements(work, [empty_insert(name, catalog)])
        return
    transactions = batch.transaction_table()
    for number, segment in enumerate(segments):
        versions = segment.versions(
            _open_version_counts(work, schema, segment), transactions, skip=choice == "skip"
        )
        target = history_table.target_of(name, catalog, schema, work.table.metadata, versions)
        if versions.lookup_rows is not None:
            versions = replace(versions, lookup_rows=as_kept(target.columns, versions.lookup_rows))
        final = number == len(segments) - 1
        with (
            _view(work, target, target.fold.rows) as view,
            _view(work, target, versions.lookup_rows) as lookup_view,
        ):
            sql = history_table.statements(target, versions, view, lookup_view)
            if final:
                run_statements(work, sql, alone=not number, markers=target.markers)
            else:
                run_steps(work, sql, target.markers)


def _open_version_counts(work: Work, schema: TableSchema, segment: HistoryFold) -> dict[int, int] | None:
    """How many open versions there are of what a stretch asks for, by code."""
    lookup = segment.lookup_rows()
    if not lookup.num_rows:
        return None
    target = history_table.target_of(
        work.table.name, work.lake.catalog, schema, work.table.metadata, segment.without_versions(lookup)
    )
    with _view(work, target, target.fold.rows) as view:
        answer = answered(
            work, history_table.open_versions_query(target, target.fold.rows, view), target.markers
        )
    return dict(zip(python_values(answer["code"]), python_values(answer["held"]), strict=True))


@contextmanager
def _view(work: Work, target: Target, rows: pa.Table | None) -> Iterator[str]:
    if rows is None:
        yield ""
        return
    with view_of(work, rows, history_table.view_schema(target, rows)) as view:
        yield view
