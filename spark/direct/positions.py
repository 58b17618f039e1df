"""Where the rows of some keys stand in a table's data files.

Files are left out by the bounds that manifests have of the key's columns.  What is left is read: the columns
of the key.  Two keys are equal as for the MERGE (`spark.merge.sql.same_key`): same typed value and, where the
table has exact texts, same exact text; -0 is 0, and NaN is NaN.
"""

from __future__ import annotations

import decimal
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.compiled.arrays import python_values
from slotlake.spark.direct.live import Live, LiveFile
from slotlake.spark.direct.reading import Reading
from slotlake.spark.direct.unsuitable import UnsuitableError
from slotlake.spark.fold.keys import row_codes
from slotlake.spark.tables.position_deletes import Positions

# What a batch may read and hold; a MERGE is slower here still (docs/adr/0064).
KEY_BYTES_MAX: Final = 32 << 20
ROWS_MAX: Final = 5_000_000
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

    def take(self, indices: _Numbers) -> Places:
        """Return the places of these; nowhere for index -1."""
        absent = indices < 0
        file = np.where(absent, -1, self.file[indices]) if len(self.file) else np.full(len(indices), -1)
        position = np.where(absent, -1, self.position[indices]) if len(self.file) else file
        return Places(self.files, file.astype(np.int64), position.astype(np.int64))

    def by_file(self) -> Iterator[tuple[str, _Numbers]]:
        """Yield each file that has a row, with the indices of the places in it."""
        for number in np.unique(self.file[self.file >= 0]).tolist():
            yield self.files[number], np.flatnonzero(self.file == number)


def places_of(live: Live, reading: Reading, key: Sequence[KeyColumn]) -> Places:
    """Find the rows of some keys.

    Args:
        key: the columns, with the keys that are looked for, each once.

    Raises:
        UnsuitableError: too much is to be read, or a key stands twice.
        LakeError: a file cannot be read.
    """
    wanted = len(key[0].values)
    files = candidates(live, key)
    _require_little(live, files, key)
    reading.ahead(files)
    file, position = np.full(wanted, -1, np.int64), np.full(wanted, -1, np.int64)
    for number, location in enumerate(files):
        rows, keys = _matches(reading, location, key)
        if len(np.unique(keys)) < len(keys) or (file[keys] >= 0).any():
            raise UnsuitableError("a key stands twice in the table")
        file[keys], position[keys] = number, rows
    return Places(files, file, position)


def candidates(live: Live, key: Sequence[KeyColumn]) -> list[str]:
    """Return the data files that may have a live row of one of the keys."""
    bounded = [(column, _comparable(column.values)) for column in key if not column.values.null_count]
    return [
        location
        for location, file in live.data.items()
        if live.live_rows(location) > 0
        and all(_may_have(file, column, values) for column, values in bounded if values is not None)
    ]


def indices_in(rows: Sequence[pa.Array], key: Sequence[KeyColumn]) -> _Numbers:
    """Return for each row the index of its key; -1 if it is none of them.

    Args:
        rows: columns in the order and the types of ``key``.
        key: the columns, each key once.
    """
    wanted, count = len(key[0].values), len(rows[0])
    codes = row_codes([pa.concat_arrays([c.values, some]) for c, some in zip(key, rows, strict=True)])
    index_of = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
    index_of[codes[:wanted]] = np.arange(wanted)
    indices = index_of[codes[wanted:]] if count else np.empty(0, np.int64)
    for column, some in zip(key, rows, strict=True):
        if not column.null_is_a_value and some.null_count:
            indices = np.where(some.is_null().to_numpy(zero_copy_only=False), -1, indices)
    return indices


def _matches(reading: Reading, location: str, key: Sequence[KeyColumn]) -> tuple[Positions, _Numbers]:
    """Positions of live rows in a file whose key is looked for, and the indices of their keys."""
    columns = reading.columns(location, {column.number: column.values.type for column in key})
    live = np.ones(len(columns[key[0].number]), np.bool_)
    live[reading.deleted(location)] = False
    for column in key:
        if not pa.types.is_floating(column.values.type):  # Arrow tells -0 from 0
            among = pc.is_in(columns[column.number], value_set=column.values)
            live &= among.to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(live)
    if not len(rows):
        return rows, rows
    taken = pa.array(rows)
    indices = indices_in([columns[column.number].take(taken) for column in key], key)
    return rows[indices >= 0], indices[indices >= 0]


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


def _comparable(values: pa.Array) -> list[Any] | None:
    """The values in order, as `_bound` has them; None of a type whose bounds are not looked at."""
    kind, values = values.type, values.unique()
    if pa.types.is_integer(kind):
        return sorted(values.to_pylist())
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return sorted(values.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist())
    if pa.types.is_decimal(kind):
        return sorted(int(value.scaleb(kind.scale, _EXACT)) for value in python_values(values))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return sorted(value.encode() for value in python_values(values))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return sorted(values.to_pylist())
    return None


def _bound(stored: bytes, kind: pa.DataType) -> Any:
    """A bound of a manifest (Iceberg table spec, "Binary single-value serialization")."""
    if pa.types.is_decimal(kind):
        return int.from_bytes(stored, "big", signed=True)
    if pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return int.from_bytes(stored, "little", signed=True)
    return stored


def _may_have(file: LiveFile, column: KeyColumn, values: Sequence[Any]) -> bool:
    lower = (file.file.lower_bounds or {}).get(column.number)
    upper = (file.file.upper_bounds or {}).get(column.number)
    kind = column.values.type
    at = 0 if lower is None else bisect_left(values, _bound(lower, kind))
    if at == len(values):
        return False
    return upper is None or bool(values[at] <= _bound(upper, kind))
