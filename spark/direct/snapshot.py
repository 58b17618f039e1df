"""One snapshot without Spark: data files, one file of deletion vectors, manifests and their list.

As Iceberg 1.12 commits a MERGE of a table of format 3: a data file has at most one vector, which a new one
replaces; files that stay are listed again with the numbers that they have (Iceberg table spec, "Manifests").
A data file of which no row is left leaves the table with its vector.

Invariant: nothing leads to what is written before the catalog has the metadata; so whoever calls may have all
of it written at the same time.
"""

from __future__ import annotations

import io
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)

from slotlake.decoder.compiled.arrays import distinct
from slotlake.spark import lake_files
from slotlake.spark.copy.files import description_of_files
from slotlake.spark.copy.spread import by_partition, write_parquet
from slotlake.spark.direct.live import FIRST_ROW_ID, FORMAT, Live, LiveFile, live_files, spec_of
from slotlake.spark.storage.location import Location
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.deletion_vectors import puffin_of
from slotlake.spark.tables.layout import is_laid_out, layout_of
from slotlake.spark.tables.manifests import new_snapshot, with_new_snapshot, write_entries, write_list
from slotlake.spark.tables.metadata import MAIN, STAGE, Metadata
from slotlake.spark.tables.position_deletes import Positions

_WRITTEN_BY: Final = "slotlake"
# A manifest with more files is not written again for one that is empty, nor to have fewer manifests.
_REWRITTEN_FILES_MAX: Final = 200
# So many short manifests of data files become one, as Iceberg does it (commit.manifest.min-count-to-merge).
_SHORT_MANIFESTS_MAX: Final = 100
_CODECS: Final[Mapping[str, Any]] = {
    "zstd": "zstd",
    "snappy": "snappy",
    "gzip": "gzip",
    "lz4": "lz4",
    "uncompressed": "none",
}
CODEC: Final = "write.parquet.compression-codec"


@dataclass(frozen=True)
class Change:
    """What a snapshot changes.

    Attributes:
        rows: the rows that come, with the columns of a data file, in pieces; each gets files of its own.
        deleted: data file → all its positions that are deleted from then on, ascending.
        removed: data files that leave, because their rows are among those that come.
    """

    rows: Iterable[pa.Table]
    deleted: Mapping[str, Positions]
    removed: Collection[str] = ()


@dataclass
class _Files:
    """What is added and what leaves, by the number of the partition spec for what is added.

    Attributes:
        sequence_number: of the data that is added; None: the snapshot's own.
    """

    added: list[tuple[int, DataFile]] = field(default_factory=list)
    gone: list[LiveFile] = field(default_factory=list)
    sequence_number: int | None = None


def can_compress(codec: str) -> bool:
    """Return whether files of a table with this codec can be written."""
    return codec in _CODECS


def with_snapshot(metadata: Metadata, live: Live, change: Change, entries: Mapping[str, str]) -> Metadata:
    """Write a snapshot's files; return the table's metadata with it, as the head of the branch ``stage``.

    Args:
        live: the files of the snapshot that ``stage`` points at.
        entries: what else its summary says.

    Raises:
        LakeError: a file cannot be written.
    """
    return _with_files(metadata, live, _files(metadata, live, change), entries, STAGE)


def with_rows(metadata: Metadata, rows: Iterable[pa.Table], entries: Mapping[str, str]) -> Metadata:
    """Write a snapshot that only adds rows; return the metadata with it, as the head of ``stage``.

    Of the manifests of before only those are read that are written again.

    Args:
        rows: with the columns of a data file, in pieces; each gets files of its own.
        entries: what else its summary says.

    Raises:
        LakeError: a file cannot be read or written.
    """
    live = live_files(metadata, catalog_metadata.head(metadata, STAGE), _short)
    return with_snapshot(metadata, live, Change(rows, {}), entries)


def with_packed_files(metadata: Metadata, live: Live, change: Change) -> Metadata:
    """Write a snapshot with the same rows in other files; return the metadata with it as ``main``.

    Args:
        change: the rows of the files that leave, with their numbers.

    Raises:
        LakeError: a file cannot be written.
    """
    return _with_files(metadata, live, _files(metadata, live, change), {"operation": "replace"}, MAIN)


def with_replaced(metadata: Metadata, live: Live, new: Sequence[LiveFile], old: Collection[str]) -> Metadata:
    """Write a snapshot that has other files with the same rows; return the metadata with it as ``main``.

    Args:
        new: data files with the rows of the old ones that are not deleted, and with the rows' numbers.

    Raises:
        LakeError: a file cannot be written.
    """
    gone = [live.data[each] for each in old] + [live.vectors[each] for each in old if each in live.vectors]
    added = [(each.spec, _numbered(replace(each, first_row_id=None))) for each in new]
    # The rows are no newer than before: what deletes rows of them may come from any batch since.
    number = min((each.sequence_number for each in new), default=None)
    return _with_files(metadata, live, _Files(added, gone, number), {"operation": "replace"}, MAIN)


def _with_files(
    metadata: Metadata, live: Live, files: _Files, entries: Mapping[str, str], branch: str
) -> Metadata:
    before, snapshot = catalog_metadata.head(metadata, branch), new_snapshot(metadata, branch)
    manifests = _manifests(metadata, snapshot, live, files)
    snapshot = write_list(FORMAT, snapshot, manifests)
    snapshot["summary"] = {**_summary(catalog_metadata.summary(before), files), **entries}
    return with_new_snapshot(metadata, snapshot, branch)


def _files(metadata: Metadata, live: Live, change: Change) -> _Files:
    """Write data files and vectors; what the manifests say of them, and what leaves."""
    files = _Files()
    leaving = {*change.removed, *(each for each in change.deleted if _is_empty(live, change, each))}
    files.gone += [live.data[each] for each in leaving]
    files.gone += [live.vectors[each] for each in {*leaving, *change.deleted} if each in live.vectors]
    spec = metadata["default-spec-id"]
    files.added += [(spec, file) for rows in change.rows for file in _written(metadata, rows)]
    files.added += _vectors(metadata, live, {k: v for k, v in change.deleted.items() if k not in leaving})
    return files


def _is_empty(live: Live, change: Change, location: str) -> bool:
    file = live.data[location]
    return (
        len(change.deleted[location]) == file.file.record_count
        and len(live.entries[file.manifest]) <= _REWRITTEN_FILES_MAX
    )


def _written(metadata: Metadata, rows: pa.Table) -> list[DataFile]:
    """Write rows, a file for each partition, sorted as the table is."""
    if not rows.num_rows:
        return []
    describe = description_of_files(metadata)
    codec = _CODECS[metadata.get("properties", {}).get(CODEC, "zstd")]
    parts: Iterable[tuple[Any, pa.Table]] = [(None, rows)]
    if is_laid_out(metadata):
        parts = by_partition(rows, layout_of(metadata))
    files = []
    for partition, some in parts:
        content = io.BytesIO()
        write_parquet(some, content, codec)
        location = Location(metadata["location"]) / "data" / f"{uuid.uuid4().hex}.parquet"
        written = content.getvalue()
        lake_files.write_new(location, written)
        footer = pq.read_metadata(io.BytesIO(written))
        files.append(describe(location, footer, len(written), partition))
    return files


def _vectors(metadata: Metadata, live: Live, deleted: Mapping[str, Positions]) -> list[tuple[int, DataFile]]:
    """Write one Puffin file with the vectors of all data files."""
    if not deleted:
        return []
    content, places = puffin_of(deleted, _WRITTEN_BY)
    location = Location(metadata["location"]) / "data" / f"{uuid.uuid4().hex}-deletes.puffin"
    lake_files.write_new(location, content)
    vectors = []
    for data_file, (offset, size) in places.items():
        of = live.data[data_file]
        vector = DataFile.from_args(
            _table_format_version=FORMAT,
            content=DataFileContent.POSITION_DELETES,
            file_path=str(location),
            file_format=FileFormat.PUFFIN,
            partition=of.file.partition,
            record_count=len(deleted[data_file]),
            file_size_in_bytes=len(content),
            referenced_data_file=data_file,
            content_offset=offset,
            content_size_in_bytes=size,
        )
        vectors.append((of.spec, vector))
    return vectors


def _manifests(metadata: Metadata, snapshot: Metadata, live: Live, files: _Files) -> list[ManifestFile]:
    """Write the manifests that change; return all of the snapshot.

    The files that stay of a manifest from which one leaves are in the new one, with those that come.  So are
    those of short manifests: else each batch would leave one.
    """
    gone = set(map(id, files.gone))  # two vectors of one Puffin file are equal for pyiceberg
    changed = {file.manifest for file in files.gone}
    entries: dict[tuple[ManifestContent, int], list[ManifestEntry]] = {}
    unchanged, short = [], _short(live.manifests)
    for spec, file in files.added:
        added = _entry(ManifestEntryStatus.ADDED, file, snapshot["snapshot-id"], files.sequence_number, None)
        entries.setdefault((_content(file), spec), []).append(added)
    for manifest in live.manifests:
        kind, location = (manifest.content, manifest.partition_spec_id), manifest.manifest_path
        if location not in changed and not (location in short and kind in entries):
            unchanged.append(manifest)
            continue
        entries.setdefault(kind, []).extend(
            _deleted(each, snapshot) if id(each) in gone else _existing(each)
            for each in live.entries[location]
        )
    new = [
        write_entries(metadata, snapshot, spec_of(metadata, spec), some)
        for (_, spec), some in sorted(entries.items(), key=lambda item: (item[0][0].value, item[0][1]))
    ]
    return [*new, *unchanged]


def _short(manifests: Sequence[ManifestFile]) -> set[str]:
    """Manifests with few files, which are written again with what comes: of data files only many of them."""
    short = [m for m in manifests if _files_in(m) <= _REWRITTEN_FILES_MAX]
    kinds = Counter((m.content, m.partition_spec_id) for m in short)
    return {
        m.manifest_path
        for m in short
        if m.content == ManifestContent.DELETES
        or kinds[m.content, m.partition_spec_id] >= _SHORT_MANIFESTS_MAX
    }


def _files_in(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _content(file: DataFile) -> ManifestContent:
    return ManifestContent.DATA if file.content == DataFileContent.DATA else ManifestContent.DELETES


def _existing(live: LiveFile) -> ManifestEntry:
    return _entry(ManifestEntryStatus.EXISTING, _numbered(live), live.snapshot_id, *_sequence(live))


def _deleted(live: LiveFile, snapshot: Metadata) -> ManifestEntry:
    number = snapshot["snapshot-id"]
    return _entry(ManifestEntryStatus.DELETED, _numbered(live), number, *_sequence(live))


def _sequence(live: LiveFile) -> tuple[int, int]:
    return live.sequence_number, live.file_sequence_number


def _entry(
    status: ManifestEntryStatus,
    file: DataFile,
    snapshot_id: int,
    sequence: int | None,
    file_sequence: int | None,
) -> ManifestEntry:
    return ManifestEntry.from_args(
        _table_format_version=FORMAT,
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=sequence,
        file_sequence_number=file_sequence,
        data_file=file,
    )


def _numbered(live: LiveFile) -> DataFile:
    """The file with the number of its first row, which its former manifest may have given it."""
    if live.first_row_id == live.file[FIRST_ROW_ID]:
        return live.file
    values = [live.file[i] for i in range(len(live.file))]
    values[FIRST_ROW_ID] = live.first_row_id
    return DataFile(*values)


def _summary(before: Mapping[str, str], files: _Files) -> dict[str, str]:
    """As Iceberg's: what came and went, and the totals."""
    came = _counts([file for _, file in files.added])
    went = _counts([file.file for file in files.gone])
    names = {
        "data-files": ("added-data-files", "deleted-data-files"),
        "records": ("added-records", "deleted-records"),
        "delete-files": ("added-delete-files", "removed-delete-files"),
        "position-deletes": ("added-position-deletes", "removed-position-deletes"),
        "files-size": ("added-files-size", "removed-files-size"),
    }
    summary = {"operation": _operation(came, went)}
    for what, (added, removed) in names.items():
        summary |= {name: str(n) for name, n in ((added, came[what]), (removed, went[what])) if n}
        summary[f"total-{what}"] = str(int(before.get(f"total-{what}", 0)) + came[what] - went[what])
    dvs = (("added-dvs", came["delete-files"]), ("removed-dvs", went["delete-files"]))
    summary |= {name: str(n) for name, n in dvs if n}
    summary["total-equality-deletes"] = before.get("total-equality-deletes", "0")
    return summary


def _operation(came: Mapping[str, int], went: Mapping[str, int]) -> str:
    if not came["delete-files"] and not went["data-files"]:
        return "append"
    return "delete" if went["data-files"] + came["delete-files"] and not came["data-files"] else "overwrite"


def _counts(files: Sequence[DataFile]) -> dict[str, int]:
    data = [file for file in files if file.content == DataFileContent.DATA]
    deletes = [file for file in files if file.content != DataFileContent.DATA]
    sizes = [file.file_size_in_bytes for file in data] + [int(file[-1] or 0) for file in deletes]
    return {
        "data-files": len(data),
        "records": sum(file.record_count for file in data),
        "delete-files": len(deletes),
        "position-deletes": sum(file.record_count for file in deletes),
        "files-size": sum(sizes),
    }


def merged(deleted: Positions, more: Positions) -> Positions:
    """Return positions of both, ascending, each once."""
    return distinct(np.concatenate([deleted, more]))
