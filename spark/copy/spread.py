"""Spreads copied rows over the files of a table that is partitioned or sorted, without Spark.

The copy reads ranges of the source, whose rows are of any partition.  Their files are read once more, and
each file that is written holds rows of one partition, sorted.  What is in memory is bounded, however many
partitions there are: of a table larger than :data:`CHUNK_BYTES` the rows first go to some files on this
machine, all of one partition to the same.  So a partition gets one file, and more only if its rows, or those
of such a file, do not fit into memory at once.

Invariant: what is written is seen by nobody before the table's metadata leads to it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slotlake.decoder.compiled.arrays import python_values
from slotlake.decoder.errors import LakeError
from slotlake.decoder.types.floats import bounded
from slotlake.spark import exchange, lake_files
from slotlake.spark.copy.partition_values import in_manifest, transformed
from slotlake.spark.layout import Layout, Term
from slotlake.spark.storage.location import Location
from slotlake.spark.tables.layout import layout_of
from slotlake.spark.tables.metadata import Metadata

CHUNK_BYTES = 128 * 1024 * 1024
PARTITIONS_MAX = 10_000
_BATCH_ROWS, _BATCH_BYTES = 128 * 1024, 16 * 1024 * 1024
_BUCKETS_MAX = 128  # open files
_COMPRESSION: Final = "zstd"
_DATA = "data"
# Of each file its location, and its partition as a manifest has it.
Spread = Mapping[Location, tuple[Any, ...]]
_Numbers = npt.NDArray[np.int64]


class PartitionError(LakeError):
    """Rows cannot be partitioned as their table is."""


@dataclass
class _Partitions:
    """The partitions so far, each with its number."""

    layout: Layout
    numbers: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def of(self, rows: pa.Table) -> _Numbers:
        """The number of each row's partition.

        Raises:
            PartitionError: there are too many, or a manifest cannot hold one.
        """
        partitions: list[tuple[Any, ...]] = [()]
        codes = np.zeros(rows.num_rows, np.int64)
        for term in self.layout.partition:
            encoded = transformed(rows[term.column], term).dictionary_encode("encode")
            if pa.types.is_decimal(encoded.dictionary.type):
                _require_digits(term, encoded.dictionary, rows.schema.field(term.column).type.precision)
            values = in_manifest(encoded.dictionary)
            both = codes * len(values) + encoded.indices.to_numpy(zero_copy_only=False)
            distinct, codes = np.unique(both, return_inverse=True)
            pairs = (divmod(int(code), len(values)) for code in distinct)
            partitions = [(*partitions[before], values[last]) for before, last in pairs]
        for partition in partitions:
            self.numbers.setdefault(partition, len(self.numbers))
        if len(self.numbers) > PARTITIONS_MAX:
            raise PartitionError(
                f"a copy would make more than {PARTITIONS_MAX:,} partitions, each with a file of its own",
                where=f"partition_by of the table: {', '.join(map(str, self.layout.partition))}",
                way_out="choose a coarser transform, as month(…) or bucket(16, …)",
            )
        return np.array([self.numbers[partition] for partition in partitions], np.int64)[codes]


def _require_digits(term: Term, values: pa.Array, digits_max: int) -> None:
    """Require that a manifest can hold decimals: with as many digits as their column."""
    numbers = python_values(values.drop_null())
    if any(len(number.as_tuple().digits) > digits_max for number in numbers):
        raise PartitionError(
            f"a number has no partition: rounded down, it has more than {digits_max} digits",
            where=f"partition_by of the table: {term}",
            way_out="choose a narrower truncate, or bucket(16, …) of the column, or another column",
        )


def spread(files: Sequence[Location], metadata: Metadata, directory: Path) -> Spread:
    """Write copied rows as data files of a table; where they are, and of which partition each is.

    Args:
        files: Parquet with the table's field ids; they stay.
        directory: for files of this machine on their way; it is removed.

    Raises:
        LakeError: a file cannot be read, or nothing can be written, or there are too many partitions.
    """
    layout = layout_of(metadata)
    try:
        return _Writing(layout, Location(metadata["location"]) / _DATA, directory).run(files)
    except OSError as error:
        raise LakeError(
            f"the copied rows cannot be written by partitions: {error.strerror or error}",
            where=str(directory),
            way_out="free space there and in the warehouse, then run the same command again",
        ) from error
    finally:
        exchange.remove_directory(directory)


@dataclass
class _Writing:
    layout: Layout
    folder: Location
    directory: Path
    written: dict[Location, tuple[Any, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.partitions = _Partitions(self.layout)

    def run(self, files: Sequence[Location]) -> Spread:
        exchange.remove_directory(self.directory)
        exchange.make_directory(self.directory)
        schema = _schema(files)
        size = sum(map(_bytes, files))
        for bucket in self._buckets(files, schema, min(_BUCKETS_MAX, -(-size // CHUNK_BYTES))):
            for chunk in _chunks(bucket, schema):
                self._write(chunk)
        return self.written

    def _buckets(
        self, files: Sequence[Location], schema: pa.Schema, count: int
    ) -> Iterator[Iterator[pa.RecordBatch]]:
        """The rows, so that all of one partition come together; a few files of this machine at a time."""
        if count <= 1 or not self.layout.partition:
            yield _rows(files, schema)
            return
        paths = [self.directory / f"bucket-{number}.arrow" for number in range(count)]
        options = pa.ipc.IpcWriteOptions(compression=_COMPRESSION)
        with ExitStack() as stack:
            writers = [stack.enter_context(pa.ipc.new_stream(str(p), schema, options=options)) for p in paths]
            for batch in _rows(files, schema):
                numbers = self.partitions.of(pa.Table.from_batches([batch])) % count
                order = np.argsort(numbers, kind="stable")
                sorted_rows = batch.take(pa.array(order))
                for bucket, first, end in _runs(numbers[order]):
                    writers[bucket].write_batch(sorted_rows.slice(first, end - first))
        for path in paths:
            with pa.OSFile(str(path), "rb") as source, pa.ipc.open_stream(source) as reader:
                yield iter(reader)
            path.unlink()

    def _write(self, rows: pa.Table) -> None:
        """Write some rows, sorted, as one file for each partition."""
        numbers = self.partitions.of(rows)
        order = _order(rows, numbers, self.layout)
        rows, numbers = rows.take(pa.array(order)), numbers[order]
        known = list(self.partitions.numbers)
        paths = {}
        for number, first, end in _runs(numbers):
            path = self.directory / f"copied-{uuid.uuid4().hex}.parquet"
            write_parquet(rows.slice(first, end - first), path, _COMPRESSION)
            paths[path] = known[number]
        locations = lake_files.put(list(paths), self.folder, [path.name for path in paths])
        self.written |= dict(zip(locations, paths.values(), strict=True))
        for path in paths:
            path.unlink()


def write_parquet(rows: pa.Table, to: Path | BinaryIO, compression: str) -> None:
    """Write a data file."""
    columns: Any = bounded(rows.schema)
    codec: Any = compression
    pq.write_table(
        rows,
        to,
        compression=codec,
        store_decimal_as_integer=True,
        write_statistics=columns,
        use_dictionary=columns,
    )


def by_partition(rows: pa.Table, layout: Layout) -> list[tuple[tuple[Any, ...], pa.Table]]:
    """Rows of each partition, sorted as the layout says, and the partition as a manifest has it.

    Args:
        rows: with the table's own names of columns; more columns go with them.

    Raises:
        PartitionError: there are too many partitions, or a manifest cannot hold one.
    """
    partitions = _Partitions(layout)
    numbers = partitions.of(rows)
    order = _order(rows, numbers, layout)
    sorted_rows, known = rows.take(pa.array(order)), list(partitions.numbers)
    runs = _runs(numbers[order])
    return [(known[number], sorted_rows.slice(first, end - first)) for number, first, end in runs]


def _runs(numbers: _Numbers) -> Iterator[tuple[int, int, int]]:
    """Each number of a sorted array, where its run begins, and where it ends."""
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    for first, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        yield int(numbers[first]), int(first), int(end)


def _order(rows: pa.Table, numbers: _Numbers, layout: Layout) -> _Numbers:
    """The order of rows: by partition, then as the table is sorted; NULL stands where the order says."""
    keys: dict[str, Any] = {"partition": pa.array(numbers)}
    directions = [("partition", "ascending")]
    for i, term in enumerate(layout.sort):
        values = transformed(rows[term.column], term)
        if pa.types.is_floating(values.type):  # for Spark NaN is larger than all numbers
            keys[f"nan{i}"] = pc.fill_null(pc.is_nan(values), fill_value=False)
        keys |= {f"null{i}": values.is_null(), f"value{i}": values}
        direction = "descending" if term.descending else "ascending"
        directions.append((f"null{i}", "ascending" if term.nulls_last else "descending"))
        directions += [(name, direction) for name in (f"nan{i}", f"value{i}") if name in keys]
    return np.asarray(pc.sort_indices(pa.table(keys), sort_keys=directions), np.int64)


def _chunks(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows in pieces that fit into memory."""
    piece: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        piece.append(batch)
        size += batch.nbytes
        if size >= CHUNK_BYTES:
            yield pa.Table.from_batches(piece, schema)
            piece, size = [], 0
    if piece:
        yield pa.Table.from_batches(piece, schema)


def _schema(files: Sequence[Location]) -> pa.Schema:
    """All columns of the files: one with exact texts is only in those that have some."""
    fields: dict[str, pa.Field] = {}
    for location in files:
        with lake_files.open_to_read(location) as file:
            fields |= {each.name: each for each in pq.read_schema(file) if each.name not in fields}
    return pa.schema(list(fields.values()))


def _bytes(location: Location) -> int:
    with lake_files.open_to_read(location) as file:
        return _size(pq.read_metadata(file))


def _size(footer: pq.FileMetaData) -> int:
    return sum(footer.row_group(i).total_byte_size for i in range(footer.num_row_groups))


def _batch_rows(footer: pq.FileMetaData) -> int:
    """So many rows at once; fewer where they are wide."""
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES * footer.num_rows // max(1, _size(footer))))


def _rows(files: Sequence[Location], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of all files, each with all columns."""
    for location in files:
        with lake_files.open_to_read(location) as file, pq.ParquetFile(file) as reader:
            for batch in reader.iter_batches(batch_size=_batch_rows(reader.metadata)):
                present = set(batch.schema.names)
                arrays = [
                    batch.column(each.name) if each.name in present else pa.nulls(len(batch), each.type)
                    for each in schema
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
