"""Columns of data files, found by their field ids, and the rows of them that are deleted.

A small file is read whole, by one request; of a large one only the columns that are asked for.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slotlake.decoder.compiled.arrays import distinct, nulls
from slotlake.decoder.errors import LAKE_ALTERED, LakeError
from slotlake.spark import lake_files
from slotlake.spark.direct.live import Live
from slotlake.spark.storage.location import Location
from slotlake.spark.tables.deletion_vectors import vectors_at
from slotlake.spark.tables.position_deletes import Positions

_WHOLE_BYTES_MAX: Final = 4 << 20
# So much of small files is kept; of the others columns are read each time.
_CACHED_BYTES_MAX: Final = 128 << 20
# Values that are larger than this together are read some rows at a time.
_AT_ONCE_BYTES_MAX: Final = 64 << 20
_BUFFER_BYTES: Final = 1 << 20
_AT_ONCE: Final = 8
_FIELD_ID: Final = b"PARQUET:field_id"
NOTHING: Final[Positions] = np.empty(0, np.int64)


@dataclass
class Reading:
    """What is read of a snapshot's files; each small file, and each vector, once.

    Attributes:
        live: the files of the snapshot.
    """

    live: Live
    _contents: dict[str, bytes] = field(default_factory=dict)
    _deleted: dict[str, Positions] = field(default_factory=dict)

    def ahead(self, locations: Sequence[str]) -> None:
        """Read small data files, and the vectors of these files, several at a time.

        Raises:
            LakeError: one cannot be read.
        """
        puffins: dict[tuple[str, int], dict[str, tuple[int, int]]] = {}
        for location in locations:
            vector = self.live.vectors.get(location)
            if vector is not None and location not in self._deleted:
                puffin = vector.location, int(vector.file.file_size_in_bytes)
                puffins.setdefault(puffin, {})[location] = vector.offset, vector.size
        small = self._cacheable(locations)
        if not small and not puffins:
            return
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            contents = pool.map(lake_files.read, small)
            deleted = pool.map(lambda item: vectors_at(item[0][0], item[0][1], item[1]), puffins.items())
            self._contents |= dict(zip(small, contents, strict=True))
            for of_puffin in deleted:
                self._deleted |= of_puffin

    def deleted(self, location: str) -> Positions:
        """Return the positions of a data file that are deleted, ascending."""
        return self._deleted.get(location, NOTHING)

    def columns(self, location: str, kinds: Mapping[int, pa.DataType]) -> dict[int, pa.Array]:
        """Return columns of a data file by field id, also of rows that are deleted; NULL if it lacks one.

        Args:
            kinds: the type that each is to have, by field id.

        Raises:
            LakeError: the file cannot be read, or a column's values do not fit the type.
        """
        with self._open_file(location) as file:
            return _columns(file, kinds)

    def values(
        self, location: str, kinds: Mapping[int, pa.DataType], positions: Positions
    ) -> dict[int, pa.Array]:
        """Return columns of some rows of a data file by field id, with no more in memory than these rows.

        Args:
            kinds: the type that each column is to have, by field id.

        Raises:
            LakeError: the file cannot be read, or a column's values do not fit the type.
        """
        with self._open_file(location) as file:
            if _size(file, kinds) <= _AT_ONCE_BYTES_MAX:
                return {n: each.take(pa.array(positions)) for n, each in _columns(file, kinds).items()}
            return _some_at_a_time(file, kinds, positions)

    def pieces(
        self, location: str, kinds: Mapping[int, pa.DataType]
    ) -> Iterator[tuple[int, dict[int, pa.Array]]]:
        """Yield columns of a data file by field id, with the number of their first row, in small pieces.

        Args:
            kinds: the type that each column is to have, by field id.

        Raises:
            LakeError: the file cannot be read, or a column's values do not fit the type.
        """
        with self._open_file(location) as file:
            present = _present(file, kinds)
            if not present or _size(file, kinds) <= _AT_ONCE_BYTES_MAX:
                yield 0, _columns(file, kinds)
                return
            at = 0
            for batch in file.iter_batches(_rows_at_once(file, kinds), columns=list(present.values())):
                yield (
                    at,
                    {
                        n: batch[present[n]].cast(kind) if n in present else nulls(len(batch), kind)
                        for n, kind in kinds.items()
                    },
                )
                at += len(batch)

    def row_bytes(self, location: str, kinds: Mapping[int, pa.DataType]) -> int:
        """Return how many bytes columns of a data file take in memory, on average of its rows.

        Args:
            kinds: the columns, by field id.
        """
        with self._open_file(location) as file:
            return _size(file, kinds) // max(1, file.metadata.num_rows)

    @contextmanager
    def _open_file(self, location: str) -> Iterator[pq.ParquetFile]:
        try:
            with (
                self._opened(location) as source,
                pq.ParquetFile(source, buffer_size=_BUFFER_BYTES) as file,
            ):
                yield file
        except LakeError:
            raise
        except (OSError, pa.ArrowInvalid) as error:
            raise LakeError(
                f"a data file cannot be read: {error}", where=location, way_out=LAKE_ALTERED
            ) from error

    def _opened(self, location: str) -> BinaryIO:
        if location in self._contents:
            return io.BytesIO(self._contents[location])
        return lake_files.open_to_read(Location(location))

    def _cacheable(self, locations: Sequence[str]) -> list[str]:
        """Those of some data files that are read whole, and kept."""
        room, some = _CACHED_BYTES_MAX - sum(map(len, self._contents.values())), []
        for location in locations:
            size = int(self.live.data[location].file.file_size_in_bytes)
            if size <= min(_WHOLE_BYTES_MAX, room) and location not in self._contents:
                room -= size
                some.append(location)
        return some


def _present(file: pq.ParquetFile, kinds: Mapping[int, pa.DataType]) -> dict[int, str]:
    names = {_field_id(each): each.name for each in file.schema_arrow}
    return {number: names[number] for number in kinds if number in names}


def _size(file: pq.ParquetFile, kinds: Mapping[int, pa.DataType]) -> int:
    names = set(_present(file, kinds).values())
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    columns = [group.column(j) for group in groups for j in range(group.num_columns)]
    return sum(c.total_uncompressed_size for c in columns if c.path_in_schema.split(".")[0] in names)


def _rows_at_once(file: pq.ParquetFile, kinds: Mapping[int, pa.DataType]) -> int:
    return max(1, int(_AT_ONCE_BYTES_MAX * file.metadata.num_rows // _size(file, kinds)))


def _some_at_a_time(
    file: pq.ParquetFile, kinds: Mapping[int, pa.DataType], positions: Positions
) -> dict[int, pa.Array]:
    """The same as `_columns`, of some rows; few others are in memory at a time."""
    present, wanted, start = _present(file, kinds), distinct(positions), 0
    names, rows = list(present.values()), _rows_at_once(file, kinds)
    pieces: dict[int, list[pa.Array]] = {number: [nulls(0, kind)] for number, kind in kinds.items()}
    for group in range(file.metadata.num_row_groups):
        end = start + file.metadata.row_group(group).num_rows
        if ((wanted >= start) & (wanted < end)).any():
            at = start
            for batch in file.iter_batches(rows, row_groups=[group], columns=names):
                first, after = np.searchsorted(wanted, (at, at + len(batch)))
                taken = pa.array(wanted[first:after] - at)
                for number, name in present.items() if len(taken) else ():
                    pieces[number].append(batch[name].take(taken).cast(kinds[number]))
                at += len(batch)
        start = end
    order = pa.array(np.searchsorted(wanted, positions))
    return {
        n: pa.concat_arrays(some).take(order) if n in present else nulls(len(positions), kinds[n])
        for n, some in pieces.items()
    }


def _columns(file: pq.ParquetFile, kinds: Mapping[int, pa.DataType]) -> dict[int, pa.Array]:
    present = _present(file, kinds)
    rows = file.read(columns=list(present.values())) if present else None
    columns: dict[int, pa.Array] = {}
    for number, kind in kinds.items():
        if rows is None or number not in present:
            columns[number] = nulls(file.metadata.num_rows, kind)
        else:
            columns[number] = one_array(rows[present[number]], kind)
    return columns


def one_array(values: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Return values as one array of a type.

    Args:
        kind: a type that all of them fit.
    """
    whole: Any = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], whole.type)
    cast: pa.Array = whole if whole.type == kind else whole.cast(kind)
    return cast


def _field_id(of: pa.Field) -> int:
    stored = (of.metadata or {}).get(_FIELD_ID)
    return int(stored) if stored else -1
