"""Columns of data files, found by their field ids, and the rows of them that are deleted.

A small file is read whole, by one request; of a large one only the columns that are asked for.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slotlake.decoder.compiled.arrays import nulls
from slotlake.decoder.errors import LAKE_ALTERED, LakeError
from slotlake.spark import lake_files
from slotlake.spark.direct.live import Live
from slotlake.spark.storage.location import Location
from slotlake.spark.tables.deletion_vectors import vectors_at
from slotlake.spark.tables.position_deletes import Positions

_WHOLE_BYTES_MAX: Final = 4 << 20
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

        Args:
            locations: of data files.

        Raises:
            LakeError: one cannot be read.
        """
        puffins: dict[tuple[str, int], dict[str, tuple[int, int]]] = {}
        for location in locations:
            vector = self.live.vectors.get(location)
            if vector is not None and location not in self._deleted:
                puffin = vector.location, int(vector.file.file_size_in_bytes)
                puffins.setdefault(puffin, {})[location] = vector.offset, vector.size
        small = [each for each in locations if self._is_small(each) and each not in self._contents]
        if not small and not puffins:
            return
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            contents = pool.map(lake_files.read, small)
            deleted = pool.map(lambda item: vectors_at(item[0][0], item[0][1], item[1]), puffins.items())
            self._contents |= dict(zip(small, contents, strict=True))
            for of_puffin in deleted:
                self._deleted |= of_puffin

    def deleted(self, location: str) -> Positions:
        """Return the positions of a data file that are deleted, ascending.

        Args:
            location: of a data file that was read ahead.
        """
        return self._deleted.get(location, NOTHING)

    def columns(self, location: str, kinds: Mapping[int, pa.DataType]) -> dict[int, pa.Array]:
        """Return columns of a data file by field id, also of rows that are deleted; NULL if it lacks one.

        Args:
            location: the data file.
            kinds: the type that each is to have, by field id.

        Raises:
            LakeError: the file cannot be read, or a column's values do not fit the type.
        """
        try:
            with self._opened(location) as source, pq.ParquetFile(source) as file:
                return _columns(file, kinds)
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

    def _is_small(self, location: str) -> bool:
        return int(self.live.data[location].file.file_size_in_bytes) <= _WHOLE_BYTES_MAX


def _columns(file: pq.ParquetFile, kinds: Mapping[int, pa.DataType]) -> dict[int, pa.Array]:
    names = {_field_id(each): each.name for each in file.schema_arrow}
    present = {number: names[number] for number in kinds if number in names}
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
        values: the values.
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
