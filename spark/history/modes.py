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

from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.fold.columns import Part
from slotlake.spark.fold.conflicts import OnConflict
from slotlake.spark.history import changes_table
from slotlake.spark.history import table as history_table
from slotlake.spark.history.changes_rows import change_rows
from slotlake.spark.history.fold import HistoryStretch, history_stretches
from slotlake.spark.merge.represented import as_kept
from slotlake.spark.merge.run import Work, answered, run, run_statements, run_steps, view_of
from slotlake.spark.merge.sql import Target
from slotlake.spark.names import LakeName
from slotlake.spark.publish.derived_tables import Source, fields_of, following, nothing_new
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
class Fed:
    """What a batch has for a mirror.

    Attributes:
        schema: the mirror's shape after the changes, as it is staged.
        names: fields that get another name with the publication, and that name.
        parts: the changes as the lake takes them.
    """

    schema: TableSchema
    names: Mapping[str, str]
    parts: Sequence[Part]


def feed(work: Work, mode: str, fed: Fed, batch: ChangeBatch, choice: OnConflict) -> None:
    """Stage a batch's changes in a table beside the mirror.

    Args:
        work: with that table.

    Raises:
        LakeError: Spark failed.
    """
    work = shaped(work, mode, fed.schema, fed.names)
    if mode == "append":
        _append(work, fed, batch)
    else:
        _versions(work, fed, batch, choice)


def shaped(work: Work, mode: str, schema: TableSchema, names: Mapping[str, str]) -> Work:
    """The same work, on a table that has all the fields that the mirror has."""
    table, kind = work.table, MODES[mode]
    wanted = fields_of(replace(schema, columns=tuple(map(kind.column_here, schema.columns))))
    plan = {kind.field_here(old): kind.field_here(new) for old, new in names.items()}
    changes = following(table.metadata, kind.IMAGES, wanted, plan)
    if not changes:
        return work
    for change in changes:
        run(work.session, table, f"ALTER TABLE {table.name.sql(work.lake.catalog)} {change}")
    with open_catalog(work.lake) as catalog:
        return replace(work, table=load_one(catalog, table.name))


def _append(work: Work, fed: Fed, batch: ChangeBatch) -> None:
    schema = fed.schema
    rows = change_rows(schema, fed.parts, batch.transaction_table(), fed.names)
    name, catalog = work.table.name, work.lake.catalog
    if rows is None:
        run_statements(work, [nothing_new(name, catalog)])
        return
    with view_of(work, rows, changes_table.view_schema(schema, rows)) as view:
        branch = f"{name.sql(catalog)}.branch_stage"
        run_statements(work, [changes_table.appended(schema, work.table.metadata, branch, rows, view)])


def _versions(work: Work, fed: Fed, batch: ChangeBatch, choice: OnConflict) -> None:
    schema, parts = fed.schema, fed.parts
    name, catalog = work.table.name, work.lake.catalog
    stretches = history_stretches([part for part in parts if part[1].num_rows])
    if not stretches:
        run_statements(work, [nothing_new(name, catalog)])
        return
    transactions = batch.transaction_table()
    for number, stretch in enumerate(stretches):
        versions = stretch.versions(_held(work, schema, stretch), transactions, skip=choice == "skip")
        target = history_table.target_of(name, catalog, schema, work.table.metadata, versions)
        if versions.asked is not None:
            versions = replace(versions, asked=as_kept(target.columns, versions.asked))
        final = number == len(stretches) - 1
        with _view(work, target, target.fold.rows) as view, _view(work, target, versions.asked) as asked:
            sql = history_table.statements(target, versions, view, asked)
            if final:
                run_statements(work, sql, alone=not number, markers=target.markers)
            else:
                run_steps(work, sql, target.markers)


def _held(work: Work, schema: TableSchema, stretch: HistoryStretch) -> dict[int, int] | None:
    """How many open versions there are of what a stretch asks for, by code."""
    asked = stretch.asked()
    if not asked.num_rows:
        return None
    target = history_table.target_of(
        work.table.name, work.lake.catalog, schema, work.table.metadata, stretch.asking(asked)
    )
    with _view(work, target, target.fold.rows) as view:
        answer = answered(work, history_table.question(target, target.fold.rows, view), target.markers)
    return dict(zip(answer["code"].to_pylist(), answer["held"].to_pylist(), strict=True))


@contextmanager
def _view(work: Work, target: Target, rows: pa.Table | None) -> Iterator[str]:
    if rows is None:
        yield ""
        return
    with view_of(work, rows, history_table.view_schema(target, rows)) as view:
        yield view
