"""The rows that a fold writes: its own values, and those of the lake's row where it keeps them.

An updated row keeps its number, a new one gets its number from the file that it is in (Iceberg table spec,
"Row Lineage").  The rule is that of the MERGE (`spark.merge.sql`): a row at a key that had one is updated,
and so keeps the number of the row that was there; a row that moved to a key without one is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import schema_to_pyarrow

from slotlake.decoder.compiled.arrays import nulls
from slotlake.spark.copy.files import ROW_NUMBERS
from slotlake.spark.direct.live import schema_now
from slotlake.spark.direct.positions import Places
from slotlake.spark.direct.reading import Reading, one_array
from slotlake.spark.direct.unsuitable import UnsuitableError
from slotlake.spark.merge.sql import DELETE, IN_PLACE, MOVED, Target
from slotlake.spark.tables.metadata import Metadata

OLD_BYTES_MAX: Final = 256 << 20
# Of rows that are larger than this Spark has several copies at once, in a memory of a fixed size.
LARGE_ROW_BYTES: Final = 1 << 20
# So much of what is written is in memory, and one row.
PIECE_BYTES: Final = 128 << 20
_FIELD_ID: Final = b"PARQUET:field_id"
_ROW_NUMBER, _LAST_UPDATED = ROW_NUMBERS
_Numbers = np.ndarray[Any, np.dtype[np.int64]]
_Flags = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Old:
    """The lake's rows that a fold meets.

    Attributes:
        replaced: for each folded row the place of the row with its key.
        origin: likewise of the row that it takes values from: of a moved row the one at its former key.
    """

    replaced: Places
    origin: Places


def fields_of(metadata: Metadata) -> pa.Schema:
    """Return the table's columns as a data file has them, with their field ids."""
    return schema_to_pyarrow(schema_now(metadata))


def field_id(of: pa.Field) -> int:
    """Return the field id that a column of :func:`fields_of` has."""
    return int((of.metadata or {})[_FIELD_ID])


def written_rows(target: Target, old: Old) -> _Numbers:
    """Return which folded rows come to stand in the table."""
    rows = target.fold.rows
    if "action" not in rows.column_names:
        return np.arange(rows.num_rows)
    action = rows["action"].to_numpy()
    absent, homeless = old.replaced.file < 0, old.origin.file < 0
    gone = (action == DELETE) | ((action == IN_PLACE) & absent) | ((action == MOVED) & homeless)
    return np.flatnonzero(~gone)


def new_rows(
    metadata: Metadata, target: Target, old: Old, reading: Reading, written: _Numbers
) -> Iterator[pa.Table]:
    """Yield the rows that are to be written, with their numbers where they have some: one piece at least.

    Raises:
        UnsuitableError: too much of the lake's rows is needed, or rows there have no numbers.
        LakeError: a file cannot be read.
    """
    sources, fields = sources_of(target), fields_of(metadata)
    retained = {field_id(f): f.type for f in fields if _retained(target, sources[f.name], written).any()}
    for piece in _pieces(target, written, old_bytes(reading, old.origin.take(written), retained)):
        yield _piece(metadata, target, old, reading, piece)


def _piece(metadata: Metadata, target: Target, old: Old, reading: Reading, written: _Numbers) -> pa.Table:
    """The rows of some folded ones."""
    origin = old.origin.take(written)
    sources, fields = sources_of(target), fields_of(metadata)
    retained = {f.name: _retained(target, sources[f.name], written) for f in fields}
    needed = {f.name: f for f in fields if retained[f.name].any()}
    stored = stored_values(reading, origin, {field_id(f): f.type for f in needed.values()})
    arrays = []
    for field in fields:
        values = fold_values(target, sources[field.name], written, field.type)
        if field.name in needed:
            values = pc.if_else(pa.array(retained[field.name]), stored[field_id(field)], values)
        arrays.append(values)
    rows = pa.Table.from_arrays(arrays, schema=fields)
    return with_numbers(rows, row_numbers(reading, old.replaced.take(written)), None)


def _pieces(target: Target, written: _Numbers, bytes_of_old: _Numbers) -> list[_Numbers]:
    """Cut the written rows so that each piece has few bytes, or one row."""
    return np.split(written, piece_bounds(bytes_of_old + text_bytes(target.fold.rows)[written]))


def text_bytes(rows: pa.Table) -> _Numbers:
    """Return how many bytes the texts of each row have."""
    total = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            total += pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
    return total


def piece_bounds(row_bytes: _Numbers) -> _Numbers:
    """Return where pieces of rows begin, all but the first, so that each has few bytes, or one row."""
    ends = np.cumsum(row_bytes)
    return np.flatnonzero(np.diff((ends - row_bytes) // PIECE_BYTES)) + 1


def with_numbers(rows: pa.Table, numbers: pa.Array, updated: pa.Array | None) -> pa.Table:
    """Return rows with their numbers, if any has one.

    Args:
        updated: the sequence number of each row's last change; NULL, and None: that of the new file.
    """
    if numbers.null_count == len(numbers):
        return rows
    last = nulls(len(numbers), pa.int64()) if updated is None else updated
    for field, values in ((_ROW_NUMBER, numbers), (_LAST_UPDATED, last)):
        metadata = {_FIELD_ID: str(field.field_id).encode()}
        rows = rows.append_column(pa.field(field.name, pa.int64(), metadata=metadata), values)
    return rows


def row_numbers(reading: Reading, places: Places) -> pa.Array:
    """Return the numbers of the lake's rows; NULL for a place that is none.

    Raises:
        UnsuitableError: rows have no numbers, as after a change of the table's format.
        LakeError: a file cannot be read.
    """
    numbers = np.full(len(places.file), -1, np.int64)
    for location, indices in places.by_file():
        first = reading.live.data[location].first_row_id
        if first is None:
            raise UnsuitableError("rows of the table have no numbers yet")
        at = places.position[indices]
        own = reading.columns(location, {_ROW_NUMBER.field_id: pa.int64()})[_ROW_NUMBER.field_id].take(
            pa.array(at)
        )
        numbers[indices] = pc.fill_null(pc.coalesce(own, pa.array(first + at)), -1).to_numpy()
    return pa.array(numbers, mask=numbers < 0)


def stored_values(reading: Reading, places: Places, kinds: Mapping[int, pa.DataType]) -> dict[int, pa.Array]:
    """Return columns of the lake's rows by field id, one value for each place; NULL for a place that is none.

    Args:
        kinds: the type that each column is to have, by field id.

    Raises:
        LakeError: a file cannot be read.
    """
    if not kinds:
        return {}
    pieces: dict[int, list[pa.Array]] = {number: [nulls(1, kind)] for number, kind in kinds.items()}
    where, count = np.zeros(len(places.file), np.int64), 1
    for location, indices in places.by_file():
        for number, column in reading.values(location, kinds, places.position[indices]).items():
            pieces[number].append(column)
        where[indices] = np.arange(count, count + len(indices))
        count += len(indices)
    return {number: pa.concat_arrays(some).take(pa.array(where)) for number, some in pieces.items()}


def old_bytes(reading: Reading, places: Places, kinds: Mapping[int, pa.DataType]) -> _Numbers:
    """Return how many bytes of the lake's rows are kept, for each place about.

    Args:
        kinds: the columns that are kept, by field id.

    Raises:
        UnsuitableError: much would have to be read, and not because the rows are large.
    """
    row_bytes, size = np.zeros(len(places.file), np.int64), 0
    for location, indices in places.by_file() if kinds else ():
        file = reading.live.data[location].file
        sizes = file.column_sizes or {}
        read = sum(sizes.get(number, 0) for number in kinds) if sizes else file.file_size_in_bytes
        row_bytes[indices] = of_row = reading.row_bytes(location, kinds)
        size += 0 if of_row >= LARGE_ROW_BYTES else read
    if size > OLD_BYTES_MAX:
        raise UnsuitableError(f"{size:,} bytes of old values would have to be read")
    return row_bytes


def sources_of(target: Target) -> dict[str, str]:
    """Return field of the table → the column of the fold that it gets; empty for a column of the past."""
    sources = {}
    for i, column in enumerate(target.columns):
        sources[column.lake_name] = f"n{i}"
        if column.exact_name in target.companions:
            sources[column.exact_name] = f"xn{i}"
    for column in target.past:
        sources[column.lake_name] = sources[column.exact_name] = ""
    return sources


def _retained(target: Target, source: str, written: _Numbers) -> _Flags:
    """Which of the written rows keep the lake's value of a column."""
    rows = target.fold.rows
    if not source and not target.fold.bag:  # a row of a bag is never updated in place
        return np.asarray(rows["action"].to_numpy()[written] == IN_PLACE, np.bool_)
    flags = f"u{source.lstrip('xn')}"
    if flags not in rows.column_names:
        return np.zeros(len(written), np.bool_)
    return np.asarray(rows[flags].combine_chunks().to_numpy(zero_copy_only=False)[written], np.bool_)


def fold_values(target: Target, source: str, written: _Numbers, kind: pa.DataType) -> pa.Array:
    """Return a column of some folded rows, as the table has it; NULL if the fold lacks it."""
    rows = target.fold.rows
    if source not in rows.column_names:
        return nulls(len(written), kind)
    return one_array(one_array(rows[source], rows[source].type).take(pa.array(written)), kind)
