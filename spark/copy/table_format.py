"""Gives a table another format of Iceberg, 2 or 3, without a row being written or read.

From 2 to 3 only the metadata changes: position delete files stay, and what is deleted later stands in
deletion vectors.

From 3 to 2 is no step that Iceberg has, because snapshots of the past may have deletion vectors.  So the past
goes where it stays readable: the points before the newest move to a past file of format 3
(`spark.publish.past`).  What is left is one snapshot.  It is written anew: the same data files in manifests
of format 2, and for every deletion vector a position delete file.  It has the id of the point's snapshot,
because that is what rows of `commits` name, and because it shows the same rows.

Invariant: readers see the same rows before and after, at every kept point, and nothing before the catalog is
given the metadata.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.avro.file import AvroFile
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import LongType

from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog import tags as catalog_tags
from slotlake.spark.catalog.base import Loaded
from slotlake.spark.publish.past import with_all_in_the_past
from slotlake.spark.storage.file_io import StoreFileIO
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables import position_deletes
from slotlake.spark.tables.deletion_vectors import vectors
from slotlake.spark.tables.manifests import (
    FORMATS,
    entry_schema,
    manifests_of,
    write_list,
    write_manifest,
)
from slotlake.spark.tables.metadata import MAIN, Metadata
from slotlake.spark.tables.position_deletes import PATH_ID, POSITION_ID
from slotlake.spark.tables.schema import WRITE_PROPERTIES

_IO = StoreFileIO()
_VECTORS, _POSITIONS = FORMATS[1], FORMATS[0]
_NEWER_TYPES = ("timestamp_ns", "timestamptz_ns", "variant", "unknown", "geometry", "geography")
_DEFAULTS = ("initial-default", "write-default")
_OF_ROWS = ("next-row-id", "encryption-keys")
# Files that were rewritten in format 3 have the numbers of their rows in them, whatever the table is later.
_ROW_ID_PROPERTY = "slotlake.next-row-id"
_MANIFEST_FILES_MAX = 10_000
# A file of a manifest, and the spec by which it is partitioned.
_Entry = tuple[int, DataFile]


def with_format(table: Loaded, table_format: int) -> Metadata:
    """A table in another format; files are written, and nothing leads to them yet.

    Raises:
        LakeError: the table has what the format cannot hold, or something is staged or was written by others.
    """
    if table_format == _VECTORS:
        return _raised(table.metadata)
    require_plain(table)
    return _lowered(table)


def _raised(metadata: Metadata) -> Metadata:
    """The table in format 3; numbers that its rows had there once are not given again."""
    numbers = int(metadata.get("properties", {}).get(_ROW_ID_PROPERTY, 0))
    raised = {**metadata, "format-version": _VECTORS, "next-row-id": numbers}
    return catalog_metadata.with_properties(raised, {_ROW_ID_PROPERTY: None})


def require_plain(table: Loaded) -> None:
    """Require that a table has nothing of format 3 that format 2 cannot hold, but for deletion vectors.

    Raises:
        LakeError: a column has, or something is staged, or main is not what a point made.
    """
    metadata = table.metadata
    for schema in metadata["schemas"]:
        for column, what in _newer(schema["fields"]):
            raise LakeError(
                f"format 2 of Iceberg cannot hold {what}",
                where=f"table {table.name}, column {column}",
                way_out="keep format 3 for this table (tables.<name>.format: 3), or drop that column",
            )
    if catalog_metadata.is_staged(metadata):
        raise LakeError(
            "a batch is being applied to the table",
            where=f"table {table.name}",
            way_out="run `slotlake sync`, which publishes the batch, then run the same command again",
        )
    above = itertools.takewhile(
        lambda snapshot: catalog_metadata.LSN not in catalog_metadata.summary(snapshot),
        catalog_metadata.ancestry(metadata),
    )
    foreign = any(catalog_metadata.summary(each).get("operation") != "replace" for each in above)
    if foreign or catalog_metadata.newest_of_a_point(metadata) is None:
        raise LakeError(
            "a table of the lake was written by something else than slotlake",
            where=f"table {table.name}",
            way_out="run `slotlake recover`, then run the same command again",
        )


def _newer(fields: Sequence[Metadata], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Columns with something that only format 3 has, and what that is."""
    for field in fields:
        name, kind = f"{prefix}{field['name']}", field["type"]
        if any(field.get(default) is not None for default in _DEFAULTS):
            yield name, "a column's default value"
        if isinstance(kind, str) and kind.startswith(_NEWER_TYPES):
            yield name, f"the type {kind}"
        elif isinstance(kind, dict):
            yield from _newer(_inner(kind), f"{name}.")


def _inner(kind: Metadata) -> list[Metadata]:
    parts = [{"name": part, "type": kind[part]} for part in ("element", "key", "value") if part in kind]
    return [*kind.get("fields", ()), *parts]


@dataclass(frozen=True)
class _Content:
    """The files of a snapshot: data files by location, position delete files, and Puffin files' vectors."""

    data: Mapping[str, _Entry]
    deletes: Sequence[_Entry]
    vectors: Sequence[DataFile]


def _lowered(table: Loaded) -> Metadata:
    before = table.metadata
    point = catalog_metadata.newest_of_a_point(before) or {}
    position = catalog_metadata.newest_position(before) or 0
    metadata = with_all_in_the_past(before, position)
    metadata = {key: value for key, value in metadata.items() if key not in _OF_ROWS}
    metadata |= {"format-version": _POSITIONS}
    numbers = {_ROW_ID_PROPERTY: str(before["next-row-id"])}
    metadata = catalog_metadata.with_properties(metadata, {**WRITE_PROPERTIES, **numbers})
    now = int(max(time.time() * 1000, before["last-updated-ms"]))
    try:
        snapshot = _written(before, metadata, point, now)
    except LakeError:
        raise
    except OSError as error:
        raise LakeError(
            f"the manifests of a table cannot be written: {error.strerror or error}",
            where=before["location"],
            way_out="free space in the warehouse, let this user write there, then run the same command again",
        ) from error
    number = snapshot["snapshot-id"]
    own_tags = [catalog_tags.tag(at) for at in catalog_tags.tags(metadata)]
    return {
        **metadata,
        "last-sequence-number": snapshot["sequence-number"],
        "current-snapshot-id": number,
        "snapshots": [snapshot],
        "refs": {
            MAIN: {"snapshot-id": number, "type": "branch"},
            **{name: {"snapshot-id": number, "type": "tag"} for name in own_tags},
        },
        "snapshot-log": [{"snapshot-id": number, "timestamp-ms": now}],
        "last-updated-ms": now,
        "statistics": [],
        "partition-statistics": [],
    }


def _written(before: Metadata, metadata: Metadata, point: Metadata, now: int) -> Metadata:
    """The one snapshot of the table in format 2, its manifests written."""
    content = _content(before, catalog_metadata.head(before))
    files = [*content.data.values(), *content.deletes, *_from_vectors(metadata, content)]
    number = point["snapshot-id"]
    snapshot = {
        "snapshot-id": number,
        "sequence-number": before["last-sequence-number"] + 1,
        "timestamp-ms": now,
        "summary": _summary(catalog_metadata.summary(point), [file for _, file in files]),
        "manifest-list": f"{metadata['location']}/metadata/snap-{number}-1-{uuid.uuid4()}.avro",
        "schema-id": (catalog_metadata.head(before) or point).get("schema-id", before["current-schema-id"]),
    }
    manifests = [
        write_manifest(metadata, snapshot, _spec(before, spec), list(some))
        for (spec, _), group in itertools.groupby(sorted(files, key=_kind), key=_kind)
        for some in _chunks([_plain(file) for _, file in group])
    ]
    return write_list(_POSITIONS, snapshot, manifests)


def _kind(entry: _Entry) -> tuple[int, bool]:
    """What the files of one manifest have in common: the spec, and whether they are data."""
    return entry[0], entry[1].content == DataFileContent.DATA


def _chunks(files: list[DataFile]) -> Iterator[list[DataFile]]:
    for start in range(0, len(files), _MANIFEST_FILES_MAX):
        yield files[start : start + _MANIFEST_FILES_MAX]


def _plain(file: DataFile) -> DataFile:
    """A file as a manifest of format 2 has it: the fields that format 3 has more are at the end."""
    values = {field.name: file[i] for i, field in enumerate(DATA_FILE_TYPE[_POSITIONS].fields)}
    return DataFile.from_args(_table_format_version=_POSITIONS, **values)


def _spec(metadata: Metadata, number: int) -> PartitionSpec:
    return PartitionSpec.model_validate(
        next(spec for spec in metadata["partition-specs"] if spec["spec-id"] == number)
    )


def _content(metadata: Metadata, snapshot: Metadata | None) -> _Content:
    entries = [
        (manifest.partition_spec_id, file)
        for manifest in manifests_of(metadata, snapshot)
        for file in _files(metadata, manifest)
    ]
    data = {file.file_path: (spec, file) for spec, file in entries if file.content == DataFileContent.DATA}
    deletes = [entry for entry in entries if entry[1].content != DataFileContent.DATA]
    is_vector = [file.file_format == FileFormat.PUFFIN for _, file in deletes]
    vector_files = [file for (_, file), chosen in zip(deletes, is_vector, strict=True) if chosen]
    replaced = {_referenced(file) for file in vector_files}
    old = [
        entry
        for entry, chosen in zip(deletes, is_vector, strict=True)
        if not chosen and _referenced(entry[1]) not in replaced
    ]
    return _Content(data, old, vector_files)


def _files(metadata: Metadata, manifest: ManifestFile) -> list[DataFile]:
    """The live files of a manifest."""
    schema = Schema.model_validate(
        next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
    )
    spec = _spec(metadata, manifest.partition_spec_id)
    source = _IO.new_input(manifest.manifest_path)
    kinds: dict[int, Any] = {-1: ManifestEntry, 2: DataFile}
    enums: dict[int, Any] = {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent}
    with AvroFile[ManifestEntry](source, entry_schema(_VECTORS, schema, spec), kinds, enums) as entries:
        return [e.data_file for e in entries if e.status != ManifestEntryStatus.DELETED]


def _referenced(file: DataFile) -> str | None:
    """The data file that a delete file belongs to; None if there are several."""
    index = [field.name for field in DATA_FILE_TYPE[_VECTORS].fields].index("referenced_data_file")
    stored: str | None = file[index]
    return stored or position_deletes.data_file_of(file.lower_bounds, file.upper_bounds)


def _from_vectors(metadata: Metadata, content: _Content) -> Iterator[_Entry]:
    """A position delete file, written, for each deletion vector of a data file that is there."""
    by_puffin: dict[str, set[str]] = {}
    for file in content.vectors:
        data_file = _referenced(file)
        if data_file in content.data:
            by_puffin.setdefault(file.file_path, set()).add(str(data_file))
    for puffin, data_files in sorted(by_puffin.items()):
        for data_file, positions in vectors(puffin, data_files).items():
            if not len(positions):
                continue
            spec, deleted_from = content.data[data_file]
            location = f"{metadata['location']}/data/{uuid.uuid4()}-deletes.parquet"
            size = position_deletes.write(location, data_file, positions)
            path, ends = data_file.encode(), [to_bytes(LongType(), int(positions[i])) for i in (0, -1)]
            yield (
                spec,
                DataFile.from_args(
                    _table_format_version=_VECTORS,
                    content=DataFileContent.POSITION_DELETES,
                    file_path=location,
                    file_format=FileFormat.PARQUET,
                    partition=deleted_from.partition,
                    record_count=len(positions),
                    file_size_in_bytes=size,
                    lower_bounds={PATH_ID: path, POSITION_ID: ends[0]},
                    upper_bounds={PATH_ID: path, POSITION_ID: ends[1]},
                ),
            )


def _summary(point: Mapping[str, str], files: Sequence[DataFile]) -> dict[str, str]:
    """What the point's snapshot says, with the totals of what is there now."""
    data = [file for file in files if file.content == DataFileContent.DATA]
    deletes = [file for file in files if file.content != DataFileContent.DATA]
    totals = {
        "total-records": sum(file.record_count for file in data),
        "total-data-files": len(data),
        "total-files-size": sum(file.file_size_in_bytes for file in files),
        "total-delete-files": len(deletes),
        "total-position-deletes": sum(file.record_count for file in deletes),
        "total-equality-deletes": 0,
    }
    own = {key: value for key, value in point.items() if key.startswith("slotlake.")}
    return {"operation": "overwrite", **own, **{key: str(value) for key, value in totals.items()}}
