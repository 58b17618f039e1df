"""By which columns the rows of a table are named: those of its key, or all."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from slotlake.decoder.compiled.arrays import nulls
from slotlake.spark.direct.positions import KeyColumn, Places
from slotlake.spark.direct.reading import one_array
from slotlake.spark.direct.rows import field_id
from slotlake.spark.merge.sql import Target

Fields = Mapping[str, pa.Field]  # of the table, by name


def key_columns(target: Target, fields: Fields, lookup: pa.Table) -> list[KeyColumn]:
    """Return the columns by which rows are looked up, with the keys that are."""
    return [
        KeyColumn(field_id(fields[name]), _column(lookup, source, fields[name].type), len(names) > 1)
        for names in _key_names(target, "n")
        for source, name in names
    ]


def keys_of(target: Target, fields: Fields, prefix: str) -> list[pa.Array]:
    """Return the keys of all folded rows, as the table has them.

    Args:
        prefix: ``n`` for a row's key, ``m`` for the key that it had in the lake.
    """
    pairs = [pair for names in _key_names(target, prefix) for pair in names]
    return [_column(target.fold.rows, source, fields[name].type) for source, name in pairs]


def whole_rows(target: Target, fields: Fields, rows: pa.Table) -> list[KeyColumn]:
    """Return all columns of rows, as the table has them."""
    numbered = list(enumerate(target.columns))
    names = [(f"n{i}", c.lake_name) for i, c in numbered]
    names += [(f"xn{i}", c.exact_name) for i, c in numbered if c.exact_name in target.companions]
    of_rows = [(source, fields[name]) for source, name in names]
    return [KeyColumn(field_id(f), _column(rows, source, f.type), True) for source, f in of_rows]


def counts_of(lookup: pa.Table, places: Places) -> pa.Table:
    """Return how many rows the lake has of each code that is looked up, as `SegmentFold.fold` takes it."""
    present = np.flatnonzero(places.file >= 0)
    return pa.table(
        {"code": lookup["code"].take(pa.array(present)), "held": pa.array(np.ones(len(present), np.int64))}
    )


def _key_names(target: Target, prefix: str) -> list[list[tuple[str, str]]]:
    """Of each key column: the fold's column and the table's field, and those of the exact texts, if any."""
    keys = []
    for i, column in target.keys:
        names = [(f"{prefix}{i}", column.lake_name)]
        if column.exact_name in target.companions:
            names.append((f"x{prefix}{i}", column.exact_name))
        keys.append(names)
    return keys


def _column(rows: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    if name not in rows.column_names:
        return nulls(rows.num_rows, kind)
    return one_array(rows[name], kind)
