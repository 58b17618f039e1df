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

from slotlake.decoder.errors import LAKE_ALTERED, LakeError
from slotlake.spark import lake_files
from slotlake.spark.catalog.base import Loaded
from slotlake.spark.catalog.open import PointerMovedError, open_catalog
from slotlake.spark.copy.files import ROW_NUMBERS
from slotlake.spark.direct.choice import NEVER, is_unusual, mode
from slotlake.spark.direct.live import FILES_MAX, Live, LiveFile, live_files
from slotlake.spark.direct.positions import Places
from slotlake.spark.direct.reading import Reading
from slotlake.spark.direct.rows import field_id, fields_of, row_numbers, with_numbers
from slotlake.spark.direct.snapshot import Change, with_packed_files
from slotlake.spark.direct.unsuitable import UnsuitableError
from slotlake.spark.lake import LakeSettings
from slotlake.spark.storage.stores import canonical
from slotlake.spark.tables.metadata import Metadata, head
from slotlake.spark.tables.position_deletes import Positions

# Chosen so that packing takes about as long as the batch (docs/adr/0064).
FILES_MIN: Final = 12
BYTES_MAX: Final = 2 << 20
ROWS_MAX: Final = 20_000
_LISTED_MAX: Final = 200
# After a batch, apart from it: more than this is left to Spark.
APART_BYTES_MAX: Final = 32 << 20
APART_ROWS_MAX: Final = 1_000_000
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
        is_live = np.ones(count, np.bool_)
        is_live[deleted.get(location, reading.deleted(location))] = False
        if len(live := np.flatnonzero(is_live)):
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


# Packs small files of a table without Spark: the same rows in fewer files, one snapshot on ``main``.
#
# A batch takes the smallest files along (`files_to_pack`); what is larger is packed after a batch,
# when there are many (`spark.maintenance.small_files`).  A `slotlake run` waits for that: Spark takes
# seconds for it, and reading and writing a few megabytes here takes a fraction of one.
#
# Invariant: the table has the rows that it had, with the same numbers, or it is as it was.


def pack_directly(lake: LakeSettings, table: Loaded, paths: Sequence[str]) -> bool:
    """Pack these data files of a table; False if that is for Spark: nothing was done.

    Args:
        lake: the lake; the pipeline's lock is held, and nothing is staged of the table.

    Raises:
        PointerMovedError: somebody else changed the table meanwhile; it is as it was.
        LakeError: a file cannot be read or written.
    """
    metadata = table.metadata
    try:
        live = live_files(metadata, head(metadata))
        wanted = set(paths)
        locations = [each for each in live.data if canonical(each) in wanted]
        _require_suitable(metadata, live, locations)
        rows = with_packed(fields_of(metadata).empty_table(), Reading(live), locations, {})
    except UnsuitableError:
        return False
    if rows.num_rows != sum(live.live_rows(location) for location in locations):
        raise LakeError(
            "data files have other rows than their manifests say; nothing was packed",
            where=f"table {table.name}",
            way_out=LAKE_ALTERED,
        )
    with open_catalog(lake) as catalog:
        with lake_files.side_by_side():
            packed = with_packed_files(metadata, live, Change([rows], {}, locations))
            move = catalog.prepared(table, packed)
        try:
            catalog.move([move])
        except PointerMovedError:
            catalog.forget([move])
            raise
    return True


def _require_suitable(metadata: Metadata, live: Live, locations: Sequence[str]) -> None:
    files = [live.data[location] for location in locations]
    reasons = (
        (mode() == NEVER, "it is switched off"),
        (not files, "the table has none of the files"),
        (len(live.data) > FILES_MAX, "the table has many files"),
        (any(file.spec != metadata["default-spec-id"] for file in files), "files have an earlier layout"),
        (sum(file.size for file in files) > APART_BYTES_MAX, "the files are large"),
        (sum(file.file.record_count for file in files) > APART_ROWS_MAX, "the files have many rows"),
        (any(pa.types.is_nested(field.type) for field in fields_of(metadata)), "a column is nested"),
        (is_unusual(metadata), "the table's files are written in an unusual way"),
    )
    for applies, why in reasons:
        if applies:
            raise UnsuitableError(why)
