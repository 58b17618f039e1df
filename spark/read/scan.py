"""Reads the rows of one Iceberg snapshot as Arrow batches, without Spark, in bounded memory.

pyiceberg plans (which data files, which deletion vectors); the files are read here one row group at
a time, because pyiceberg's own reader holds a whole data file decoded in memory.  Columns are found
by Iceberg field id, as the specification asks; a file that lacks one was written before it was added.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import FileScanTask, StaticTable
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile

from slotlake.decoder.compiled.arrays import nulls
from slotlake.decoder.errors import LakeError
from slotlake.spark import lake_files

BATCH_ROWS = 64 * 1024
_ALL: BooleanExpression = AlwaysTrue()
_FIELD_ID = b"PARQUET:field_id"
Positions = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class ScanColumn:
    """A column to read: its Iceberg field id, and the Arrow field it becomes."""

    field_id: int
    field: pa.Field


def scan(
    metadata_location: str,
    snapshot_id: int,
    columns: Sequence[ScanColumn],
    partitions: str | BooleanExpression = _ALL,
) -> Iterator[pa.RecordBatch]:
    """Every live row of a snapshot, in no particular order; batches of at most `BATCH_ROWS` rows.

    Args:
        partitions: only files of which this holds; of the columns that the table is partitioned by.

    Raises:
        LakeError: a file is missing or of a kind that this version does not read.
    """
    table = StaticTable.from_metadata(metadata_location)
    try:
        for task in table.scan(partitions, snapshot_id=snapshot_id).plan_files():
            yield from _live_rows(task, columns)
    except OSError as error:
        raise LakeError(
            f"a file of the lake cannot be read: {error.strerror or error}",
            where=metadata_location,
            way_out="its snapshot may have been expired meanwhile: run again, or read a newer position",
        ) from error


def filled_counts(metadata_location: str, snapshot_id: int, field_ids: Collection[int]) -> dict[int, int]:
    """Return field id → number of values that are not NULL in a snapshot's files, deleted rows included.

    It reads the manifests only; a file without the column has none.

    Args:
        metadata_location: the metadata file of the table.
        snapshot_id: the snapshot.
        field_ids: the fields to count.
    """
    counts = dict.fromkeys(field_ids, 0)
    for task in StaticTable.from_metadata(metadata_location).scan(snapshot_id=snapshot_id).plan_files():
        values, nulls = task.file.value_counts or {}, task.file.null_value_counts or {}
        for field in field_ids:
            counts[field] += values.get(field, 0) - nulls.get(field, 0)
    return counts


def _live_rows(task: FileScanTask, columns: Sequence[ScanColumn]) -> Iterator[pa.RecordBatch]:
    deleted = _deleted_positions(task)
    schema = pa.schema([column.field for column in columns])
    with pq.ParquetFile(lake_files.local_path(task.file.file_path), pre_buffer=False) as file:
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


def _deleted_positions(task: FileScanTask) -> Positions:
    """Row positions that the task's deletion vectors take away, ascending."""
    vectors = [_vector(file, task.file.file_path) for file in task.delete_files]
    if not vectors:
        return np.empty(0, np.int64)
    return np.unique(np.concatenate(vectors))


def _vector(file: DataFile, data_file: str) -> Positions:
    if file.file_format != FileFormat.PUFFIN:
        raise LakeError(
            "the lake holds delete files of an older kind",
            where=file.file_path,
            way_out="rewrite the table's data files; slotlake itself writes deletion vectors only",
        )
    puffin = PuffinFile(lake_files.read(file.file_path))
    vectors = [v for v in deletion_vectors_from_puffin_file(puffin) if v.referenced_data_file == data_file]
    arrays = [np.asarray(chunk, np.int64) for v in vectors for chunk in v.to_vector().chunks]
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)
