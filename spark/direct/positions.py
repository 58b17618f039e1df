"""Where the rows of some keys stand in a table's data files.

Files are left out by the bounds that manifests have of the key's columns.  What is left is read: the columns
of the key.  Two keys are equal as for the MERGE (`spark.merge.sql.same_key`): same typed value and, where the
table has exact texts, same exact text; -0 is 0, and NaN is NaN.
"""

from __future__ import annotations

import decimal
import os
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.compiled.arrays import integers, python_values, valid
from slotlake.decoder.compiled.wide import joined
from slotlake.spark.direct.live import Live, LiveFile
from slotlake.spark.direct.reading import Reading
from slotlake.spark.direct.unsuitable import UnsuitableError
from slotlake.spark.fold.keys import row_codes
from slotlake.spark.tables.position_deletes import Positions

# What a batch may read, of which a few files are held; a MERGE is slower here still (docs/adr/0064).
KEY_BYTES_MAX: Final = 256 << 20
ROWS_MAX: Final = 50_000_000
# So many rows that may be meant are compared at once; or as many as are looked for.
_COMPARED_MIN: Final = 1 << 20
# Of more keys that are no integers the range is compared with the bounds of files, not each.
_ALL_COMPARED_MAX: Final = 10_000
# Integers are looked up in a table if it is so many times as long as they are many, or short.
_TABLE_SHARE: Final = 16
_TABLE_MIN: Final = 1 << 16
_AT_ONCE: Final = min(4, os.cpu_count() or 1)
# Python's own context rounds to 28 digits; a lake's decimal has 38 at most.
_EXACT: Final = decimal.Context(prec=38, traps=[decimal.Inexact, decimal.InvalidOperation])
_Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class KeyColumn:
    """A column by which rows are named.

    Attributes:
        number: its field id in the table.
        values: what is looked for, in the type of the table.
        null_is_a_value: NULL equals NULL; else it equals nothing.
    """

    number: int
    values: pa.Array
    null_is_a_value: bool


@dataclass(frozen=True)
class Places:
    """Where rows stand: for each, the index of its data file in ``files``, and its position; -1: nowhere."""

    files: Sequence[str]
    file: _Numbers
    position: Positions

    @classmethod
    def nowhere(cls, rows: int) -> Places:
        """So many rows that stand nowhere."""
        return cls((), np.full(rows, -1, np.int64), np.full(rows, -1, np.int64))

    def take(self, indices: _Numbers) -> Places:
        """Return the places of these; nowhere for index -1."""
        absent = indices < 0
        file = np.where(absent, -1, self.file[indices]) if len(self.file) else np.full(len(indices), -1)
        position = np.where(absent, -1, self.position[indices]) if len(self.file) else file
        return Places(self.files, file.astype(np.int64), position.astype(np.int64))

    def by_file(self) -> Iterator[tuple[str, _Numbers]]:
        """Yield each file that has a row, with the indices of the places in it."""
        yield from by_number(self.files, self.file)


def by_number(names: Sequence[str], numbers: _Numbers) -> Iterator[tuple[str, _Numbers]]:
    """Yield each name of which the number comes, and where; -1 is none."""
    order = np.argsort(numbers, kind="stable")
    ends = np.searchsorted(numbers[order], np.arange(len(names) + 1))
    for number in np.flatnonzero(np.diff(ends)).tolist():
        yield names[number], order[ends[number] : ends[number + 1]]


@dataclass(frozen=True)
class Matches:
    """All live rows that are equal to what is looked for.

    Attributes:
        files: the data files that may have some.
        index: of each row, the index of what it is equal to; ``file``: the index of its data file;
            ``position``: its position there. In the order of the files, and of the rows there.
    """

    files: Sequence[str]
    index: _Numbers
    file: _Numbers
    position: Positions

    @classmethod
    def none(cls) -> Matches:
        """No row."""
        nothing = np.empty(0, np.int64)
        return cls((), nothing, nothing, nothing)

    def first(self, index: _Numbers, counts: _Numbers) -> dict[str, Positions]:
        """Return the positions, by data file, of the first rows that are equal to some.

        Args:
            index: of what they are equal to; ``counts``: how many rows of each.
        """
        wanted = np.zeros(int(max(self.index.max(initial=-1), index.max(initial=-1))) + 1, np.int64)
        wanted[index[index >= 0]] = counts[index >= 0]
        order = np.argsort(self.index, kind="stable")
        sorted_index = self.index[order]
        rank = np.arange(len(order)) - np.searchsorted(sorted_index, sorted_index)
        taken = order[rank < wanted[sorted_index]]
        position = self.position[taken]
        return {name: np.sort(position[some]) for name, some in by_number(self.files, self.file[taken])}


def places_of(live: Live, reading: Reading, key: Sequence[KeyColumn]) -> Places:
    """Find the rows of some keys.

    Args:
        key: the columns, with the keys that are looked for, each once.

    Raises:
        UnsuitableError: too much is to be read, or a key stands twice.
        LakeError: a file cannot be read.
    """
    matches, wanted = matches_of(live, reading, key), len(key[0].values)
    if (np.bincount(matches.index, minlength=1) > 1).any():
        raise UnsuitableError("a key stands twice in the table")
    file, position = np.full(wanted, -1, np.int64), np.full(wanted, -1, np.int64)
    file[matches.index], position[matches.index] = matches.file, matches.position
    return Places(matches.files, file, position)


def matches_of(
    live: Live, reading: Reading, wanted: Sequence[KeyColumn], *, one_zero: bool = True
) -> Matches:
    """Find all live rows that are equal to some.

    Args:
        wanted: the columns, with what is looked for, each once.
        one_zero: -0 and 0 are the same.

    Raises:
        UnsuitableError: too much is to be read.
        LakeError: a file cannot be read.
    """
    if any(pa.types.is_nested(column.values.type) for column in wanted):
        raise UnsuitableError("rows are named by a nested column")
    files = candidates(live, wanted)
    _require_little(live, files, wanted)
    reading.ahead(files)
    table = _Table.of(wanted)
    pieces = [np.empty((3, 0), np.int64)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        possible = _side_by_side(pool, lambda location: _possible(reading, location, wanted, table), files)
        for file, position, rows in _gathered(possible, max(_COMPARED_MIN, len(wanted[0].values))):
            index = table.indices(rows[0]) if table else indices_in(rows, wanted, one_zero=one_zero)
            pieces.append(np.stack([index, file, position])[:, index >= 0])
    index, file, position = np.concatenate(pieces, axis=1)
    return Matches(files, index, file, position)


@dataclass(frozen=True)
class _Sought:
    """Values in order, as `_bound` has them; ``are_all``: else they are the least and the largest of many."""

    values: Sequence[Any]
    are_all: bool = True


def candidates(live: Live, key: Sequence[KeyColumn]) -> list[str]:
    """Return the data files that may have a live row of one of the keys."""
    bounded = [(column, _comparable(column.values)) for column in key if not column.values.null_count]
    return [
        location
        for location, file in live.data.items()
        if live.live_rows(location) > 0
        and all(_may_have(file, column, values) for column, values in bounded if values is not None)
    ]


def indices_in(rows: Sequence[pa.Array], key: Sequence[KeyColumn], *, one_zero: bool = True) -> _Numbers:
    """Return for each row the index of its key; -1 if it is none of them.

    Args:
        rows: columns in the order and the types of ``key``.
        key: the columns, each key once.
        one_zero: -0 and 0 are the same.
    """
    if table := _Table.of(key):
        return table.indices(rows[0])
    wanted, count = len(key[0].values), len(rows[0])
    pairs = zip(key, rows, strict=True)
    codes = row_codes([joined([column.values, some]) for column, some in pairs], one_zero=one_zero)
    index_of = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
    index_of[codes[:wanted]] = np.arange(wanted)
    indices = index_of[codes[wanted:]] if count else np.empty(0, np.int64)
    for column, some in zip(key, rows, strict=True):
        if not column.null_is_a_value and some.null_count:
            indices = np.where(some.is_null().to_numpy(zero_copy_only=False), -1, indices)
    return indices


@dataclass(frozen=True)
class _Table:
    """The indices of integers, by how far they are from the smallest; -1 for none."""

    smallest: int
    entries: np.ndarray[Any, np.dtype[np.int32]]

    @classmethod
    def of(cls, key: Sequence[KeyColumn]) -> _Table | None:
        """Return one for the only column of a key; None if its values are no integers, or far apart."""
        values = key[0].values
        if len(key) > 1 or not pa.types.is_integer(values.type) or not len(values) or values.null_count:
            return None
        numbers = values.to_numpy()
        smallest, largest = int(numbers.min()), int(numbers.max())
        length = largest - smallest + 1
        if length > max(_TABLE_MIN, _TABLE_SHARE * len(numbers)):
            return None
        entries = np.full(length, -1, np.int32)
        entries[numbers.astype(np.int64) - smallest] = np.arange(len(numbers), dtype=np.int32)
        return cls(smallest, entries)

    def indices(self, values: pa.Array) -> _Numbers:
        """Return for each the index of its equal; -1 if it is none of them, or NULL."""
        known = pc.fill_null(values, self.smallest) if values.null_count else values
        numbers = integers(known).astype(np.int64, copy=False)
        # What lies below becomes large, also beyond the ends of 64 bits.
        at = (numbers - np.int64(self.smallest)).view(np.uint64)
        at[numbers < self.smallest] = len(self.entries)
        inside = (at < len(self.entries)) & valid(values)
        indices = np.full(len(values), -1, np.int64)
        indices[inside] = self.entries[at[inside].view(np.int64)]
        return indices


_Possible = tuple[_Numbers, list[pa.Array]]


def _possible(
    reading: Reading, location: str, wanted: Sequence[KeyColumn], table: _Table | None
) -> _Possible:
    """Positions and columns of a file's live rows of which each column has a value that is looked for."""
    deleted = reading.deleted(location)
    parts: list[_Possible] = []
    for start, columns in reading.pieces(location, {c.number: c.values.type for c in wanted}):
        values = [columns[column.number] for column in wanted]
        live = np.ones(len(values[0]), np.bool_)
        first, after = np.searchsorted(deleted, (start, start + len(live)))
        live[deleted[first:after] - start] = False
        if table:
            live &= table.indices(values[0]) >= 0
        for column, some in zip(wanted, values, strict=True) if table is None else ():
            if not pa.types.is_floating(some.type):  # Arrow tells -0 from 0
                among = pc.is_in(some, value_set=column.values)
                live &= among.to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(live)
        if len(rows) or not parts:
            parts.append((rows + start, [some.take(pa.array(rows)) for some in values]))
    return parts[0] if len(parts) == 1 else _joined(parts)


def _joined(parts: Sequence[_Possible]) -> _Possible:
    rows, columns = zip(*parts, strict=True)
    return np.concatenate(rows), [joined(some) for some in zip(*columns, strict=True)]


def _side_by_side(
    pool: ThreadPoolExecutor, work: Callable[[str], _Possible], items: Sequence[str]
) -> Iterator[_Possible]:
    """What work returns for each item, in their order; little more is done than is taken."""
    begun: deque[Future[_Possible]] = deque()
    for item in items:
        begun.append(pool.submit(work, item))
        if len(begun) > _AT_ONCE:
            yield begun.popleft().result()
    while begun:
        yield begun.popleft().result()


def _gathered(
    possible: Iterable[_Possible], rows_min: int
) -> Iterator[tuple[_Numbers, _Numbers, list[pa.Array]]]:
    """Index of the file, position and columns of rows; so many of them together, and the rest."""
    gathered: list[tuple[_Numbers, _Numbers, list[pa.Array]]] = []
    count = 0
    for number, (rows, columns) in enumerate(possible):
        if len(rows):
            gathered.append((np.full(len(rows), number, np.int64), rows, columns))
            count += len(rows)
        if count >= rows_min:
            yield _together(gathered)
            gathered, count = [], 0
    if gathered:
        yield _together(gathered)


def _together(
    gathered: Sequence[tuple[_Numbers, _Numbers, list[pa.Array]]],
) -> tuple[_Numbers, _Numbers, list[pa.Array]]:
    rows, columns = _joined([(rows, columns) for _, rows, columns in gathered])
    return np.concatenate([files for files, _, _ in gathered]), rows, columns


def _require_little(live: Live, files: Sequence[str], key: Sequence[KeyColumn]) -> None:
    rows = sum(int(live.data[each].file.record_count) for each in files)
    size = sum(sum(_column_bytes(live.data[each], column) for column in key) for each in files)
    if rows > ROWS_MAX or size > KEY_BYTES_MAX:
        raise UnsuitableError(f"keys of {rows:,} rows ({size:,} bytes) would have to be read")


def _column_bytes(file: LiveFile, column: KeyColumn) -> int:
    sizes, kind = file.file.column_sizes or {}, column.values.type
    if column.number in sizes:
        return int(sizes[column.number])
    if pa.types.is_floating(kind):  # of which Spark tells nothing
        return int(file.file.record_count) * kind.bit_width // 8
    return int(file.file.file_size_in_bytes)


def _comparable(values: pa.Array) -> _Sought | None:
    """What `_may_have` compares with bounds; None of a type whose bounds are not looked at."""
    kind, values = values.type, values.unique()
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        values = values.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if pa.types.is_integer(values.type):
        return _Sought(np.sort(values.to_numpy()).tolist())
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (
        is_text or pa.types.is_decimal(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    ):
        return None
    are_all = len(values) <= _ALL_COMPARED_MAX
    if not are_all:
        ends = pc.min_max(values)
        values = pa.array([ends["min"], ends["max"]], kind)
    stored = python_values(values)
    if is_text:
        stored = [value.encode() for value in stored]
    elif pa.types.is_decimal(kind):
        stored = [int(value.scaleb(kind.scale, _EXACT)) for value in stored]
    return _Sought(sorted(stored), are_all)


def _bound(stored: bytes, kind: pa.DataType) -> Any:
    """A bound of a manifest (Iceberg table spec, "Binary single-value serialization")."""
    if pa.types.is_decimal(kind):
        return int.from_bytes(stored, "big", signed=True)
    if pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return int.from_bytes(stored, "little", signed=True)
    return stored


def _may_have(file: LiveFile, column: KeyColumn, sought: _Sought) -> bool:
    lower = (file.file.lower_bounds or {}).get(column.number)
    upper = (file.file.upper_bounds or {}).get(column.number)
    kind, values = column.values.type, sought.values
    at = 0 if lower is None else bisect_left(values, _bound(lower, kind))
    if at == len(values):
        return False
    return upper is None or bool(values[at] <= _bound(upper, kind)) or (at > 0 and not sought.are_all)
