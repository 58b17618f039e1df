"""Small data files whose rows a batch takes into its own file, so that their number stays bounded.

Each batch adds a file for each partition that it touches.  The rule of `spark.maintenance.small_files` holds:
taken by size, a file is packed only if all smaller ones together are as large, so each row is written again
about as often as the table doubles what it packs.  Here the files are fewer and smaller, and the batch waits;
so what is packed is bounded to what takes about as long as the batch itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slotlake.spark.copy.files import ROW_NUMBERS
from slotlake.spark.direct.live import Live, LiveFile
from slotlake.spark.direct.positions import Places
from slotlake.spark.direct.reading import Reading
from slotlake.spark.direct.rows import field_id, row_numbers, with_numbers
from slotlake.spark.tables.position_deletes import Positions

# Chosen so that packing takes about as long as the batch (docs/adr/0064).
FILES_MIN: Final = 12
BYTES_MAX: Final = 2 << 20
ROWS_MAX: Final = 20_000
_LISTED_MAX: Final = 200
_, _LAST_UPDATED = ROW_NUMBERS


def files_to_pack(live: Live, spec: int) -> list[str]:
    """Return the data files whose rows are to be written again with a batch's.

    Args:
        spec: the number of the partition spec that files are written by now.
    """
    partitions: dict[str, list[LiveFile]] = {}
    for file in live.data.values():
        short = len(live.entries[file.manifest]) <= _LISTED_MAX
        if file.spec == spec and short and file.first_row_id is not None:
            partitions.setdefault(repr(file.file.partition), []).append(file)
    chosen: list[str] = []
    size = rows = 0
    for files in partitions.values():
        packed = _packed(files)
        size += sum(file.size for file in packed)
        rows += sum(file.file.record_count for file in packed)
        if size > BYTES_MAX or rows > ROWS_MAX:  # the other partitions wait for a later batch
            break
        chosen += [file.location for file in packed]
    return chosen


def _packed(files: Sequence[LiveFile]) -> list[LiveFile]:
    chosen: list[LiveFile] = []
    small: list[LiveFile] = []
    size = rows = 0
    for file in sorted(files, key=lambda each: each.size):
        fits = file.size <= size
        if size + file.size > BYTES_MAX or rows + file.file.record_count > ROWS_MAX:
            break
        small.append(file)
        size, rows = size + file.size, rows + file.file.record_count
        if fits:
            chosen = list(small)
    return chosen if len(chosen) >= FILES_MIN else []


def with_packed(
    rows: pa.Table, reading: Reading, files: Sequence[str], deleted: Mapping[str, Positions]
) -> pa.Table:
    """Return a batch's rows, and after them the live rows of these files with their numbers.

    Args:
        files: data files; rows of them have numbers.
        deleted: all positions that are deleted from then on, of files that lose a row with the batch.

    Raises:
        LakeError: a file cannot be read.
    """
    if not files:
        return rows
    reading.ahead(files)
    fields = [field for field in rows.schema if field.name not in {each.name for each in ROW_NUMBERS}]
    pieces = [rows]
    for location in files:
        count = int(reading.live.data[location].file.record_count)
        live = np.setdiff1d(np.arange(count), deleted.get(location, reading.deleted(location)))
        if len(live):
            pieces.append(_rows(reading, location, live, fields))
    return pa.concat_tables(pieces, promote_options="default")


def _rows(reading: Reading, location: str, live: Positions, fields: Sequence[pa.Field]) -> pa.Table:
    taken = pa.array(live)
    kinds: dict[int, pa.DataType] = {field_id(field): field.type for field in fields}
    stored: Mapping[int, Any] = reading.columns(location, {**kinds, _LAST_UPDATED.field_id: pa.int64()})
    arrays = [stored[field_id(field)].take(taken) for field in fields]
    rows = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    numbers = row_numbers(reading, Places((location,), np.zeros(len(live), np.int64), live))
    of_file = pa.scalar(reading.live.data[location].sequence_number, pa.int64())
    updated = pc.coalesce(stored[_LAST_UPDATED.field_id].take(taken), of_file)
    return with_numbers(rows, numbers, updated)
