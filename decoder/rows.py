"""The row changes of relation versions, column by column, as Arrow tables.

Positions, not names, name the columns (n0, o0 …), so that no table can have a column that gets in
the way.  Invariant: one table row per change, in ``seq`` order; every column that is not there
means "null (or false) in every row".

The values of all tables that have one type are parsed by one call, and each column is a slice of what
comes out: a chunk of a thousand tables with ten rows each costs little more than one of one table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from decoder import scan, scan_values
from decoder.arrays import arrow, valid
from decoder.compiled import Bytes, Ints, Unsigned, frozen
from decoder.errors import ProtocolError
from decoder.relations import Relation, RelationVersion
from decoder.type_catalog import TypeCatalog
from decoder.types import ColumnType, parse_binary_slices, parse_mixed_slices, parse_slices
from decoder.types_parse import Parsed, TextError
from decoder.types_slices import UNCHANGED, Slices

# Positions of about this many values are held at a time, whatever the tables' widths.
_LOCATED_MAX = 1 << 21

Fault = Callable[[str, int, int], ProtocolError]


@dataclass(frozen=True)
class RowSets:
    """A chunk's rows, sorted by relation version, and within one in order.

    Attributes:
        versions: each version once, in the order in which the tables are wanted.
        first: int64[versions + 1], where the rows of each begin.
        rows: the fields of the sorted rows.
        catalog: what is known of types; None when no binary values were asked for.
        error: ``error(what, message, offset)`` makes the exception that names a message.
    """

    versions: Sequence[Relation]
    first: Ints
    rows: Ints
    data: Bytes
    lsns: Unsigned
    catalog: TypeCatalog | None
    error: Fault


@dataclass(frozen=True)
class _Block:
    """Some columns, ``begin`` and following, of the rows of one version."""

    version: int
    begin: int
    end: int


@dataclass(frozen=True)
class _Column:
    """One column of one version, parsed."""

    version: int
    column: int
    typed: pa.Array
    exact: pa.Array | None
    unchanged: pa.Array | None


def build_tables(sets: RowSets) -> dict[RelationVersion, pa.Table]:
    """All changes of each relation version; raises ProtocolError when a value does not parse."""
    found: list[dict[str, dict[int, pa.Array]]] = [
        {"n": {}, "o": {}, "u": {}, "xn": {}, "xo": {}} for _ in sets.versions
    ]
    for prefix, field in (("n", scan.ROW_NEW_AT), ("o", scan.ROW_OLD_AT)):
        for column in _columns(sets, field):
            groups = found[column.version]
            groups[prefix][column.column] = column.typed
            if column.exact is not None:
                groups[f"x{prefix}"][column.column] = column.exact
            if column.unchanged is not None:
                groups["u"][column.column] = column.unchanged
    fixed = _fixed_columns(sets)
    return {version: _table(sets, i, fixed, found[i]) for i, version in enumerate(sets.versions)}


def _table(
    sets: RowSets, i: int, fixed: dict[str, pa.Array], groups: dict[str, dict[int, pa.Array]]
) -> pa.Table:
    begin, count = int(sets.first[i]), int(sets.first[i + 1] - sets.first[i])
    names, arrays = list(fixed), [each.slice(begin, count) for each in fixed.values()]
    for prefix, columns in groups.items():
        for number in sorted(columns):
            names.append(f"{prefix}{number}")
            arrays.append(columns[number])
    return pa.Table.from_arrays(arrays, names=names)


def _fixed_columns(sets: RowSets) -> dict[str, pa.Array]:
    rows = sets.rows
    return {
        "seq": arrow(rows[scan.ROW_SEQ].copy()),  # else it keeps the whole chunk's notes alive
        "op": arrow(rows[scan.ROW_OP].astype(np.int8)),
        "txn": arrow(rows[scan.ROW_TXN].astype(np.int32)),
        "lsn": arrow(sets.lsns[rows[scan.ROW_MESSAGE]].astype(np.int64)),
        "old": arrow(rows[scan.ROW_OLD].astype(np.int8)),
    }


def _columns(sets: RowSets, tuple_field: int) -> Iterator[_Column]:
    """Every column of the new or of the old tuples; an old one only where a row has a value for it."""
    at = sets.rows[tuple_field]
    if tuple_field == scan.ROW_OLD_AT and not (at >= 0).any():
        return
    widths = np.array([len(version.columns) for version in sets.versions], dtype=np.int64)
    cursor = np.empty(len(at), dtype=np.int64)
    odd = scan_values.tuple_starts(sets.data, frozen(at), frozen(sets.first), frozen(widths), cursor)
    if odd >= 0:
        message = int(sets.rows[scan.ROW_MESSAGE, odd])
        raise sets.error("a tuple of another width than its table", message, 5)
    for blocks in _grouped(np.diff(sets.first), widths):
        yield from _Located(sets, blocks, cursor).columns(tuple_field == scan.ROW_OLD_AT)


def _grouped(counts: Ints, widths: Ints) -> Iterator[list[_Block]]:
    """Blocks of about _LOCATED_MAX values together; a large table's columns come in several."""
    blocks: list[_Block] = []
    room = _LOCATED_MAX
    for version, (count, width) in enumerate(zip(counts.tolist(), widths.tolist(), strict=True)):
        begin = 0
        while begin < width:
            fit = min(width - begin, max(room // max(count, 1), 0 if blocks else 1))
            if fit:
                blocks.append(_Block(version, begin, begin + fit))
                begin, room = begin + fit, room - fit * count
            if begin < width:
                yield blocks
                blocks, room = [], _LOCATED_MAX
    if blocks:
        yield blocks


class _Located:
    """The values of some blocks, found; those of one type lie together.

    A *segment* is one column of one block; ``to`` is where it lies, ``sorted`` the segments in that order.
    """

    def __init__(self, sets: RowSets, blocks: list[_Block], cursor: Ints) -> None:
        self._sets = sets
        self._segments = [(b.version, column) for b in blocks for column in range(b.begin, b.end)]
        self._types = [sets.versions[version].columns[column].type for version, column in self._segments]
        kinds = {kind: i for i, kind in enumerate(dict.fromkeys(self._types))}
        self._sorted = np.argsort(np.array([kinds[kind] for kind in self._types]), kind="stable")
        counts = np.diff(sets.first)[[version for version, _ in self._segments]]
        self._begin = np.concatenate([[0], np.cumsum(counts[self._sorted])])
        to = np.empty(len(counts), dtype=np.int64)
        to[self._sorted] = self._begin[:-1]
        self._find(blocks, cursor, to)

    def _find(self, blocks: list[_Block], cursor: Ints, to: Ints) -> None:
        sets, total = self._sets, int(self._begin[-1])
        versions = np.array([block.version for block in blocks], dtype=np.int64)
        first = np.cumsum([0, *(block.end - block.begin for block in blocks)], dtype=np.int64)
        self.start, self.length = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int32)
        self._binary = np.zeros(total if sets.catalog is not None else 0, dtype=np.uint8)
        self._binaries = scan_values.locate(
            sets.data, cursor, frozen(sets.first[versions]), frozen(sets.first[versions + 1]), frozen(first),
            frozen(to), self.start, self.length, self._binary,
        )  # fmt: skip

    def columns(self, old: bool) -> Iterator[_Column]:
        """Parse all; of old tuples only the columns that have a value in some row."""
        begin, order = self._begin, self._sorted
        unchanged = self._flags(self.length == UNCHANGED)
        wanted = self._flags(self.length >= 0) if old else np.ones(len(order), dtype=np.bool_)
        for first, end in self._runs():
            if not wanted[first:end].any():
                continue
            typed, exact = self._parsed(first, end)
            inexact = np.zeros(end - first, dtype=np.bool_)
            if exact is not None:
                inexact = self._flags(valid(exact), first, end)
            for i in range(first, end):
                if not wanted[i]:
                    continue
                at, count = int(begin[i] - begin[first]), int(begin[i + 1] - begin[i])
                version, column = self._segments[order[i]]
                yield _Column(
                    version,
                    column,
                    typed.slice(at, count),
                    exact.slice(at, count) if exact is not None and inexact[i - first] else None,
                    arrow(self.length[begin[i] : begin[i + 1]] == UNCHANGED) if unchanged[i] else None,
                )

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Neighbours of one type."""
        first = 0
        for i in range(1, len(self._sorted) + 1):
            if i == len(self._sorted) or self._type(i) != self._type(first):
                yield first, i
                first = i

    def _type(self, i: int) -> ColumnType:
        return self._types[int(self._sorted[i])]

    def _flags(
        self, values: npt.NDArray[np.bool_], first: int = 0, end: int | None = None
    ) -> npt.NDArray[np.bool_]:
        """For each segment whether a value in it is set."""
        begin = self._begin[first:-1] if end is None else self._begin[first:end]
        if not values.any():
            return np.zeros(len(begin), dtype=np.bool_)
        found: npt.NDArray[np.bool_] = np.logical_or.reduceat(values, begin - begin[0])
        return found

    def _parsed(self, first: int, end: int) -> Parsed:
        """The values of these segments; on a fault, of one after the other, to name the one."""
        try:
            return self._parse(first, end)
        except TextError as error:
            if end - first > 1:
                for i in range(first, end):
                    self._parsed(i, i + 1)
            raise self._fault(error, first) from None

    def _parse(self, first: int, end: int) -> Parsed:
        part = slice(int(self._begin[first]), int(self._begin[end]))
        slices = Slices(self._sets.data, self.start[part], self.length[part])
        kind, catalog = self._type(first), self._sets.catalog
        if catalog is None or not self._binaries:
            return parse_slices(slices, kind)
        binary = self._binary[part].view(np.bool_)
        if not binary.any():
            return parse_slices(slices, kind)
        if (binary | ~slices.present).all():
            return parse_binary_slices(slices, kind, catalog)
        return parse_mixed_slices(slices, binary, kind, catalog)

    def _fault(self, error: TextError, i: int) -> ProtocolError:
        version, column = self._segments[self._sorted[i]]
        described = self._sets.versions[version]
        table = f"{described.schema}.{described.table}"
        what = f"{error.reason}, in column {described.columns[column].name!r} of {table}"
        row = int(self._sets.first[version]) + max(error.row, 0)
        return self._sets.error(what, int(self._sets.rows[scan.ROW_MESSAGE, row]), 0)
