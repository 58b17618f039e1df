"""Position delete files, by which tables of format 2 lose rows: a data file and a position in it, row by row.

Sorted by both (Iceberg table spec, "Position Delete Files").  Slotlake has Spark write one for each data file
(`write.delete.granularity`), and then the bounds of the path say which.  Other writers, and tables that they
rewrote, may have several data files in one.

Invariant: reading takes no more memory than a bounded number of positions, and those of one data file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slotlake.decoder.errors import LAKE_ALTERED, DamagedError, LakeError
from slotlake.spark import lake_files

PATH_ID, POSITION_ID = 2147483546, 2147483545
Positions = np.ndarray[Any, np.dtype[np.int64]]
_FIELD_ID = b"PARQUET:field_id"
_FIELDS: list[pa.Field[Any]] = [
    pa.field("file_path", pa.string(), nullable=False, metadata={_FIELD_ID: str(PATH_ID)}),
    pa.field("pos", pa.int64(), nullable=False, metadata={_FIELD_ID: str(POSITION_ID)}),
]
_SCHEMA = pa.schema(_FIELDS)
_BATCH_ROWS = 64 * 1024
# 32 MB of positions: so much of files with several data files in them is remembered.
_REMEMBERED_ROWS_MAX = 4 * 1024 * 1024


def data_file_of(lower: Mapping[int, bytes] | None, upper: Mapping[int, bytes] | None) -> str | None:
    """The data file that a position delete file names, by its bounds; None if there are several."""
    low, high = (lower or {}).get(PATH_ID), (upper or {}).get(PATH_ID)
    return low.decode() if low and low == high else None


class PositionDeletes:
    """Reads position delete files; small ones with several data files in them only once."""

    def __init__(self) -> None:
        self._remembered: dict[str, dict[str, Positions]] = {}
        self._rows = 0

    def positions(self, location: str, data_file: str) -> Positions:
        """The positions that a position delete file has of a data file, in no particular order.

        Raises:
            LakeError: the file is missing or damaged.
        """
        if location in self._remembered:
            return self._remembered[location].get(data_file, np.empty(0, np.int64))
        with _opened(location) as file:
            if _has_several(file) and file.metadata.num_rows <= _REMEMBERED_ROWS_MAX:
                self._remember(location, file)
                return self._remembered[location].get(data_file, np.empty(0, np.int64))
            groups = [i for i in range(file.num_row_groups) if _may_name(file, i, data_file)]
            parts = [_of(batch, data_file) for batch in _batches(file, groups)]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _remember(self, location: str, file: pq.ParquetFile) -> None:
        self._rows += file.metadata.num_rows
        if self._rows > _REMEMBERED_ROWS_MAX:
            self._remembered.clear()
            self._rows = file.metadata.num_rows
        parts: dict[str, list[Positions]] = {}
        for batch in _batches(file, range(file.num_row_groups)):
            paths = batch.column(0).dictionary_encode()
            positions = batch.column(1).to_numpy(zero_copy_only=False)
            codes = paths.indices.to_numpy(zero_copy_only=False)
            for code, path in enumerate(paths.dictionary.to_pylist()):
                parts.setdefault(str(path), []).append(positions[codes == code])
        self._remembered[location] = {path: np.concatenate(some) for path, some in parts.items()}


def rows_by_data_file(location: str) -> Counter[str]:
    """How many rows of each data file a position delete file takes away.

    Raises:
        LakeError: the file is missing or damaged.
    """
    rows: Counter[str] = Counter()
    with _opened(location) as file:
        for batch in _batches(file, range(file.num_row_groups)):
            paths = batch.column(0).dictionary_encode()
            counts = np.bincount(paths.indices.to_numpy(zero_copy_only=False))
            for path, count in zip(paths.dictionary.to_pylist(), counts.tolist(), strict=True):
                rows[str(path)] += count
    return rows


def write(location: str, data_file: str, positions: Positions) -> int:
    """Write the position delete file of one data file; its size in bytes.

    Args:
        positions: ascending, each once.

    Raises:
        LakeError: it cannot be written.
    """
    content = pa.BufferOutputStream()
    with pq.ParquetWriter(content, _SCHEMA, compression="zstd") as writer:
        for start in range(0, len(positions), _BATCH_ROWS):
            part = pa.array(positions[start : start + _BATCH_ROWS])
            paths = pa.repeat(pa.scalar(data_file), len(part))
            writer.write_batch(pa.RecordBatch.from_arrays([paths, part], schema=_SCHEMA))
    written = content.getvalue()
    lake_files.write_new(location, written.to_pybytes())
    return int(written.size)


def _of(batch: pa.RecordBatch, data_file: str) -> Positions:
    chosen = batch.column(1).filter(pc.equal(batch.column(0), data_file))
    return np.asarray(chosen.to_numpy(zero_copy_only=False), np.int64)


@contextmanager
def _opened(location: str) -> Iterator[pq.ParquetFile]:
    with lake_files.open_to_read(location) as source:
        try:
            file = pq.ParquetFile(source, pre_buffer=False)
        except LakeError:
            raise
        except (OSError, pa.ArrowInvalid) as error:
            raise DamagedError(
                f"a position delete file cannot be read: {error}", where=location, way_out=LAKE_ALTERED
            ) from error
        if not (_column(file, PATH_ID) and _column(file, POSITION_ID)):
            raise LakeError(
                "a position delete file lacks the paths or the positions of deleted rows",
                where=location,
                way_out=LAKE_ALTERED,
            )
        yield file


def _batches(file: pq.ParquetFile, groups: Iterable[int]) -> Iterator[pa.RecordBatch]:
    """Paths and positions; a deleted row itself, which some writers add, is not read."""
    path, position = _column(file, PATH_ID) or "", _column(file, POSITION_ID) or ""
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, row_groups=list(groups), columns=[path, position]):
        yield batch.select([path, position])


def _column(file: pq.ParquetFile, field_id: int) -> str | None:
    fields = [f for f in file.schema_arrow if (f.metadata or {}).get(_FIELD_ID) == str(field_id).encode()]
    return str(fields[0].name) if fields else None


def _path_statistics(file: pq.ParquetFile, group: int) -> Any:
    row_group = file.metadata.row_group(group)
    columns = (row_group.column(i) for i in range(row_group.num_columns))
    path = _column(file, PATH_ID)
    statistics = next(column.statistics for column in columns if column.path_in_schema == path)
    bounded = statistics is not None and statistics.has_min_max and isinstance(statistics.min, str)
    return statistics if bounded else None


def _may_name(file: pq.ParquetFile, group: int, data_file: str) -> bool:
    statistics = _path_statistics(file, group)
    return statistics is None or statistics.min <= data_file <= statistics.max


def _has_several(file: pq.ParquetFile) -> bool:
    bounds = [_path_statistics(file, group) for group in range(file.num_row_groups)]
    return any(each is None or each.min != each.max for each in bounds) or (
        len({each.min for each in bounds}) > 1
    )
