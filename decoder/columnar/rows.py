"""The row changes of relation versions, column by column, as Arrow tables.

Columns are named by position (n0, o0 …), not by their names, so that no column of a table can conflict with
another.  Invariant: one table row per change, in ``seq`` order; a column that is missing is null (or false)
in every row.

A *group* is all versions whose columns have the same types.  Its rows are read as one table, and each
version's table is a slice of it; one call parses the columns of one type in all groups.  So a chunk of a
thousand tables with ten rows each costs little more than a chunk of one table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from slotlake.decoder.columnar import scan, scan_values
from slotlake.decoder.columnar.value_spans import Block, Flags, Run, Tuples, ValueSpans, WidthError
from slotlake.decoder.compiled.arrays import arrow, valid
from slotlake.decoder.compiled.jit import Bytes, Ints, Unsigned, frozen
from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.protocol.records import OTHER_WIDTH
from slotlake.decoder.protocol.relations import Relation, RelationVersion
from slotlake.decoder.types.binary.containers import AS_TEXT
from slotlake.decoder.types.catalog import TypeCatalog
from slotlake.decoder.types.parsing import Parsed
from slotlake.decoder.types.row_kernels import SPAN
from slotlake.decoder.types.table import way_of
from slotlake.decoder.types.text_error import TextError

# So many value spans are used at a time, so that they fit a processor's cache; but at least those of so many
# columns, because each pass goes over all rows.  Values that the walk itself reads count less.
_VALUES_MAX, _COLUMNS_MIN, _READ_SHARE = 1 << 17, 16, 1 / 32

_FIXED = {"seq": np.int64, "op": np.int8, "txn": np.int32, "lsn": np.int64, "old": np.int8}
_NOTED = scan.ROW_SEQ, scan.ROW_OP, scan.ROW_TXN, scan.ROW_MESSAGE, scan.ROW_OLD

_BINARY_OFF = (
    "the type was dropped after the change was made, or its binary format cannot be read: run the same "
    "command with `source.binary: false`; once the lake is past this change, binary may be on again"
)

Fault = Callable[[str, int, int], ProtocolError]


@dataclass(frozen=True)
class RowSets:
    """A chunk's rows, and their order by relation version and, within a version, by message.

    Attributes:
        versions: each version once; versions whose columns have the same types are next to each other.
        rank: int64[versions], for each version in the order of the result its place in ``versions``.
        first: int64[versions + 1], where the rows of each begin; each has at least one.
        groups: where in ``versions`` each group begins, and the end.
        rows: the fields of the rows, in the order of the messages.
        order: int64[rows], the row at each place of the sorted order; None: the order of the messages.
        walked: int64[rows], the rows of each group together, but in the order of the messages, so that their
            bytes are read one after the other, also if tables alternate; None: the order of the messages.
        place: int64[rows], the place of each of those in the sorted order; None: the same.
        catalog: the known types; None if the stream has no binary values.
        error: ``error(what, message, offset)`` makes the exception that names a message.
    """

    versions: Sequence[Relation]
    rank: Ints
    first: Ints
    groups: Sequence[int]
    rows: Ints
    order: Ints | None
    walked: Ints | None
    place: Ints | None
    data: Bytes
    lsns: Unsigned
    catalog: TypeCatalog | None
    error: Fault

    def walk(self, number: int) -> Ints:
        """One field of the rows, in the order ``walked``."""
        values = self.rows[number]
        return np.ascontiguousarray(values) if self.walked is None else values.take(self.walked)

    def message(self, row: int) -> int:
        """The number of a sorted row's message."""
        return int(self.rows[scan.ROW_MESSAGE, row if self.order is None else self.order[row]])


def build_tables(sets: RowSets) -> dict[RelationVersion, pa.Table]:
    """All changes of each relation version; raises ProtocolError if a value cannot be parsed."""
    if not sets.versions:  # an idle slot must not load compiled code
        return {}
    groups = [_Group(sets, *bounds) for bounds in pairwise(sets.groups)]
    for old, field in ((False, scan.ROW_NEW_AT), (True, scan.ROW_OLD_AT)):
        _read_columns(sets, groups, field, old)
    fixed = _fixed_columns(sets)
    tables = [table for group in groups for table in group.tables(fixed)]
    return {sets.versions[i]: tables[i] for i in sets.rank.tolist()}


def _fixed_columns(sets: RowSets) -> dict[str, pa.Array]:
    columns = {name: np.empty(sets.rows.shape[1], kind) for name, kind in _FIXED.items()}
    noted = tuple(frozen(np.ascontiguousarray(sets.rows[field])) for field in _NOTED)
    lsns = frozen(np.ascontiguousarray(sets.lsns))
    order = np.empty(0, np.int64) if sets.order is None else sets.order
    inputs = *noted, lsns, frozen(order)
    scan_values.fixed_columns(*inputs, *columns.values())
    return {name: arrow(values) for name, values in columns.items()}


class _Group:
    """The versions ``begin`` to ``end``, whose columns have the same types, as one table.

    Attributes:
        first: int64[versions + 1], where the rows of each begin.
        width: number of columns.
        always: the new tuples' columns.
        some: columns that only some versions need, by kind (o, u, xn, xo) and number, each with a
            flag for every version.
    """

    def __init__(self, sets: RowSets, begin: int, end: int) -> None:
        self.versions = sets.versions[begin:end]
        self.first = sets.first[begin : end + 1]
        self.count = int(self.first[-1] - self.first[0])
        self.width = len(sets.versions[begin].columns)
        self.always: dict[int, pa.Array] = {}
        self.some: dict[str, dict[int, tuple[pa.Array, Flags]]] = {"o": {}, "u": {}, "xn": {}, "xo": {}}

    def block(self, begin: int, end: int) -> Block:
        """Columns ``begin`` to ``end``."""
        return Block(int(self.first[0]), int(self.first[-1]), begin, end, self.versions[0])

    def check_empty(self, tuples: Tuples) -> None:
        """Check that tuples of a table without columns have no value; no block of columns checks it."""
        at = tuples.at[self.first[0] : self.first[-1]]
        odd = (at >= 0) & ((tuples.data[at] != 0) | (tuples.data[at + 1] != 0))
        if odd.any():
            raise WidthError(int(self.first[0] + np.argmax(odd)))

    def load(self, binary: bool) -> int:
        """The cost of one column of all rows, on average, as a number of values."""
        if binary or self.width == 0:
            return self.count
        _, where, counts = np.unique(
            self.versions[0].type_numbers, return_index=True, return_counts=True
        )  # fmt: skip
        columns = self.versions[0].columns
        span_total = sum(
            number
            for i, number in zip(where.tolist(), counts.tolist(), strict=True)
            if way_of(columns[i].type) == SPAN
        )
        return max(1, int(self.count * max(span_total / self.width, _READ_SHARE)))

    def having(self, values: Flags) -> Flags:
        """For each version, true if one of its rows is flagged."""
        flagged: Flags = np.logical_or.reduceat(values, self.first[:-1] - self.first[0])
        return flagged

    def tables(self, fixed: dict[str, pa.Array]) -> Iterator[pa.Table]:
        """The table of each version."""
        arrays = {name: array.slice(int(self.first[0]), self.count) for name, array in fixed.items()}
        arrays |= {f"n{number}": self.always[number] for number in range(self.width)}
        some = {
            f"{kind}{number}": columns[number]
            for kind, columns in self.some.items()
            for number in sorted(columns)
        }
        begins = (self.first - self.first[0]).tolist()
        needed = np.array([flags for _, flags in some.values()]).reshape(len(some), len(self.versions))
        whole: dict[bytes, pa.Table] = {}
        for i, (begin, end) in enumerate(pairwise(begins)):
            key = needed[:, i].tobytes() if some else b""
            if key not in whole:
                chosen = {
                    name: array for (name, (array, _)), has in zip(some.items(), key, strict=True) if has
                }
                columns = arrays | chosen
                whole[key] = pa.Table.from_arrays(list(columns.values()), names=list(columns))
            yield whole[key].slice(begin, end - begin) if end - begin < self.count else whole[key]


def _read_columns(sets: RowSets, groups: Sequence[_Group], tuple_field: int, old: bool) -> None:
    """Read every column of the new or the old tuples; an old one only if a row has a value for it."""
    at = sets.walk(tuple_field)
    if old and not (at >= 0).any():
        return
    place = np.empty(0, np.int64) if sets.place is None else sets.place
    tuples = Tuples(sets.data, frozen(at), frozen(place), np.empty(len(at), np.int64), sets.catalog)
    try:
        for group in groups:
            if group.width == 0:
                group.check_empty(tuples)
        for owners, blocks in _blocks(groups, sets.catalog is not None):
            _Columns(sets, owners, ValueSpans(tuples, blocks)).keep(old)
    except WidthError as error:
        message = int(sets.walk(scan.ROW_MESSAGE)[error.row])
        raise sets.error(OTHER_WIDTH, message, 5) from None


def _blocks(groups: Sequence[_Group], binary: bool) -> Iterator[tuple[list[_Group], list[Block]]]:
    """Lists of blocks with about _VALUES_MAX values together; a large table's columns are divided."""
    owners: list[_Group] = []
    blocks: list[Block] = []
    room = _VALUES_MAX
    for group in groups:
        begin, load = 0, group.load(binary)
        while begin < group.width:
            fit = min(group.width - begin, max(room // load, 0 if blocks else _COLUMNS_MIN))
            if fit:
                owners.append(group)
                blocks.append(group.block(begin, begin + fit))
                begin, room = begin + fit, room - fit * load
            if begin < group.width:
                yield owners, blocks
                owners, blocks, room = [], [], _VALUES_MAX
    if blocks:
        yield owners, blocks


class _Columns:
    """Gives the columns of some blocks to the groups that own them."""

    def __init__(self, sets: RowSets, owners: Sequence[_Group], spans: ValueSpans) -> None:
        self._sets, self._owners, self._spans = sets, owners, spans

    def keep(self, old: bool) -> None:
        """Parse all columns; of old tuples only those that have a value in some row."""
        for i, run in enumerate(self._spans.runs):
            present = self._spans.present(i) if old else None
            if present is not None and not present.any():
                continue
            typed, exact = self._parsed(i, run)
            unchanged = self._spans.unchanged(i)
            if present is None and exact is None and unchanged is None:
                self._keep_all(run, typed)
                continue
            for segment in range(run.first, run.end):
                part = slice(*(self._spans.begin[segment : segment + 2] - run.begin).tolist())
                values, texts = typed[part], None if exact is None else exact[part]
                self._keep(
                    segment, values, texts,
                    None if present is None else present[part],
                    None if unchanged is None else unchanged[part],
                )  # fmt: skip

    def _keep_all(self, run: Run, typed: pa.Array) -> None:
        """`_keep` for new tuples without exact texts and unchanged values."""
        spans, begin = self._spans, 0
        blocks, columns = spans.block[run.first : run.end], spans.column[run.first : run.end]
        for block, column in zip(blocks, columns, strict=True):
            group = self._owners[block]
            group.always[column] = typed.slice(begin, group.count)
            begin += group.count

    def _keep(
        self,
        segment: int,
        typed: pa.Array,
        exact: pa.Array | None,
        present: Flags | None,
        unchanged: Flags | None,
    ) -> None:
        """Give a column to its group; ``present``: for old tuples, else None."""
        group, column = self._owners[self._spans.block[segment]], self._spans.column[segment]
        if present is None:
            group.always[column] = typed
        elif present.any():
            group.some["o"][column] = typed, group.having(present)
        if exact is not None and exact.null_count < len(exact):
            group.some["xn" if present is None else "xo"][column] = exact, group.having(valid(exact))
        if unchanged is not None and unchanged.any():
            group.some["u"][column] = arrow(unchanged), group.having(unchanged)

    def _parsed(self, i: int, run: Run) -> Parsed:
        """The values of a run; after an error, parse segment by segment, to name the column."""
        try:
            return self._spans.parsed(i)
        except TextError:
            for segment in range(run.first, run.end):
                self._refuse(i, segment)
            raise AssertionError("a run cannot be parsed, but each of its segments can") from None

    def _refuse(self, i: int, segment: int) -> None:
        """Raise the error of the first version in which this column cannot be parsed."""
        group, column = self._owners[self._spans.block[segment]], self._spans.column[segment]
        begin = int(self._spans.begin[segment]) - self._spans.runs[i].begin - int(group.first[0])
        bounds = pairwise(group.first.tolist())
        for version, (row, end) in zip(group.versions, bounds, strict=True):
            try:
                self._spans.part(i, begin + row, begin + end)
            except TextError as error:
                table = f"{version.schema}.{version.table}"
                what = f"{error.reason}, in column {version.columns[column].name!r} of {table}"
                message = self._sets.message(row + max(error.row, 0))
                failure = self._sets.error(what, message, 0)
                failure.way_out = _BINARY_OFF if AS_TEXT in error.reason else failure.way_out
                raise failure.of(version.schema, version.table) from None
