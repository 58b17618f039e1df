"""What happens to a value that its lake column cannot hold: stored as text next to it, or refused.

``quarantine``: the typed column is NULL and the value's text goes to the companion column; this loses
nothing and is the default.  ``text``: the column is text, so there is no such value
(`spark.tables.type_rules`). ``fail``: the batch or copy that holds such a value is refused as a whole, before
anything of it is staged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.errors import ApplyError
from slotlake.decoder.lsn import format_lsn
from slotlake.spark.apply.changes import raw_slices
from slotlake.spark.fold.slices import NO_ROWS
from slotlake.spark.lake import LakeSettings
from slotlake.spark.merge.schema_changes import schema_after, with_present_names
from slotlake.spark.names import postgres_name
from slotlake.spark.publish.publication import touched_tables
from slotlake.spark.publish.sidecar import NOTHING, BatchSidecar
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.row_filter.selection import select_changes
from slotlake.spark.tables.schema import TableSchema, schema_of
from slotlake.spark.tables.shapes import BatchRelation, ChangeBatch

OnLossy = Literal["text", "quarantine", "fail"]
EVERY = "*"
Change = tuple[BatchRelation, pa.Table]


@dataclass(frozen=True)
class Lossy:
    """The pipeline's choice; of tables, by (schema, table), that of columns, `EVERY` for the others."""

    default: OnLossy = "quarantine"
    tables: Mapping[tuple[str, str], Mapping[str, OnLossy]] = field(default_factory=dict)

    def of(self, schema: str, table: str, column: str) -> OnLossy:
        """Return the choice for a column."""
        own = self.tables.get((schema, table), {})
        return own.get(column, own.get(EVERY, self.default))

    def may_fail(self, schema: str, table: str) -> bool:
        """Return whether the choice for any column of the table is ``fail``."""
        own = self.tables.get((schema, table), {})
        return "fail" in {own.get(EVERY, self.default), *own.values()}


def refuse_lossy_batch(
    lake: LakeSettings, batch: ChangeBatch, lossy: Lossy, sidecar: BatchSidecar = NOTHING
) -> None:
    """Check a batch before any of it is staged; a published batch is not checked.

    Raises:
        ApplyError: the choice for a column is ``fail``, and a new value does not fit it.
        LakeError: the lake cannot be reached.
    """
    may_fail = [name for name in {(r.schema, r.table) for r in batch.relations} if lossy.may_fail(*name)]
    if not may_fail:
        return
    read_point = ReadPoint.latest(lake)
    if read_point.position >= batch.end_lsn:
        return
    for name, relations in touched_tables(lake, batch, sidecar).items():
        is_copied = any(copy.schema.lake_name(lake.namespace) == name for copy in sidecar.copies)
        if (
            relations
            and not is_copied
            and name in read_point.pinned
            and (relations[0].schema, relations[0].table) in may_fail
        ):
            schema = schema_of(read_point.pinned[name].metadata, name)
            _refuse_lossy_slices(lake, batch, lossy, sidecar, (schema, relations))


def _refuse_lossy_slices(
    lake: LakeSettings,
    batch: ChangeBatch,
    lossy: Lossy,
    sidecar: BatchSidecar,
    table: tuple[TableSchema, Sequence[BatchRelation]],
) -> None:
    schema, relations = table
    selected = select_changes(schema.selection, [(each, NO_ROWS) for each in relations]).changes
    after = schema_after(schema, [relation for relation, _ in selected], sidecar)
    for parts in raw_slices(batch, relations, lake.slice_bytes):
        changes = select_changes(schema.selection, parts).changes
        refuse_lossy(lossy, after, with_present_names(after, changes, sidecar))


def refuse_lossy(lossy: Lossy, schema: TableSchema, changes: Sequence[Change]) -> None:
    """Check a table's changes before any is staged.

    Raises:
        ApplyError: the choice for a column is ``fail``, and a new value does not fit it.
    """
    for relation, rows in changes:
        for i, column in enumerate(relation.columns):
            if lossy.of(schema.schema, schema.table, column.name) != "fail":
                continue
            lsn = _first_lossy_lsn(schema, column.name, rows, i)
            if lsn is not None:
                raise lossy_value_error(
                    schema.schema, schema.table, column.name, f"the change at {format_lsn(lsn)}"
                )


def _first_lossy_lsn(schema: TableSchema, name: str, rows: pa.Table, i: int) -> int | None:
    """Return the LSN of the first change whose new value does not fit; None if all fit."""
    if not rows.num_rows or f"n{i}" not in rows.column_names:
        return None
    exact_texts = rows[f"xn{i}"] if f"xn{i}" in rows.column_names else None
    representation = schema.column(name).representation
    if not representation.inexact:
        return None
    typed, exact = representation.keep(rows[f"n{i}"], exact_texts)
    lossy = None if exact is None else pc.and_(exact.is_valid(), typed.is_null())
    if lossy is None or not pc.any(lossy).as_py():
        return None
    return int(pc.min(rows["lsn"].filter(lossy)).as_py())


def lossy_value_error(schema: str, table: str, column: str, what: str) -> ApplyError:
    """Return the error for a value that must not be stored next to its column; it does not show the value."""
    error = ApplyError(
        f"{what} has a value that the lake's column {column!r} cannot hold, and on_lossy is fail there; "
        "nothing was staged",
        where=f"table {postgres_name(schema, table)}, column {column!r}",
        way_out="on_lossy: quarantine for this column stores them as text next to it (then run again); "
        "on_lossy: text makes the column text (then slotlake backfill); see docs/types.md",
    ).of(schema, table)
    error.choice = "on_lossy"
    return error
