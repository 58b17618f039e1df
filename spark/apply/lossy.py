"""What is done with a value that its lake column cannot hold: kept beside it, or the batch refused.

``quarantine``: the typed column is NULL and the value's text goes to the companion column; this loses
nothing and is the default.  ``text``: the column is text, so there is no such value
(`spark.tables.type_rules`). ``fail``: what holds such a value is refused as a whole, before anything of it is
staged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.errors import ApplyError
from slotlake.decoder.lsn import format_lsn
from slotlake.spark.lake import LakeSettings
from slotlake.spark.merge.follow import followed
from slotlake.spark.names import postgres_name
from slotlake.spark.publish.publication import touched
from slotlake.spark.publish.sidecar import NOTHING, Annex
from slotlake.spark.read.point import Cut
from slotlake.spark.row_filter.selection import taken
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
        """The choice for a column."""
        own = self.tables.get((schema, table), {})
        return own.get(column, own.get(EVERY, self.default))

    def may_fail(self, schema: str, table: str) -> bool:
        """Is any column's choice ``fail``?"""
        own = self.tables.get((schema, table), {})
        return "fail" in {own.get(EVERY, self.default), *own.values()}


def refuse_lossy_batch(lake: LakeSettings, batch: ChangeBatch, lossy: Lossy, annex: Annex = NOTHING) -> None:
    """Look at a batch before any of it is staged; one that is published already is left alone.

    Raises:
        ApplyError: the choice for a column is ``fail``, and a new value does not fit it.
        LakeError: the lake cannot be reached.
    """
    named = [name for name in {(r.schema, r.table) for r in batch.relations} if lossy.may_fail(*name)]
    if not named:
        return
    cut = Cut.latest(lake)
    if cut.position >= batch.end_lsn:
        return
    for name, relations in touched(lake, batch, annex).items():
        copied = any(copy.schema.lake_name(lake.namespace) == name for copy in annex.copies)
        if (
            relations
            and not copied
            and name in cut.pinned
            and (relations[0].schema, relations[0].table) in named
        ):
            schema = schema_of(cut.pinned[name].metadata, name)
            changes = taken(schema.selection, [(r, batch.relation_table(r)) for r in relations]).changes
            changes, schema = followed(schema, changes, annex)
            refuse_lossy(lossy, schema, changes)


def refuse_lossy(lossy: Lossy, schema: TableSchema, changes: Sequence[Change]) -> None:
    """Look at a table's changes before any is staged.

    Args:
        schema: the table's shape after the changes.
        changes: as the lake takes them.

    Raises:
        ApplyError: the choice for a column is ``fail``, and a new value does not fit it.
    """
    for relation, rows in changes:
        for i, column in enumerate(relation.columns):
            if lossy.of(schema.schema, schema.table, column.name) != "fail":
                continue
            lsn = _first(schema, column.name, rows, i)
            if lsn is not None:
                raise refusal(schema.schema, schema.table, column.name, f"the change at {format_lsn(lsn)}")


def _first(schema: TableSchema, name: str, rows: pa.Table, i: int) -> int | None:
    """LSN of the first change whose new value does not fit."""
    if not rows.num_rows or f"n{i}" not in rows.column_names:
        return None
    given = rows[f"xn{i}"] if f"xn{i}" in rows.column_names else None
    form = schema.column(name).kept
    exact = form.keep(rows[f"n{i}"], given)[1] if form.inexact else None
    if exact is None or exact.null_count == len(exact):
        return None
    return int(pc.min(rows["lsn"].filter(exact.is_valid())).as_py())


def refusal(schema: str, table: str, column: str, what: str) -> ApplyError:
    """The error for a value that is not to be kept beside its column; it does not show the value.

    Args:
        what: that holds the value, and where.
    """
    error = ApplyError(
        f"{what} has a value that the lake's column {column!r} cannot hold, and on_lossy is fail there; "
        "nothing was staged",
        where=f"table {postgres_name(schema, table)}, column {column!r}",
        way_out="on_lossy: quarantine for this column keeps such values as text beside it (then run again); "
        "on_lossy: text makes the column text (then slotlake backfill); see docs/types.md",
    ).of(schema, table)
    error.choice = "on_lossy"
    return error
