"""A table's change log as rows for Spark: every change of a batch, with what its transaction says.

Each relation version is taken by itself, so that a change shows the columns that its table had then, wherever
batches end.  Likewise its number: it counts the changes of this table within the transaction.

A value that the server did not send (stored out of line, unchanged) is taken from the change's own old row
if that shows it; else it is NULL and its column is named in ``unchanged``: the log never guesses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.types import table as types
from slotlake.decoder.types.representations import Pair
from slotlake.spark.fold.columns import OLD_KEY, OLD_NONE, OLD_WHOLE, Array, Merged, Part, merge
from slotlake.spark.fold.slices import ChangeSlice
from slotlake.spark.tables.schema import LakeColumn, TableSchema

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
