"""Which files a table's snapshots lead to: manifest lists, manifests, data files, and those that delete rows.

Rows are deleted by deletion vectors; in tables of format 2 by position delete files.

Read without Spark.  Files of Iceberg are never changed once written, so each manifest is read once for as
long as a :class:`TableFiles` lives.

Field numbers are those of the Iceberg specification, "Manifests".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO, InputFile
from pyiceberg.manifest import MANIFEST_ENTRY_SCHEMAS, ManifestEntryStatus, read_manifest_list
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, NestedField, StringType, StructType

from slotlake.decoder.compiled.arrays import distinct
from slotlake.decoder.errors import DamagedError, LakeError
from slotlake.spark.storage.file_io import StoreFileIO
from slotlake.spark.storage.stores import canonical
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import Metadata
from slotlake.spark.tables.position_deletes import PositionDeletes, data_file_of, rows_by_data_file

# pyiceberg's own schema of an entry, and one field that it leaves out.
_PYICEBERG_FIELDS = MANIFEST_ENTRY_SCHEMAS[2].find_field("data_file").field_type
assert isinstance(_PYICEBERG_FIELDS, StructType)
_REFERENCED = NestedField(143, "referenced_data_file", StringType(), required=False)
_DATA_FILE = StructType(*_PYICEBERG_FIELDS.fields, _REFERENCED)
_ENTRY = Schema(
    NestedField(0, "status", IntegerType(), required=True),
    NestedField(2, "data_file", _DATA_FILE, required=True),
)
_NUMBERS = (134, 100, 101, 103, 104, 143, 125, 128, 102)
_POSITIONS = [[field.field_id for field in _DATA_FILE.fields].index(number) for number in _NUMBERS]
_PARTITION = 102
_DATA, _VECTORS = 0, "PUFFIN"
Partition = tuple[Any, ...]
_SEVERAL = 2


@dataclass(frozen=True)
class ListedFile:
    """A live file of a manifest.

    Attributes:
        path: its canonical location.
        location: the same as the manifest has it, by which position delete files name data files.
        rows: rows of a data file; of a deletion vector or a position delete file, how many it takes away.
        size: bytes; a file may hold several deletion vectors, each then says the size of all of it.
        deletes_from: the path of the data file that a deletion vector or a position delete file belongs to;
            None for a data file, and if there are several.
        partition: the number of the spec that the file was written by, and the values of its partition.
    """

    path: str
    location: str
    rows: int
    size: int
    deletes_from: str | None = None
    is_data: bool = True
    is_vector: bool = False
    partition: Partition = (0,)


@dataclass(frozen=True)
class DataFile:
    """A data file of a snapshot: its size in bytes, its rows, and how many of these are deleted.

    Attributes:
        partition: the number of the spec that the file was written by, and the values of its partition.
    """

    path: str
    size: int
    rows: int
    deleted: int = 0
    partition: Partition = (0,)

    @property
    def deleted_share(self) -> float:
        """Between 0 and 1."""
        return self.deleted / self.rows if self.rows else 0.0


@dataclass
class TableFiles:
    """The files of one table's snapshots; what has been read of them is kept."""

    _lists: dict[str, list[str]] = field(default_factory=dict)
    _manifests: dict[str, list[ListedFile]] = field(default_factory=dict)
    _io: FileIO = field(default_factory=StoreFileIO)
    _positions: PositionDeletes = field(default_factory=PositionDeletes)

    def data_files(self, snapshot: Metadata | None) -> list[DataFile]:
        """The data files of a snapshot, each with how many of its rows are deleted."""
        listed = list(self._listed(snapshot))
        deletes = self._deletes(listed)
        return [
            DataFile(f.path, f.size, f.rows, self._deleted(f, deletes.get(f.path, ())), f.partition)
            for f in listed
            if f.is_data
        ]

    def live_rows(self, snapshot: Metadata | None) -> int:
        """How many rows a snapshot shows.

        Its totals do not say it where a position delete file outlives its data file, or two have the same
        row: both are counted there.
        """
        return sum(file.rows - file.deleted for file in self.data_files(snapshot))

    def has_useless_deletes(self, snapshot: Metadata | None) -> bool:
        """Return whether position delete files name data files that the snapshot does not have."""
        listed = list(self._listed(snapshot))
        data_files = {file.path for file in listed if file.is_data}
        return not self._deletes(listed).keys() <= data_files

    def _deletes(self, listed: Iterable[ListedFile]) -> dict[str, list[tuple[ListedFile, int]]]:
        """Path of a data file → what deletes rows of it, each with how many."""
        deletes: dict[str, list[tuple[ListedFile, int]]] = {}
        for file in listed:
            if file.deletes_from is not None:
                deletes.setdefault(file.deletes_from, []).append((file, file.rows))
            elif not file.is_data:
                for location, rows in rows_by_data_file(file.location).items():
                    deletes.setdefault(_path(location), []).append((file, rows))
        return deletes

    def _deleted(self, file: ListedFile, deletes: Sequence[tuple[ListedFile, int]]) -> int:
        """How many rows of a data file are deleted; a vector has all that other files have."""
        vectors = [rows for each, rows in deletes if each.is_vector]
        if vectors or len(deletes) < _SEVERAL:
            return sum(vectors or [rows for _, rows in deletes])
        positions = [self._positions.positions(each.location, file.location) for each, _ in deletes]
        return len(distinct(np.concatenate(positions)))

    def manifests(self, snapshot: Metadata | None) -> int:
        """How many manifests a snapshot has."""
        return len(self._manifest_paths(snapshot))

    def referenced_files(self, snapshots: Iterable[Metadata]) -> dict[str, int]:
        """Every file that these snapshots need, by its canonical location → bytes (0: a metadata file)."""
        sizes: dict[str, int] = {}
        for snapshot in snapshots:
            sizes[_path(snapshot["manifest-list"])] = 0
            sizes |= dict.fromkeys(map(_path, self._manifest_paths(snapshot)), 0)
            sizes |= {file.path: file.size for file in self._listed(snapshot)}
        return sizes

    def _listed(self, snapshot: Metadata | None) -> Iterator[ListedFile]:
        for manifest in self._manifest_paths(snapshot):
            if manifest not in self._manifests:
                self._manifests[manifest] = self._read(manifest)
            yield from self._manifests[manifest]

    def _manifest_paths(self, snapshot: Metadata | None) -> list[str]:
        if snapshot is None:
            return []
        where = snapshot["manifest-list"]
        if where not in self._lists:
            with _explained(where):
                source = self._io.new_input(where)
                self._lists[where] = [manifest.manifest_path for manifest in read_manifest_list(source)]
        return self._lists[where]

    def _read(self, manifest: str) -> list[ListedFile]:
        source = self._io.new_input(manifest)
        with _explained(manifest):
            spec, schema = _entries_of(source)
            with AvroFile[Record](source, schema, {-1: Record, 2: Record}) as entries:
                return [
                    _listed_file(e[1], spec) for e in entries if e[0] != ManifestEntryStatus.DELETED.value
                ]


def count_rows(snapshot: Metadata | None) -> int:
    """How many rows a snapshot shows, by its totals if no row of its files is deleted; 0 without a snapshot.

    Raises:
        LakeError: a manifest cannot be read.
    """
    totals = catalog_metadata.summary(snapshot)
    if int(totals.get("total-position-deletes", 0)):
        return TableFiles().live_rows(snapshot)
    return catalog_metadata.live_rows(snapshot) or 0


def _entries_of(source: InputFile) -> tuple[int, Schema]:
    """The number of a manifest's spec, and the schema to read its entries by: with the partition's fields."""
    with AvroFile[Record](source) as manifest:
        written, spec = manifest.schema.find_field(_PARTITION), manifest.header.meta.get("partition-spec-id")
    fields = [written if each.field_id == _PARTITION else each for each in _DATA_FILE.fields]
    data_file = NestedField(2, "data_file", StructType(*fields), required=True)
    return int(spec or 0), Schema(_ENTRY.fields[0], data_file)


def _listed_file(file: Record, spec: int) -> ListedFile:
    content, path, kind, rows, size, belongs_to, lower, upper, partition = (file[i] for i in _POSITIONS)
    is_data = (content or _DATA) == _DATA
    data_file = None if is_data else belongs_to or data_file_of(lower, upper)
    deletes_from = None if data_file is None else _path(data_file)
    place = (spec, *(partition[i] for i in range(len(partition))))
    return ListedFile(_path(path), path, rows, size, deletes_from, is_data, kind == _VECTORS, place)


def _path(location: str) -> str:
    return canonical(location)


class _explained:  # noqa: N801 - used as a function: `with _explained(…):`
    """An error of reading, as one of the lake's."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, LakeError):  # Avro's readers raise anything
            raise DamagedError(
                "a metadata file of a lake table cannot be read; nothing was removed",
                where=self._where,
                way_out="if the table lost files, copy it again: slotlake backfill --table",
            ) from error
