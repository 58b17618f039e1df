"""Fold the changes of a table without a key: how many rows of each kind come and go.

Under REPLICA IDENTITY FULL every update and delete carries the whole old row, and a subscriber removes
one row equal to it, whichever (worker.c, FindReplTupleInLocalRel; execReplication.c, tuples_equal).  So
a batch comes down to a number per distinct row: exact on a lake equal to the source.  NULL equals NULL
here, and floats are compared as in `spark.fold`.

An extension beside `spark.fold.fold`, which refuses such tables: to apply it, number the lake's equal
rows (row_number over all columns) and delete the first ``-net`` of them, or insert ``net`` more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from decoder.errors import ApplyError
from spark.fold_columns import OLD_WHOLE, Merged, merge
from spark.fold_keys import codes_of
from spark.fold_segments import Segment, segments
from spark.shapes import BatchColumn, BatchRelation

INSERT, UPDATE, DELETE = b"IUD"


@dataclass(frozen=True)
class BagFold:
    """What to do to one lake table without a key. Positions in ``rows`` index ``columns``.

    Attributes:
        columns: the columns that these changes name; a lake row is matched by them alone.
        truncated: all rows that the lake holds go first.
        rows: one row per distinct row whose number changes: ``n<i>``, ``xn<i>`` as in a fold by key,
            and ``net`` int64: rows to add, or if negative to remove.
        changes: row changes given.
    """

    table: str
    columns: tuple[BatchColumn, ...]
    truncated: bool
    rows: pa.Table
    changes: int


def fold_bag(changes: Sequence[tuple[BatchRelation, pa.Table]]) -> list[BagFold]:
    """Fold all changes of one table without a key in a batch.

    Args:
        changes: (relation version, its rows as in the change log), each in ``seq`` order.

    Returns:
        The folds to apply one after the other: one, unless the table's columns changed in the batch.

    Raises:
        ApplyError: an update or delete does not carry the whole old row.
    """
    return [_fold_segment(segment) for segment in segments(changes, _columns)]


def _columns(relation: BatchRelation) -> tuple[str, ...]:
    return tuple(f"{column.name} {column.type_oid} {column.typmod}" for column in relation.columns)


def _fold_segment(segment: Segment) -> BagFold:
    merged = merge(segment.parts)
    if np.any((merged.op != INSERT) & (merged.old != OLD_WHOLE)):
        raise ApplyError(
            "a change of a table without a key does not carry the whole old row",
            where=f"table {merged.table}",
            way_out="ALTER TABLE … REPLICA IDENTITY FULL, or a primary key; then `slotlake backfill`",
        )
    for position in range(len(merged.columns)):
        merged.complete_key(position)
    return BagFold(merged.table, merged.columns, segment.truncated, _rows(merged), segment.changes)


def _rows(merged: Merged) -> pa.Table:
    codes = codes_of(merged.values, merged.op != INSERT)
    come = np.bincount(codes.new[merged.op != DELETE], minlength=codes.count)
    go = np.bincount(codes.old[merged.op != INSERT], minlength=codes.count)
    changed = np.flatnonzero(come != go)
    arrays: dict[str, pa.Array] = {"net": pa.array((come - go)[changed], pa.int64())}
    for position in range(len(merged.columns)):
        arrays.update(merged.take(position, codes.representative[changed]))
    return pa.table(arrays)
