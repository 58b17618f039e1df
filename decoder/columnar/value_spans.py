"""The values of some columns of some rows: plain values are read at once, for others their spans are noted.

A *segment* is one column of one block of rows.  Segments are sorted by type.  All segments of one type, a
*run*, become one array, and each segment is a slice of it.  Invariant: a run's values are the same as if its
type's parser had read the bytes; the pass over the rows (`row_kernels`) only makes that unnecessary for
ordinary values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from slotlake.decoder.compiled.jit import Bytes, Ints, Lengths, frozen
from slotlake.decoder.protocol.relations import Relation
from slotlake.decoder.types.catalog import TypeCatalog
from slotlake.decoder.types.column_type import ColumnType
from slotlake.decoder.types.parsing import Parsed, plain
from slotlake.decoder.types.row_kernels import PASSED, SPAN, WIDTHS, read_rows
from slotlake.decoder.types.slices import UNCHANGED, Slices
from slotlake.decoder.types.table import parse_binary_slices, parse_mixed_slices, parse_slices, way_of

_ALIGNED = 64  # bytes: the memory of each run begins at a multiple of it, as Arrow recommends
Flags = npt.NDArray[np.bool_]


class WidthError(Exception):
    """The tuple in row ``row`` has another number of columns than its table."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


@dataclass(frozen=True)
class Tuples:
    """One tuple per row, at ``at`` (negative: the row has none); ``cursor``: where reading of each continues.

    ``place``: for each tuple the row that gets its values, within the same block; empty: its own row.
    """

    data: Bytes
    at: Ints
    place: Ints
    cursor: Ints
    catalog: TypeCatalog | None


@dataclass(frozen=True)
class Block:
    """Columns ``begin`` to ``end`` of rows ``first`` to ``behind``, with the types of ``relation``."""

    first: int
    behind: int
    begin: int
    end: int
    relation: Relation


@dataclass(frozen=True)
class Run:
    """Segments ``first`` to ``end``, of one type; their values are ``begin`` to ``behind`` among all."""

    first: int
    end: int
    begin: int
    behind: int
    kind: ColumnType


@dataclass(frozen=True)
class _Pass:
    """The result of a pass over the rows, for each run from ``place`` on: values, or their spans."""

    ways: Sequence[int]
    place: Sequence[int]
    flag_start: Sequence[int]
    values: Bytes
    valid: Bytes
    start: Ints
    length: Lengths
    binary: Bytes
    odd: Flags
    binaries: bool
    unchanged: bool


class ValueSpans:
    """The values of some blocks of columns.

    Attributes:
        block, column: block and column of each segment.
        runs: the segments by type.
        begin: int64[segments + 1], where the values of each segment begin, among all values.
    """

    def __init__(self, tuples: Tuples, blocks: Sequence[Block]) -> None:
        self._tuples, self._blocks = tuples, blocks
        widths = [each.end - each.begin for each in blocks]
        block = np.repeat(np.arange(len(blocks)), widths)
        column = np.concatenate([np.arange(each.begin, each.end) for each in blocks])
        types = np.concatenate([each.relation.type_numbers[each.begin : each.end] for each in blocks])
        counts = np.array([each.behind - each.first for each in blocks])[block]
        self._order = np.argsort(types, kind="stable")
        self.block, self.column = block[self._order].tolist(), column[self._order].tolist()
        self.begin = np.concatenate([[0], np.cumsum(counts[self._order])])
        self.runs = list(self._by_type(types[self._order]))
        self._passes = list(self._read())

    def _by_type(self, types: npt.NDArray[np.uint64]) -> Iterator[Run]:
        changes = [0, *(np.flatnonzero(types[1:] != types[:-1]) + 1).tolist(), len(types)]
        begins = self.begin[changes].tolist()
        for (first, end), (begin, behind) in zip(pairwise(changes), pairwise(begins), strict=True):
            kind = self._blocks[self.block[first]].relation.columns[self.column[first]].type
            yield Run(first, end, begin, behind, kind)

    def _read(self) -> Iterator[_Pass]:
        """For each run the pass that has its values: runs with unusual values are read again."""
        texts = self._tuples.catalog is not None
        ways = [SPAN if texts else way_of(run.kind) for run in self.runs]
        # A block of later columns continues at the end of the block before it, also if it is read again.
        ends = self._blocks[0].first, self._blocks[-1].behind
        later = any(each.begin > 0 for each in self._blocks)
        cursor = self._tuples.cursor[slice(*ends)].copy() if later else None
        first = again = self._pass(ways)
        odd = np.logical_or.reduceat(first.odd, [run.first for run in self.runs]).tolist()
        if any(odd):
            if cursor is not None:
                self._tuples.cursor[slice(*ends)] = cursor
            again = self._pass([SPAN if each else PASSED for each in odd])
        return (again if each else first for each in odd)

    def _pass(self, ways: Sequence[int]) -> _Pass:
        to, flag_start = np.zeros(len(self.block), np.int64), np.zeros(len(self.block), np.int64)
        place, flag_starts, room, span_total, flag_count = [], [], 0, 0, 0
        for run, way in zip(self.runs, ways, strict=True):
            width, count = WIDTHS[way & 0xFF], run.behind - run.begin
            offsets = self.begin[run.first : run.end] - run.begin
            place.append(room if width else span_total)
            flag_starts.append(flag_count)
            if width:
                to[run.first : run.end], flag_start[run.first : run.end] = (
                    room // width + offsets,
                    flag_count + offsets,
                )
                room += -(-count * width // _ALIGNED) * _ALIGNED
                flag_count += count
            elif way == SPAN:
                to[run.first : run.end] = span_total + offsets
                span_total += count
        values, valid = np.empty(room // 8, np.int64), np.ones(flag_count, np.uint8)
        start, length = np.empty(span_total, np.int64), np.empty(span_total, np.int32)
        binary = np.zeros(span_total if self._tuples.catalog is not None else 0, np.uint8)
        by_segment = np.repeat(np.array(ways, np.int64), [run.end - run.first for run in self.runs])
        notes, span_counts = np.zeros(len(to), np.int64), np.zeros(2, np.int64)
        out = (values.view(np.int32), values.view(np.uint64), values.view(np.uint8), valid)
        self._walk((by_segment, to, flag_start), (*out, start, length, binary, notes, span_counts))
        return _Pass(
            ways, place, flag_starts, out[2], valid, start, length, binary, notes[self._order] > 0,
            bool(span_counts[0]), bool(span_counts[1]),
        )  # fmt: skip

    def _walk(self, segments: tuple[Ints, ...], out: tuple[npt.NDArray[Any], ...]) -> None:
        """Call `read_rows`, which needs the segments in the order of the blocks."""
        blocks, tuples = self._blocks, self._tuples
        place = np.empty(len(self._order), np.int64)
        place[self._order] = np.arange(len(place))
        ways, to, flag_start = (each[place] for each in segments)
        rows = np.array([(each.first, each.behind) for each in blocks], np.int64)
        first = np.cumsum([0, *(each.end - each.begin for each in blocks)], dtype=np.int64)
        widths = np.array([-1 if each.begin else len(each.relation.columns) for each in blocks], np.int64)
        inputs = tuples.data, tuples.at, tuples.cursor, tuples.place
        row = read_rows(
            *inputs, frozen(rows), frozen(first), frozen(widths), ways, frozen(to), frozen(flag_start), *out
        )
        if row >= 0:
            raise WidthError(row)

    def present(self, i: int) -> Flags:
        """For each value of run ``i``, true if it exists."""
        run, row_pass = self.runs[i], self._passes[i]
        count = run.behind - run.begin
        if row_pass.ways[i] == SPAN:
            return row_pass.length[row_pass.place[i] : row_pass.place[i] + count] >= 0
        flags: Flags = row_pass.valid[row_pass.flag_start[i] : row_pass.flag_start[i] + count].view(np.bool_)
        return flags

    def unchanged(self, i: int) -> Flags | None:
        """For each value of run ``i``, true if the server left it out as unchanged; None if there is none."""
        run, row_pass = self.runs[i], self._passes[i]
        if not row_pass.unchanged or row_pass.ways[i] != SPAN:
            return None
        flags: Flags = (
            row_pass.length[row_pass.place[i] : row_pass.place[i] + run.behind - run.begin] == UNCHANGED
        )
        return flags

    def parsed(self, i: int) -> Parsed:
        """The values of run ``i``; raises TextError."""
        run, row_pass = self.runs[i], self._passes[i]
        count = run.behind - run.begin
        if row_pass.ways[i] == SPAN:
            return self.part(i, 0, count)
        width, place, flag_start = WIDTHS[row_pass.ways[i] & 0xFF], row_pass.place[i], row_pass.flag_start[i]
        values, valid = (
            row_pass.values[place : place + width * count],
            row_pass.valid[flag_start : flag_start + count],
        )
        return plain(run.kind.arrow, values, valid), None

    def part(self, i: int, begin: int, end: int) -> Parsed:
        """Parse some values of run ``i``, which must be one whose spans were noted.

        Raises:
            TextError: a value cannot be parsed.
        """
        kind, row_pass = self.runs[i].kind, self._passes[i]
        begin, end = row_pass.place[i] + begin, row_pass.place[i] + end
        slices = Slices(self._tuples.data, row_pass.start[begin:end], row_pass.length[begin:end])
        catalog = self._tuples.catalog
        if catalog is None or not row_pass.binaries:
            return parse_slices(slices, kind)
        binary = row_pass.binary[begin:end].view(np.bool_)
        if not binary.any():
            return parse_slices(slices, kind)
        if (binary | ~slices.present).all():
            return parse_binary_slices(slices, kind, catalog)
        return parse_mixed_slices(slices, binary, kind, catalog)
