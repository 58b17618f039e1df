"""Which files a table's snapshots lead to: manifest lists, manifests, data files, deletion vectors.

Read without Spark.  Files of Iceberg are never changed once written, so each manifest is read once for as
long as a :class:`TableFiles` lives.

Field numbers are those of the Iceberg specification, "Manifests".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import MANIFEST_ENTRY_SCHEMAS, ManifestEntryStatus, read_manifest_list
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, NestedField, StringType, StructType

from slotlake.decoder.errors import LakeError
from slotlake.spark import lake_files
from slotlake.spark.tables.metadata import Metadata

# pyiceberg's own schema of an entry, and one field that it leaves out.
_PYICEBERG_FIELDS = MANIFEST_ENTRY_SCHEMAS[2].find_field("data_file").field_type
assert isinstance(_PYICEBERG_FIELDS, StructType)
_REFERENCED = NestedField(143, "referenced_data_file", StringType(), required=False)
_DATA_FILE = StructType(*_PYICEBERG_FIELDS.fields, _REFERENCED)
_ENTRY = Schema(
    NestedField(0, "status", IntegerType(), required=True),
    NestedField(2, "data_file", _DATA_FILE, required=True),
)
_POSITIONS = [
    [field.field_id for field in _DATA_FILE.fields].index(number) for number in (134, 100, 103, 104, 143)
]
_DATA = 0


@dataclass(frozen=True)
class ListedFile:
    """A live file of a manifest.

    Attributes:
        path: of this machine.
        rows: rows of a data file; of a deletion vector, how many it takes away.
        size: bytes; a file may hold several deletion vectors, each then says the size of all of it.
        deletes_from: the data file that a deletion vector belongs to; None for a data file.
    """

    path: str
    rows: int
    size: int
    deletes_from: str | None = None
    is_data: bool = True


@dataclass(frozen=True)
class DataFile:
    """A data file of a snapshot: its size in bytes, its rows, and how many of these are deleted."""

    path: str
    size: int
    rows: int
    deleted: int = 0

    @property
    def deleted_share(self) -> float:
        """Between 0 and 1."""
        return self.deleted / self.rows if self.rows else 0.0


@dataclass
class TableFiles:
    """The files of one table's snapshots; what has been read of them is kept."""

    _lists: dict[str, list[str]] = field(default_factory=dict)
    _manifests: dict[str, list[ListedFile]] = field(default_factory=dict)
    _io: FileIO = field(default_factory=lambda: load_file_io({}, "file:///"))

    def data_files(self, snapshot: Metadata | None) -> list[DataFile]:
        """The data files of a snapshot, each with what its deletion vector takes away."""
        listed = list(self._listed(snapshot))
        deleted: dict[str, int] = {}
        for file in listed:
            if file.deletes_from is not None:
                deleted[file.deletes_from] = deleted.get(file.deletes_from, 0) + file.rows
        return [DataFile(f.path, f.size, f.rows, deleted.get(f.path, 0)) for f in listed if f.is_data]

    def manifests(self, snapshot: Metadata | None) -> int:
        """How many manifests a snapshot has."""
        return len(self._manifest_paths(snapshot))

    def referenced_files(self, snapshots: Iterable[Metadata]) -> dict[str, int]:
        """Every file that these snapshots need, by its path on this machine → bytes (0: a metadata file)."""
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
                source = self._io.new_input(str(lake_files.local_path(where)))
                self._lists[where] = [manifest.manifest_path for manifest in read_manifest_list(source)]
        return self._lists[where]

    def _read(self, manifest: str) -> list[ListedFile]:
        source = self._io.new_input(str(lake_files.local_path(manifest)))
        with _explained(manifest), AvroFile[Record](source, _ENTRY, {-1: Record, 2: Record}) as entries:
            return [_listed_file(e[1]) for e in entries if e[0] != ManifestEntryStatus.DELETED.value]


def _listed_file(file: Record) -> ListedFile:
    content, path, rows, size, belongs_to = (file[i] for i in _POSITIONS)
    deletes_from = None if belongs_to is None else _path(belongs_to)
    return ListedFile(_path(path), rows, size, deletes_from, (content or _DATA) == _DATA)


def _path(location: str) -> str:
    return str(lake_files.local_path(location))


class _explained:  # noqa: N801 - used as a function: `with _explained(…):`
    """An error of reading, as one of the lake's."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError | ValueError):
            raise LakeError(
                "a metadata file of a lake table cannot be read; nothing was removed",
                where=self._where,
                way_out="if the table lost files, copy it again: slotlake backfill --table",
            ) from error
