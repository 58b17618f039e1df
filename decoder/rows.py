"""The row changes of one relation version, column by column, as an Arrow table.

Positions, not names, name the columns (n0, o0 …), so that no table can have a column that gets in
the way.  Invariant: one table row per change, in ``seq`` order; every column that is not there
means "null (or false) in every row".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from decoder import scan
from decoder.compiled import Bytes, Ints, Unsigned, frozen
from decoder.errors import ProtocolError
from decoder.relations import Column, Relation
from decoder.types import parse_slices
from decoder.types_parse import TextError
from decoder.types_slices import UNCHANGED, Slices

# Positions of about this many values are held at a time, whatever the table's width.
_LOCATED_MAX = 1 << 24


@dataclass(frozen=True)
class RowSet:
    """Which of a chunk's rows (``members``) belong to one relation version.

    ``error(what, message, offset)`` makes the exception that names a message.
    """

    version: Relation
    data: Bytes
    lsns: Unsigned
    rows: Ints
    members: npt.NDArray[np.int64]
    error: Callable[[str, int, int], ProtocolError]

    def field(self, field: int) -> Ints:
        """One field of the member rows; the whole array uncopied when all rows are members."""
        values: Ints = self.rows[field]
        whole = len(self.members) == len(values)
        return values if whole else values[self.members]


def build_table(rowset: RowSet) -> pa.Table:
    """All changes of one relation version; raises ProtocolError when a value does not parse."""
    columns = _fixed_columns(rowset)
    groups: dict[str, dict[str, pa.Array]] = {"n": {}, "o": {}, "u": {}, "xn": {}, "xo": {}}
    for i, slices in _columns(rowset, scan.ROW_NEW_AT):
        typed, exact = _typed(rowset, i, slices)
        groups["n"][f"n{i}"] = typed
        unchanged = slices.length == UNCHANGED
        if unchanged.any():
            groups["u"][f"u{i}"] = pa.array(unchanged)
        if exact is not None:
            groups["xn"][f"xn{i}"] = exact
    for i, slices in _columns(rowset, scan.ROW_OLD_AT):
        if not slices.present.any():
            continue
        typed, exact = _typed(rowset, i, slices)
        groups["o"][f"o{i}"] = typed
        if exact is not None:
            groups["xo"][f"xo{i}"] = exact
    for group in groups.values():
        columns.update(group)
    return pa.table(columns)


def _fixed_columns(rowset: RowSet) -> dict[str, pa.Array]:
    lsns = rowset.lsns[rowset.field(scan.ROW_MESSAGE)].astype(np.int64)
    return {
        "seq": pa.array(rowset.field(scan.ROW_SEQ).copy()),  # else it keeps the whole chunk's notes alive
        "op": pa.array(rowset.field(scan.ROW_OP).astype(np.int8)),
        "txn": pa.array(rowset.field(scan.ROW_TXN).astype(np.int32)),
        "lsn": pa.array(lsns),
        "old": pa.array(rowset.field(scan.ROW_OLD).astype(np.int8)),
    }


def _columns(rowset: RowSet, tuple_field: int) -> Iterator[tuple[int, Slices]]:
    """Each column's slices from the new or the old tuples; no old column when no row has an old tuple."""
    at = rowset.field(tuple_field)
    if tuple_field == scan.ROW_OLD_AT and not (at >= 0).any():
        return
    width, count = len(rowset.version.columns), len(at)
    cursor = np.empty(count, dtype=np.int64)
    odd = scan.tuple_starts(rowset.data, frozen(np.ascontiguousarray(at)), width, cursor)
    if odd >= 0:
        message = int(rowset.field(scan.ROW_MESSAGE)[odd])
        raise rowset.error("a tuple of another width than its table", message, 5)
    step = max(1, min(width, _LOCATED_MAX // max(count, 1)))
    for first in range(0, width, step):
        group = min(step, width - first)
        start = np.empty((group, count), dtype=np.int64)
        length = np.empty((group, count), dtype=np.int32)
        scan.locate(rowset.data, cursor, start, length)
        for i in range(group):
            yield first + i, Slices(rowset.data, start[i], length[i])


def _typed(rowset: RowSet, column: int, slices: Slices) -> tuple[pa.Array, pa.Array | None]:
    described: Column = rowset.version.columns[column]
    try:
        return parse_slices(slices, described.type)
    except TextError as error:
        row = max(error.row, 0)
        table = f"{rowset.version.schema}.{rowset.version.table}"
        what = f"{error.reason}, in column {described.name!r} of {table}"
        raise rowset.error(what, int(rowset.field(scan.ROW_MESSAGE)[row]), 0) from None
