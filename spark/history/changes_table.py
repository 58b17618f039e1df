"""The table ``<table>__changes``: the change log itself, one row per change, and one per row of a copy.

Read in the order of ``commit_lsn`` and ``seq`` it holds every change of the table since it was copied:

* ``C`` a copy of the table was made; earlier content is void. ``R``: a row of that copy;
  where a few rows were read again (a backfill of some), their keys are deleted first (``D`` without ``xid``);
* ``I`` ``U`` ``D`` a row was inserted, updated, deleted; ``T`` the table was truncated.

``new`` and ``old`` hold the row's columns; ``old_row`` says how much of the old row the server sent (its key,
or the whole row).  Invariant, and the test: applied one after the other the changes give the mirror.

Rows are appended, in the same consistency point as the mirror's, and never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.types import table as types
from slotlake.decoder.types.representations import Pair
from slotlake.spark.fold.columns import OLD_KEY, OLD_NONE, OLD_WHOLE, Array, Merged, Part, merge
from slotlake.spark.fold.slices import ChangeSlice
from slotlake.spark.names import LakeName, literal, quote
from slotlake.spark.publish.derived_tables import Source, column_types, create, fields_of, timestamp
from slotlake.spark.tables.metadata import Metadata
from slotlake.spark.tables.schema import LakeColumn, TableSchema, unbounded

_COLUMNS = {
    "op": "string",
    "lsn": "bigint",
    "commit_lsn": "bigint",
    "change_lsn": "bigint",
    "seq": "bigint",
    "xid": "bigint",
    "commit_time": "timestamp",
    "origin": "string",
    "old_row": "string",
    "unchanged": "array<string>",
}
_COPY = "op, lsn, commit_lsn, seq, commit_time"
_SIDES = {"new": "n", "old": "o"}
IMAGES: Sequence[str] = tuple(_SIDES)


def definition(
    name: LakeName, catalog: str, schema: TableSchema, pipeline: str, location: str, table_format: int
) -> str:
    """Return the SQL that makes the table."""
    inner = ", ".join(f"{quote(field.name)}: {field.kind}" for field in fields_of(schema))
    columns = [f"{quote(column)} {kind}" for column, kind in _COLUMNS.items()]
    columns += [f"{quote(image)} struct<{inner}>" for image in _SIDES]
    options = {
        "mode": "append",
        "pipeline": pipeline,
        "location": location,
        "format": table_format,
        "partitioned": "days(commit_time)",
        "unbounded": {k: v for image in IMAGES for k, v in unbounded(schema.columns, image).items()},
    }
    return create(name, catalog, columns, options)


def field_name(name: str) -> str:
    """Return the name that a field of the mirror has within an image: its own."""
    return name


def derived_column(column: LakeColumn) -> LakeColumn:
    """Return a column of the mirror as it is within an image: unchanged."""
    return column


def copy_statements(metadata: Metadata, target: str, source: Source) -> list[str]:
    """Return the SQL that adds a copy of the mirror's rows; the last statement completes the table."""
    at = f"{source.position}L, {source.position}L"
    return [
        f"INSERT INTO {target} ({_COPY}) VALUES ('C', {at}, -1L, {timestamp(source.time)})",
        _rows_of(metadata, target, source),
    ]


def amend_statements(
    metadata: Metadata, target: str, new_rows: Source, touched: str, key: Sequence[str]
) -> list[str]:
    """Return the SQL for rows that were read again: a `D` without xid for each key, and the new rows."""
    names = _inner(column_types(metadata)["old"])
    row = _row([(name, quote(name) if name in key else "NULL") for name in names])
    positions, when = f"{new_rows.position}L, {new_rows.position}L", timestamp(new_rows.time)
    key_deletes = (
        f"INSERT INTO {target} ({_COPY}, old_row, old) "
        f"SELECT 'D', {positions}, -1L, {when}, 'key', {row} FROM {quote(touched)}"
    )
    return [key_deletes, _rows_of(metadata, target, new_rows)]


def _rows_of(metadata: Metadata, target: str, source: Source) -> str:
    names = _inner(column_types(metadata)["new"])
    row = _row([(name, quote(name) if name in source.fields else "NULL") for name in names])
    positions, when = f"{source.position}L, {source.position}L", timestamp(source.time)
    return (
        f"INSERT INTO {target} ({_COPY}, new) SELECT 'R', {positions}, 0L, {when}, {row} FROM {source.name}"
    )


def append_statement(schema: TableSchema, metadata: Metadata, target: str, rows: pa.Table, view: str) -> str:
    """Return the SQL that adds the changes of a batch.

    Args:
        target: the branch to write to, as Spark SQL names it.
    """
    view_columns = set(rows.column_names)
    images = []
    for image in IMAGES:
        names, sources = _inner(column_types(metadata)[image]), image_sources(schema, image)
        fields = [(name, sources.get(name)) for name in names]
        row = _row([(name, f"s.{value}" if value in view_columns else "NULL") for name, value in fields])
        has_image = "s.has_new" if image == "new" else "s.old_row IS NOT NULL"
        images.append(f"CASE WHEN {has_image} THEN {row} END")
    columns = ", ".join([*_COLUMNS, *_SIDES])
    values = ", ".join([*(f"s.{column}" for column in _COLUMNS), *images])
    return f"INSERT INTO {target} ({columns}) SELECT {values} FROM {quote(view)} AS s"


def view_schema(schema: TableSchema, rows: pa.Table) -> str:
    """DDL of the view's columns."""
    kinds = {**_COLUMNS, "has_new": "boolean"}
    for number, column in enumerate(schema.columns):
        for side in _SIDES.values():
            kinds |= {f"{side}{number}": column.spark_type, f"x{side}{number}": "string"}
    return ", ".join(f"{name} {kinds[name]}" for name in rows.column_names)


def image_sources(schema: TableSchema, image: str) -> dict[str, str]:
    """Return field → the column of :func:`change_rows` that it gets in an image."""
    side, columns = _SIDES[image], schema.columns
    fields = fields_of(schema)
    return {f.name: f"{'x' if f.exact else ''}{side}{columns.index(f.column)}" for f in fields}


def lacks_image(rows: pa.Table, image: str) -> pa.ChunkedArray:
    """Return which rows of :func:`change_rows` show no row after, or before, the change."""
    return pc.invert(rows["has_new"]) if image == "new" else rows["old_row"].is_null()


def _row(values: Sequence[tuple[str, str]]) -> str:
    return f"named_struct({', '.join(f'{literal(name)}, {value}' for name, value in values)})"


def _inner(kind: dict[str, Any]) -> list[str]:
    return [field["name"] for field in kind["fields"]]


# A table's change log as rows for Spark: every change of a batch, with what its transaction says.
#
# Each relation version is taken by itself, so that a change shows the columns that its table had then,
# wherever batches end.  Likewise its number: it counts the changes of this table within the transaction.
#
# A value that the server did not send (stored out of line, unchanged) is taken from the change's own old row
# if that shows it; else it is NULL and its column is named in ``unchanged``: the log never guesses.

_Columns: TypeAlias = "dict[str, pa.Array | pa.ChunkedArray]"  # by name; all of one length
_SHOWS_NEW = tuple(b"IU")
_OLD_NAMES = {OLD_KEY: "key", OLD_WHOLE: "row"}
FROM_TRANSACTION = {
    "lsn": "end_lsn",
    "commit_lsn": "commit_lsn",
    "xid": "xid",
    "commit_time": "commit_time",
    "origin": "origin",
}


@dataclass
class Numbered:
    """How far the changes of a table were numbered in the last transaction of the slices so far."""

    transaction: int = -1
    changes: int = 0


def change_rows(
    schema: TableSchema, changes: ChangeSlice, names: Mapping[str, str], numbered: Numbered
) -> pa.Table | None:
    """Return the changes of one table in a slice as rows; None if there are none.

    Args:
        schema: the table's shape after the changes; numbers of columns index ``schema.columns``.
        names: fields that get another name with the publication, and that name.
        numbered: of the slices before; then with this one.

    Returns:
        ``op``, ``seq``, ``change_lsn``, the columns of the transaction, ``unchanged`` (names), ``old_row``
        (key, row or NULL), ``has_new``, and ``n<i>``, ``xn<i>``, ``o<i>``, ``xo<i>`` where there are any.
    """
    if not changes.parts:
        return None
    rows = pa.concat_tables(
        [_of_version(schema, part, names) for part in changes.parts], promote_options="permissive"
    )
    txn = rows["txn"].to_numpy()
    numbers = _numbered(rows["seq"].to_numpy(), txn)
    numbers[txn + changes.first_transaction == numbered.transaction] += numbered.changes
    last = int(txn.max())
    numbered.transaction = last + changes.first_transaction
    numbered.changes = int(numbers[txn == last].max())
    arrays: _Columns = {"seq": pa.array(numbers)}
    of_transaction = changes.transactions.take(pa.array(txn))
    arrays |= {name: of_transaction[source] for name, source in FROM_TRANSACTION.items()}
    columns = rows.drop_columns(["seq", "txn"])
    return pa.table(arrays | {name: columns[name] for name in columns.column_names})


def _numbered(seq: Array, txn: Array) -> Array:
    """1, 2, … within each transaction."""
    order = np.argsort(seq, kind="stable")
    ordered = txn[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    lengths = np.diff(np.append(starts, len(ordered)))
    numbers = np.empty(len(seq), np.int64)
    numbers[order] = np.arange(1, len(seq) + 1) - np.repeat(starts, lengths)
    return numbers


def _of_version(schema: TableSchema, part: Part, names: Mapping[str, str]) -> pa.Table:
    relation, rows = part
    merged = merge([part])
    order = pa.array(np.argsort(rows["seq"].to_numpy(), kind="stable"))
    arrays: _Columns = {
        name: rows[source].take(order).combine_chunks()
        for name, source in {"seq": "seq", "txn": "txn", "change_lsn": "lsn"}.items()
    }
    arrays["op"] = pa.array([chr(op) for op in merged.op.tolist()], pa.string())
    arrays["has_new"] = pa.array(np.isin(merged.op, _SHOWS_NEW))
    arrays["old_row"] = pa.array([_OLD_NAMES.get(old) for old in merged.old.tolist()], pa.string())
    columns = [schema.column(column.name) for column in relation.columns]
    arrays["unchanged"] = _unchanged(merged, [names.get(c.lake_name, c.lake_name) for c in columns])
    for position, column in enumerate(columns):
        arrays |= _values(merged, position, column, schema.columns.index(column))
    return pa.table(arrays)


def _unsent(merged: Merged, position: int) -> Array | None:
    unchanged = merged.unchanged[position]
    return None if unchanged is None else unchanged & ~merged.carried[position]


def _unchanged(merged: Merged, columns: Sequence[str]) -> pa.Array:
    """Per change the lake names of the columns whose new value nobody told; NULL if there are none."""
    rows: list[Array] = []
    names: list[str] = []
    for position, column in enumerate(columns):
        unsent = _unsent(merged, position)
        unsent_rows = np.flatnonzero(unsent) if unsent is not None else np.empty(0, np.int64)
        rows.append(unsent_rows)
        names += [column] * len(unsent_rows)
    which = np.concatenate(rows) if rows else np.empty(0, np.int64)
    order = np.argsort(which, kind="stable")
    counts = np.bincount(which, minlength=len(merged.op))
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    values = pa.array(names, pa.string()).take(pa.array(order))
    lists = pa.ListArray.from_arrays(offsets, values)
    unsent_names: pa.Array = pc.if_else(pa.array(counts > 0), lists, pa.scalar(None, lists.type))
    return unsent_names


def _values(merged: Merged, position: int, column: LakeColumn, number: int) -> _Columns:
    changes = len(merged.op)
    numbers = np.arange(changes)
    new = np.where(np.isin(merged.op, _SHOWS_NEW), numbers, -1)
    unchanged = merged.unchanged[position]
    if unchanged is not None:
        new = np.where(unchanged, np.where(merged.carried[position], numbers + changes, -1), new)
    old = np.where((merged.old != OLD_NONE) & merged.carried[position], numbers + changes, -1)
    arrays: _Columns = {}
    for side, source in (("n", new), ("o", old)):
        columns = merged.take(position, source)
        typed, exact = _retyped(
            columns[f"n{position}"], columns.get(f"xn{position}"), merged, position, column
        )
        if side == "n" or typed.null_count < changes or exact is not None:
            arrays[f"{side}{number}"] = typed
        if exact is not None and exact.null_count < changes:
            arrays[f"x{side}{number}"] = exact
    return arrays


def _retyped(
    typed: pa.Array, exact: pa.Array | None, merged: Merged, position: int, column: LakeColumn
) -> Pair:
    """Values as the lake's column keeps them; those of an older type go through PostgreSQL's text."""
    source = merged.columns[position]
    if (source.type_oid, source.typmod) != (column.type_oid, column.typmod):
        text = types.to_text(typed, exact, types.column_type(source.type_oid, source.typmod))
        typed, exact = types.from_text(text, column.type)
    return column.representation.keep(typed, exact)
