"""Reads the rows of one Iceberg snapshot as Arrow batches, without Spark, in bounded memory.

pyiceberg plans (which data files, which deletion vectors or position delete files); the files are read here
one row group at a time, because pyiceberg's own reader holds a whole data file decoded in memory.  Columns
are found by Iceberg field id, as the specification asks; a file that lacks one was written before it was
added.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import FileScanTask, StaticTable

from slotlake.decoder.compiled.arrays import distinct, nulls
from slotlake.decoder.errors import LAKE_ALTERED, DamagedError, LakeError
from slotlake.spark import lake_files
from slotlake.spark.read.columns import MENDED, ScanColumn
from slotlake.spark.storage.file_io import FILE_IO
from slotlake.spark.tables.deletion_vectors import VectorFiles
from slotlake.spark.tables.position_deletes import PositionDeletes, Positions

BATCH_ROWS = 64 * 1024
_ALL: BooleanExpression = AlwaysTrue()
_FIELD_ID = b"PARQUET:field_id"
_MISSING = (
    "its snapshot may have been expired meanwhile: run again, or read a newer position. If it is missing "
    f"again, {LAKE_ALTERED}"
)


@dataclass(frozen=True)
class Probe:
    """A look at some columns of a file, which says whether the file is read.

    Attributes:
        columns: the columns.
        is_wanted: whether a batch of them has rows that are wanted.
    """

    columns: Sequence[ScanColumn]
    is_wanted: Callable[[pa.RecordBatch], bool]


def scan(
    metadata_location: str,
    snapshot_id: int,
    columns: Sequence[ScanColumn],
    partitions: str | BooleanExpression = _ALL,
    probe: Probe | None = None,
) -> Iterator[pa.RecordBatch]:
    """Every live row of a snapshot, in no particular order; batches of at most `BATCH_ROWS` rows.

    Args:
        partitions: only files of which this can hold, by their partition and their bounds.
        probe: only files that it wants; it reads its own columns first.

    Raises:
        LakeError: a file is missing or of a kind that this version does not read.
    """
    table = StaticTable.from_metadata(metadata_location, dict(FILE_IO))
    position_deletes, vector_files = PositionDeletes(), VectorFiles()
    try:
        for task in _tasks(table, snapshot_id, partitions):
            deleted = _deleted_positions(task, position_deletes, vector_files)
            if probe is not None:
                looked_at = _live_rows(task.file.file_path, probe.columns, deleted)
                if not any(map(probe.is_wanted, looked_at)):
                    continue
            yield from _live_rows(task.file.file_path, columns, deleted)
    except LakeError:
        raise
    except FileNotFoundError as error:
        raise DamagedError(
            "a file of the lake is missing", where=error.filename or metadata_location, way_out=_MISSING
        ) from error
    except OSError as error:
        raise LakeError(
            f"a file of the lake cannot be read: {error.strerror or error}",
            where=metadata_location,
            way_out="its snapshot may have been expired meanwhile: run again, or read a newer position",
        ) from error


def _tasks(
    table: StaticTable, snapshot_id: int, partitions: str | BooleanExpression
) -> Iterable[FileScanTask]:
    try:
        return list(table.scan(partitions, snapshot_id=snapshot_id).plan_files())
    except (LakeError, OSError):
        raise
    except Exception as error:  # Avro's readers raise anything
        raise DamagedError(
            f"a manifest of the table cannot be read: {type(error).__name__}",
            where=str(table.metadata_location),
            way_out=LAKE_ALTERED,
        ) from error


def filled_counts(metadata_location: str, snapshot_id: int, field_ids: Collection[int]) -> dict[int, int]:
    """Return field id → number of values that are not NULL in a snapshot's files, deleted rows included.

    It reads the manifests only; a file without the column has none.
    """
    counts = dict.fromkeys(field_ids, 0)
    table = StaticTable.from_metadata(metadata_location, dict(FILE_IO))
    for task in table.scan(snapshot_id=snapshot_id).plan_files():
        values, nulls = task.file.value_counts or {}, task.file.null_value_counts or {}
        for field in field_ids:
            counts[field] += values.get(field, 0) - nulls.get(field, 0)
    return counts


def _live_rows(location: str, columns: Sequence[ScanColumn], deleted: Positions) -> Iterator[pa.RecordBatch]:
    try:
        yield from _rows_of_file(location, columns, deleted)
    except (pa.ArrowException, UnicodeDecodeError):  # what Arrow says of it may have a value
        raise DamagedError(
            "a data file of the lake cannot be decoded: it is damaged", where=location, way_out=MENDED
        ) from None
    except FileNotFoundError as error:
        raise DamagedError("a data file of the lake is missing", where=location, way_out=_MISSING) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise DamagedError(
            f"a data file of the lake cannot be read: {error}",
            where=location,
            way_out="its snapshot may have been expired meanwhile: run again, or read a newer position. If "
            f"the file is damaged: {MENDED}",
        ) from error


def _rows_of_file(
    location: str, columns: Sequence[ScanColumn], deleted: Positions
) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([column.field for column in columns])
    with (
        lake_files.open_to_read(location) as source,
        pq.ParquetFile(source, pre_buffer=False) as file,
    ):
        sources = _sources(file.schema_arrow, columns)
        names = list(dict.fromkeys(name for name in sources if name is not None))
        start = 0
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=names):
            live = _without(batch, deleted, start)
            start += batch.num_rows
            if live.num_rows:
                arrays = [_column(live, name, field) for name, field in zip(sources, schema, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else live


def _sources(present: pa.Schema, columns: Sequence[ScanColumn]) -> list[str | None]:
    """The file's name of each column; None where the file does not have it."""
    by_id = {int(f.metadata[_FIELD_ID]): f.name for f in present if f.metadata and _FIELD_ID in f.metadata}
    if not by_id:
        raise LakeError(
            "a data file has no field ids",
            where=f"columns {', '.join(present.names[:5])}",
            way_out="only files that slotlake or Spark wrote can be read; `slotlake recover` "
            "undoes other writes",
        )
    return [by_id.get(column.field_id) for column in columns]


def _column(batch: pa.RecordBatch, name: str | None, field: pa.Field) -> pa.Array:
    if name is None:
        return nulls(batch.num_rows, field.type)
    values = batch.column(name)
    return values if values.type == field.type else values.cast(field.type)


def _without(batch: pa.RecordBatch, deleted: Positions, start: int) -> pa.RecordBatch:
    low, high = np.searchsorted(deleted, (start, start + batch.num_rows))
    if low == high:
        return batch
    live = np.ones(batch.num_rows, np.bool_)
    live[deleted[low:high] - start] = False
    return batch.filter(pa.array(live))


def _deleted_positions(
    task: FileScanTask, position_deletes: PositionDeletes, vector_files: VectorFiles
) -> Positions:
    """Row positions that the task's deletion vectors and position delete files take away, ascending.

    A table that was of format 2 may have both: a vector has all that the older files had.
    """
    data_file = task.file.file_path
    arrays = [_positions(file, data_file, position_deletes, vector_files) for file in task.delete_files]
    if not arrays:
        return np.empty(0, np.int64)
    return distinct(np.concatenate(arrays))


def _positions(
    file: DataFile, data_file: str, position_deletes: PositionDeletes, vector_files: VectorFiles
) -> Positions:
    if file.file_format == FileFormat.PUFFIN:
        return vector_files.positions(file.file_path, data_file)
    if file.content == DataFileContent.POSITION_DELETES and file.file_format == FileFormat.PARQUET:
        return position_deletes.positions(file.file_path, data_file)
    raise LakeError(
        "the lake holds delete files of a kind that slotlake does not read",
        where=file.file_path,
        way_out="rewrite the table's data files; slotlake itself writes deletion vectors, or position delete "
        "files as Parquet",
    )
