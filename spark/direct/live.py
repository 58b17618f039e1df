"""The files that a snapshot has: data files, the vectors that delete rows of them, and the manifests of both.

A manifest never changes once it is written, so what has been read of it is used again, as long as there is
room.  Sequence numbers and first numbers of rows that a manifest leaves out are filled in as Iceberg does
(table specification, "Sequence Number Inheritance" and "Row Lineage").
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyiceberg.avro.file import AvroFile
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from slotlake.spark.direct.unsuitable import UnsuitableError
from slotlake.spark.storage.file_io import StoreFileIO
from slotlake.spark.tables.manifests import entry_schema, first_row_id_of, manifests_of
from slotlake.spark.tables.metadata import Metadata

FORMAT: Final = 3
_NAMES = [field.name for field in DATA_FILE_TYPE[FORMAT].fields]
FIRST_ROW_ID, _REFERENCED, _OFFSET, _SIZE = map(
    _NAMES.index, ("first_row_id", "referenced_data_file", "content_offset", "content_size_in_bytes")
)
FILES_MAX: Final = 10_000
_REMEMBERED_FILES_MAX: Final = 40_000


@dataclass(frozen=True)
class LiveFile:
    """A data file or a deletion vector that a snapshot has.

    Attributes:
        file: as its manifest has it.
        manifest: the manifest's location; ``spec``: the number of its partition spec.
        snapshot_id: the snapshot that added the file; ``sequence_number``, ``file_sequence_number``: its.
        first_row_id: the number of a data file's first row; None if rows have no numbers yet.
    """

    file: DataFile
    manifest: str
    spec: int
    snapshot_id: int
    sequence_number: int
    file_sequence_number: int
    first_row_id: int | None

    @property
    def location(self) -> str:
        """Where the file is; that of a vector is the Puffin file's."""
        return self.file.file_path

    @property
    def vector_of(self) -> str:
        """The data file of which a vector deletes rows."""
        return str(self.file[_REFERENCED] or "")

    @property
    def offset(self) -> int:
        """Where a vector begins in its Puffin file; 0 for a data file."""
        return int(self.file[_OFFSET] or 0)

    @property
    def size(self) -> int:
        """Bytes of the file; of a vector, those that are its own."""
        return int(self.file[_SIZE] or self.file.file_size_in_bytes)


@dataclass(frozen=True)
class Live:
    """What a snapshot has.

    Attributes:
        data: data files by location.
        vectors: deletion vectors by the location of their data file.
        entries: the live files of each manifest that was read, by its location.
    """

    manifests: Sequence[ManifestFile]
    data: Mapping[str, LiveFile]
    vectors: Mapping[str, LiveFile]
    entries: Mapping[str, Sequence[LiveFile]]

    def live_rows(self, location: str) -> int:
        """How many rows of a data file are not deleted."""
        vector = self.vectors.get(location)
        deleted = 0 if vector is None else vector.file.record_count
        return int(self.data[location].file.record_count) - deleted


class _Remembered:
    """What manifests have, by location; those that were used longest ago leave first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, Sequence[LiveFile]] = OrderedDict()
        self._files = 0
        self._lock = threading.Lock()

    def get(self, location: str) -> Sequence[LiveFile] | None:
        with self._lock:
            if location in self._entries:
                self._entries.move_to_end(location)
            return self._entries.get(location)

    def put(self, location: str, entries: Sequence[LiveFile]) -> None:
        with self._lock:
            if location not in self._entries:
                self._entries[location] = entries
                self._files += len(entries)
            while self._files > _REMEMBERED_FILES_MAX:
                self._files -= len(self._entries.popitem(last=False)[1])


_remembered = _Remembered()


def live_files(
    metadata: Metadata,
    snapshot: Metadata | None,
    needed: Callable[[Sequence[ManifestFile]], set[str]] | None = None,
) -> Live:
    """Read which files a snapshot has.

    Args:
        needed: says of which manifests the files are read, by their locations. Default: of all.

    Raises:
        UnsuitableError: the table is of format 2, or rows are deleted by other means than vectors.
        LakeError: a file cannot be read.
    """
    if metadata["format-version"] != FORMAT:
        raise UnsuitableError("the table is of format 2")
    manifests = [each for each in manifests_of(metadata, snapshot) if _has_files(each)]
    read = {each.manifest_path for each in manifests} if needed is None else needed(manifests)
    entries = {m.manifest_path: _entries(metadata, m) for m in manifests if m.manifest_path in read}
    data: dict[str, LiveFile] = {}
    vectors: dict[str, LiveFile] = {}
    for each in (each for of_manifest in entries.values() for each in of_manifest):
        if each.file.content == DataFileContent.DATA:
            data[each.location] = each
        elif each.file.file_format == FileFormat.PUFFIN:
            vectors[each.vector_of] = each
        else:
            raise UnsuitableError("rows are deleted by delete files of format 2")
    return Live(manifests, data, vectors, entries)


def spec_of(metadata: Metadata, number: int) -> PartitionSpec:
    """Return a partition spec of a table by its number."""
    specs = metadata["partition-specs"]
    return PartitionSpec.model_validate(next(spec for spec in specs if spec["spec-id"] == number))


def schema_now(metadata: Metadata) -> Schema:
    """Return the schema that a table has now."""
    number = metadata["current-schema-id"]
    return Schema.model_validate(next(s for s in metadata["schemas"] if s["schema-id"] == number))


def _has_files(manifest: ManifestFile) -> bool:
    return manifest.has_added_files() or manifest.has_existing_files()


def _entries(metadata: Metadata, manifest: ManifestFile) -> Sequence[LiveFile]:
    known = _remembered.get(manifest.manifest_path)
    if known is not None:
        return known
    source = StoreFileIO().new_input(manifest.manifest_path)
    kinds: dict[int, Any] = {-1: ManifestEntry, 2: DataFile}
    enums: dict[int, Any] = {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent}
    schema = entry_schema(FORMAT, schema_now(metadata), spec_of(metadata, manifest.partition_spec_id))
    with AvroFile[ManifestEntry](source, schema, kinds, enums) as stored:
        entries = _inherited(manifest, [e for e in stored if e.status != ManifestEntryStatus.DELETED])
    _remembered.put(manifest.manifest_path, entries)
    return entries


def _inherited(manifest: ManifestFile, entries: Sequence[ManifestEntry]) -> Sequence[LiveFile]:
    following = first_row_id_of(manifest)
    live = []
    for entry in entries:
        file, first = entry.data_file, entry.data_file[FIRST_ROW_ID]
        if first is None and following is not None and manifest.content == ManifestContent.DATA:
            first, following = following, following + file.record_count
        sequence, file_sequence = entry.sequence_number, entry.file_sequence_number
        live.append(
            LiveFile(
                file,
                manifest.manifest_path,
                manifest.partition_spec_id,
                entry.snapshot_id or manifest.added_snapshot_id or 0,
                manifest.sequence_number if sequence is None else sequence,
                manifest.sequence_number if file_sequence is None else file_sequence,
                first,
            )
        )
    return tuple(live)
