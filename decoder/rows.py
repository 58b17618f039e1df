"""The row changes of relation versions, column by column, as Arrow tables.

Positions, not names, name the columns (n0, o0 …), so that no table can have a column that gets in
the way.  Invariant: one table row per change, in ``seq`` order; every column that is not there
means "null (or false) in every row".

The rows of all versions whose columns have the same types, a *group*, are read as one table, of which each
version's is a slice; and in all groups the columns of one type are parsed by one call.  So a chunk of a
thousand tables with ten rows each costs little more than one of one table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from decoder import scan, scan_values
from decoder.arrays import arrow, valid
from decoder.binary_containers import AS_TEXT
from decoder.compiled import Bytes, Ints, Unsigned, frozen
from decoder.errors import ProtocolError
from decoder.relations import Relation, RelationVersion
from decoder.type_catalog import TypeCatalog
from decoder.types import ColumnType, parse_binary_slices, parse_mixed_slices, parse_slices
from decoder.types_parse import Parsed, TextError
from decoder.types_slices import UNCHANGED, Slices

# Positions of about this many values are held at a time, so that they fit a cache; or of this many columns,
# since each pass goes over all rows.
_LOCATED_MAX, _COLUMNS_MIN = 1 << 17, 16

_BINARY_OFF = (
    "the type was dropped after the change was made, or has no readable binary form: run the same command "
    "with `source.binary: false`; once the lake is past this change, binary may be on again"
)

Flags = npt.NDArray[np.bool_]
Fault = Callable[[str, int, int], ProtocolError]


@dataclass(frozen=True)
class RowSets:
    """A chunk's rows, sorted by relation version, and within one in order.

    Attributes:
        versions: each version once; those whose columns have the same types, in order, stand together.
        rank: int64[versions], in the order in which the tables are wanted, the place of each in ``versions``.
        first: int64[versions + 1], where the rows of each begin; each has at least one.
        groups: where in ``versions`` each group begins, and the end.
        rows: the fields of the sorted rows.
        catalog: what is known of types; None when no binary values were asked for.
        error: ``error(what, message, offset)`` makes the exception that names a message.
    """

    versions: Sequence[Relation]
    rank: Ints
    first: Ints
    groups: Sequence[int]
    rows: Ints
    data: Bytes
    lsns: Unsigned
    catalog: TypeCatalog | None
    error: Fault


@dataclass(frozen=True)
class _Block:
    """Some columns, ``begin`` and following, of the rows of one group."""

    group: _Group
    begin: int
    end: int


def build_tables(sets: RowSets) -> dict[RelationVersion, pa.Table]:
    """All changes of each relation version; raises ProtocolError when a value does not parse."""
    groups = [_Group(sets, *bounds) for bounds in pairwise(sets.groups)]
    for old, field in ((False, scan.ROW_NEW_AT), (True, scan.ROW_OLD_AT)):
        _read_columns(sets, groups, field, old)
    fixed = _fixed_columns(sets)
    tables = [table for group in groups for table in group.tables(fixed)]
    return {sets.versions[i]: tables[i] for i in sets.rank.tolist()}


def _fixed_columns(sets: RowSets) -> dict[str, pa.Array]:
    rows = sets.rows
    return {
        "seq": arrow(rows[scan.ROW_SEQ].copy()),  # else it keeps the whole chunk's notes alive
        "op": arrow(rows[scan.ROW_OP].astype(np.int8)),
        "txn": arrow(rows[scan.ROW_TXN].astype(np.int32)),
        "lsn": arrow(sets.lsns[rows[scan.ROW_MESSAGE]].view(np.int64)),
        "old": arrow(rows[scan.ROW_OLD].astype(np.int8)),
    }


class _Group:
    """The versions ``begin`` to ``end``, whose columns have the same types, as one table.

    Attributes:
        first: int64[versions + 1], where the rows of each begin.
        types: of the columns; ``numbers`` tells which are the same.
        always: the new tuples' columns.
        some: columns that not every version needs to have, by kind (o, u, xn, xo) and number, each with a
            flag for every version.
    """

    def __init__(self, sets: RowSets, begin: int, end: int) -> None:
        self.versions = sets.versions[begin:end]
        self.first = sets.first[begin : end + 1]
        self.count = int(self.first[-1] - self.first[0])
        self.types = sets.versions[begin].types
        self.numbers = sets.versions[begin].type_numbers
        self.always: dict[int, pa.Array] = {}
        self.some: dict[str, dict[int, tuple[pa.Array, Flags]]] = {"o": {}, "u": {}, "xn": {}, "xo": {}}

    def having(self, values: Flags) -> Flags:
        """For each version whether one of its rows is flagged."""
        found: Flags = np.logical_or.reduceat(values, self.first[:-1] - self.first[0])
        return found

    def tables(self, fixed: dict[str, pa.Array]) -> Iterator[pa.Table]:
        """The table of each version."""
        arrays = {name: array.slice(int(self.first[0]), self.count) for name, array in fixed.items()}
        arrays |= {f"n{number}": self.always[number] for number in range(len(self.types))}
        some = {
            f"{kind}{number}": columns[number]
            for kind, columns in self.some.items()
            for number in sorted(columns)
        }
        begins = (self.first - self.first[0]).tolist()
        wanted = np.array([flags for _, flags in some.values()]).reshape(len(some), len(self.versions))
        whole: dict[bytes, pa.Table] = {}
        for i, (begin, end) in enumerate(pairwise(begins)):
            key = wanted[:, i].tobytes() if some else b""
            if key not in whole:
                chosen = {
                    name: array for (name, (array, _)), has in zip(some.items(), key, strict=True) if has
                }
                columns = arrays | chosen
                whole[key] = pa.Table.from_arrays(list(columns.values()), names=list(columns))
            yield whole[key].slice(begin, end - begin) if end - begin < self.count else whole[key]


def _read_columns(sets: RowSets, groups: Sequence[_Group], tuple_field: int, old: bool) -> None:
    """Every column of the new or of the old tuples; an old one only where a row has a value for it."""
    at = np.ascontiguousarray(sets.rows[tuple_field])
    if old and not (at >= 0).any():
        return
    widths = np.array([len(group.types) for group in groups], dtype=np.int64)
    first = sets.first[list(sets.groups)]
    cursor = np.empty(len(at), dtype=np.int64)
    odd = scan_values.tuple_starts(sets.data, frozen(at), frozen(first), frozen(widths), cursor)
    if odd >= 0:
        message = int(sets.rows[scan.ROW_MESSAGE, odd])
        raise sets.error("a tuple of another width than its table", message, 5)
    for blocks in _blocks(groups):
        _Located(sets, blocks, cursor).read(old)


def _blocks(groups: Sequence[_Group]) -> Iterator[list[_Block]]:
    """Blocks of about _LOCATED_MAX values together; a large table's columns come in several."""
    blocks: list[_Block] = []
    room = _LOCATED_MAX
    for group in groups:
        begin, width = 0, len(group.types)
        while begin < width:
            fit = min(width - begin, max(room // group.count, 0 if blocks else _COLUMNS_MIN))
            if fit:
                blocks.append(_Block(group, begin, begin + fit))
                begin, room = begin + fit, room - fit * group.count
            if begin < width:
                yield blocks
                blocks, room = [], _LOCATED_MAX
    if blocks:
        yield blocks


class _Located:
    """The values of some blocks, found; those of one type lie together.

    A *segment* is one column of one block; they lie by type, each run of one type between two ``changes``.
    """

    def __init__(self, sets: RowSets, blocks: list[_Block], cursor: Ints) -> None:
        self._sets = sets
        segments = [(block.group, column) for block in blocks for column in range(block.begin, block.end)]
        types = np.concatenate([block.group.numbers[block.begin : block.end] for block in blocks])
        order = np.argsort(types, kind="stable")
        self._segments = [segments[i] for i in order.tolist()]
        types = types[order]
        self._changes = [0, *(np.flatnonzero(types[1:] != types[:-1]) + 1).tolist(), len(types)]
        counts = np.repeat([b.group.count for b in blocks], [b.end - b.begin for b in blocks])
        self._begin = np.concatenate([[0], np.cumsum(counts[order])])
        to = np.empty(len(counts), dtype=np.int64)
        to[order] = self._begin[:-1]
        self._find(blocks, cursor, to)

    def _find(self, blocks: list[_Block], cursor: Ints, to: Ints) -> None:
        sets, total = self._sets, int(self._begin[-1])
        rows = np.array([(block.group.first[0], block.group.first[-1]) for block in blocks], dtype=np.int64)
        first = np.cumsum([0, *(block.end - block.begin for block in blocks)], dtype=np.int64)
        self.start, self.length = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int32)
        self._binary = np.zeros(total if sets.catalog is not None else 0, dtype=np.uint8)
        found = np.zeros(2, dtype=np.int64)
        scan_values.locate(
            sets.data, cursor, frozen(rows), frozen(first), frozen(to), self.start, self.length, self._binary,
            found,
        )  # fmt: skip
        self._binaries, self._unchanged = found.tolist()

    def read(self, old: bool) -> None:
        """Parse all; of old tuples only the columns that have a value in some row."""
        for first, end in pairwise(self._changes):
            if old and not (self.length[self._begin[first] : self._begin[end]] >= 0).any():
                continue
            typed, exact = self._parsed(first, end)
            if not old and exact is None and not self._unchanged:
                self._keep_all(first, end, typed)
                continue
            begin, places = 0, self._begin[first : end + 1].tolist()
            for i, (group, column) in enumerate(self._segments[first:end]):
                count = group.count
                part = self.length[places[i] : places[i + 1]]
                values, texts = (
                    typed.slice(begin, count),
                    None if exact is None else exact.slice(begin, count),
                )
                self._keep(group, column, old, values, texts, part)
                begin += count

    def _keep_all(self, first: int, end: int, typed: pa.Array) -> None:
        """What `_keep` comes to for new tuples that have nothing out of the ordinary."""
        begin = 0
        for group, column in self._segments[first:end]:
            group.always[column] = typed.slice(begin, group.count)
            begin += group.count

    def _keep(
        self,
        group: _Group,
        column: int,
        old: bool,
        typed: pa.Array,
        exact: pa.Array | None,
        length: npt.NDArray[np.int32],
    ) -> None:
        """Hand a column to its group."""
        if not old:
            group.always[column] = typed
        elif (length >= 0).any():
            group.some["o"][column] = typed, group.having(length >= 0)
        if exact is not None and exact.null_count < len(exact):
            group.some["xo" if old else "xn"][column] = exact, group.having(valid(exact))
        if self._unchanged:
            unchanged = length == UNCHANGED
            if unchanged.any():
                group.some["u"][column] = arrow(unchanged), group.having(unchanged)

    def _type(self, i: int) -> ColumnType:
        group, column = self._segments[i]
        kind: ColumnType = group.types[column]
        return kind

    def _parsed(self, first: int, end: int) -> Parsed:
        """The values of these segments; on a fault, of one after the other, to name the one."""
        try:
            return self._parse(self._type(first), int(self._begin[first]), int(self._begin[end]))
        except TextError:
            for i in range(first, end):
                self._refuse(i)
            raise AssertionError("what could not be read together could be read apart") from None

    def _parse(self, kind: ColumnType, begin: int, end: int) -> Parsed:
        slices = Slices(self._sets.data, self.start[begin:end], self.length[begin:end])
        catalog = self._sets.catalog
        if catalog is None or not self._binaries:
            return parse_slices(slices, kind)
        binary = self._binary[begin:end].view(np.bool_)
        if not binary.any():
            return parse_slices(slices, kind)
        if (binary | ~slices.present).all():
            return parse_binary_slices(slices, kind, catalog)
        return parse_mixed_slices(slices, binary, kind, catalog)

    def _refuse(self, i: int) -> None:
        """Raise the error of the first version in which this column does not parse."""
        group, column = self._segments[i]
        begin = int(self._begin[i]) - int(group.first[0])
        bounds = pairwise(group.first.tolist())
        for version, (row, end) in zip(group.versions, bounds, strict=True):
            try:
                self._parse(self._type(i), begin + row, begin + end)
            except TextError as error:
                table = f"{version.schema}.{version.table}"
                what = f"{error.reason}, in column {version.columns[column].name!r} of {table}"
                message = int(self._sets.rows[scan.ROW_MESSAGE, row + max(error.row, 0)])
                failure = self._sets.error(what, message, 0)
                failure.way_out = _BINARY_OFF if AS_TEXT in error.reason else failure.way_out
                raise failure from None
