"""Files that lie in a table's directory become its content: a snapshot that adds them, made without Spark.

Spark's `add_files` does the same, at half a second of a JVM's CPU for each table.  Written here are a
manifest, the list of manifests, and metadata that knows the snapshot (Iceberg table spec, "Manifests",
"Manifest Lists", "Snapshots", "Row Lineage"), of format 3, which pyiceberg reads and does not write.  What
is told of each column comes from the files' footers, by pyiceberg's rules.

Invariant: what is written is seen by nobody before the catalog is given the metadata, and is on disk then.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroFile, AvroOutputFile
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    StatisticsCollector,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record, StructProtocol
from pyiceberg.types import StructType

from slotlake.decoder.changelog.writer import sync_path
from slotlake.decoder.errors import LakeError
from slotlake.spark import lake_files
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import MAIN, Metadata
from slotlake.spark.tables.schema import COLUMNS_COUNTED

_FORMAT: Final = 3
_ENTRY = manifest_entry_schema_with_data_file(_FORMAT, data_file_with_partition(StructType(), _FORMAT))
_LIST = MANIFEST_LIST_FILE_SCHEMAS[_FORMAT]
_UNPARTITIONED = 0
_CHOSEN = "write.metadata.metrics.column."
_NOTHING: Mapping[str, str] = {}
_IO = load_file_io({}, "file:///")


def with_files(
    metadata: Metadata,
    files: Sequence[Path],
    unused: Collection[str] = (),
    *,
    branch: str = MAIN,
    entries: Mapping[str, str] = _NOTHING,
) -> Metadata:
    """The table with these files added to what a branch has, as a snapshot that is the branch's.

    Args:
        files: Parquet with the table's field ids; with none the snapshot is made all the same.
        unused: columns that leave the table; no file has them.
        entries: what else the snapshot's summary says.

    Raises:
        LakeError: a file cannot be read, or nothing can be written.
    """
    with_schema = _without(metadata, unused)
    before, number = catalog_metadata.head(metadata, branch), secrets.randbits(62) + 1
    try:
        added = _data_files(with_schema, files)
        snapshot = _snapshot(with_schema, before, number, added)
        snapshot["summary"].update(entries)
        _write_list(snapshot, [*_manifest(with_schema, snapshot, added), *_manifests(before)])
    except OSError as error:
        raise LakeError(
            f"the copied files cannot be added to the table: {error.strerror or error}",
            where=metadata["location"],
            way_out="free space in the warehouse, let this user write there, then run the same command again",
        ) from error
    grown = {
        **with_schema,
        "snapshots": [*metadata.get("snapshots", ()), snapshot],
        "last-sequence-number": snapshot["sequence-number"],
        "next-row-id": snapshot["first-row-id"] + snapshot["added-rows"],
    }
    return catalog_metadata.with_ref(grown, branch, number)


def _without(metadata: Metadata, unused: Collection[str]) -> Metadata:
    if not unused:
        return metadata
    current = _current(metadata)
    number = 1 + max(schema["schema-id"] for schema in metadata["schemas"])
    fields = [field for field in current["fields"] if field["name"] not in unused]
    schema = {**current, "schema-id": number, "fields": fields}
    return {**metadata, "schemas": [*metadata["schemas"], schema], "current-schema-id": number}


def _current(metadata: Metadata) -> Metadata:
    schema: Metadata = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
    return schema


def _data_files(metadata: Metadata, files: Sequence[Path]) -> list[DataFile]:
    schema = Schema.model_validate(_current(metadata))
    plan = _statistics_plan(schema, metadata.get("properties", {}))
    columns = parquet_path_to_id_mapping(schema)
    data_files = []
    for path in files:
        statistics = data_file_statistics_from_parquet_metadata(pq.read_metadata(path), plan, columns)
        data_files.append(
            DataFile.from_args(
                _table_format_version=_FORMAT,
                content=DataFileContent.DATA,
                file_path=f"file://{path}",
                file_format=FileFormat.PARQUET,
                partition=Record(),
                file_size_in_bytes=path.stat().st_size,
                **statistics.to_serialized_dict(),
            )
        )
    return data_files


def _statistics_plan(schema: Schema, properties: dict[str, str]) -> dict[int, StatisticsCollector]:
    """What is told of each column: of a wide table's, as Iceberg does, the first ones' and the chosen."""
    plan = compute_statistics_plan(schema, properties)
    for number, collector in list(plan.items())[COLUMNS_COUNTED:]:
        if f"{_CHOSEN}{collector.column_name}" not in properties:
            plan[number] = replace(collector, mode=MetricsMode(MetricModeTypes.NONE))
    return plan


def _snapshot(metadata: Metadata, before: Metadata | None, number: int, added: list[DataFile]) -> Metadata:
    now = int(max(time.time() * 1000, metadata["last-updated-ms"]))
    return {
        "snapshot-id": number,
        **({} if before is None else {"parent-snapshot-id": before["snapshot-id"]}),
        "sequence-number": metadata["last-sequence-number"] + 1,
        "timestamp-ms": now,
        "summary": _summary(catalog_metadata.summary(before), added),
        "manifest-list": f"{metadata['location']}/metadata/snap-{number}-1-{uuid.uuid4()}.avro",
        "schema-id": metadata["current-schema-id"],
        "first-row-id": metadata.get("next-row-id", 0),
        "added-rows": sum(file.record_count for file in added),
    }


def _summary(before: Mapping[str, str], added: list[DataFile]) -> dict[str, str]:
    counts = {
        "data-files": len(added),
        "records": sum(file.record_count for file in added),
        "files-size": sum(file.file_size_in_bytes for file in added),
    }
    entries = {f"added-{name}": str(count) for name, count in counts.items() if count}
    for name in (*counts, "delete-files", "position-deletes", "equality-deletes"):
        entries[f"total-{name}"] = str(int(before.get(f"total-{name}", 0)) + counts.get(name, 0))
    return {"operation": "append", **entries}


def _manifest(metadata: Metadata, snapshot: Metadata, added: list[DataFile]) -> list[ManifestFile]:
    """The manifest of what is added, written; none if there is nothing."""
    if not added:
        return []
    path = f"{metadata['location']}/metadata/{uuid.uuid4()}-m0.avro"
    entries = [
        ManifestEntry.from_args(
            _table_format_version=_FORMAT,
            status=ManifestEntryStatus.ADDED,
            snapshot_id=snapshot["snapshot-id"],
            data_file=file,
        )
        for file in added
    ]
    header = {
        "schema": Schema.model_validate(_current(metadata)).model_dump_json(),
        "partition-spec": "[]",
        "partition-spec-id": str(_UNPARTITIONED),
        "content": "data",
    }
    size = _write(path, _ENTRY, "manifest_entry", header, entries)
    counts = {f"{kind}_{what}_count": 0 for kind in ("existing", "deleted") for what in ("files", "rows")}
    manifest = ManifestFile.from_args(
        _table_format_version=_FORMAT,
        manifest_path=path,
        manifest_length=size,
        partition_spec_id=_UNPARTITIONED,
        content=ManifestContent.DATA,
        sequence_number=snapshot["sequence-number"],
        min_sequence_number=snapshot["sequence-number"],
        added_snapshot_id=snapshot["snapshot-id"],
        added_files_count=len(added),
        added_rows_count=snapshot["added-rows"],
        partitions=[],
        first_row_id=snapshot["first-row-id"],
        **counts,
    )
    return [manifest]


def _manifests(before: Metadata | None) -> list[ManifestFile]:
    """Those that a snapshot has, with all that format 3 says of them."""
    if before is None:
        return []
    source = _IO.new_input(str(lake_files.local_path(before["manifest-list"])))
    kinds: dict[int, Callable[..., StructProtocol]] = {-1: ManifestFile, 508: PartitionFieldSummary}
    with AvroFile[ManifestFile](source, _LIST, kinds, {517: ManifestContent}) as manifests:
        return list(manifests)


def with_own_manifests(snapshot: Metadata, location: str) -> Metadata:
    """A snapshot of a table that lies elsewhere, for a clone at ``location``: its metadata files are copied.

    A DROP of the clone may remove manifests whatever ``gc.enabled`` says (Iceberg's `dropTableData`,
    which Trino calls); so what it shares are data files only, and these `gc.enabled` keeps.

    Raises:
        LakeError: a file cannot be read, or nothing can be written.
    """
    listed = f"{location}/metadata/snap-{snapshot['snapshot-id']}-1-{uuid.uuid4()}.avro"
    own = {**snapshot, "manifest-list": listed}
    try:
        _write_list(own, [_copy_manifest(manifest, location) for manifest in _manifests(snapshot)])
    except OSError as error:
        raise LakeError(
            f"a table's manifests cannot be copied: {error.strerror or error}",
            where=location,
            way_out="free space in the warehouse, let this user write there, then run the same command again",
        ) from error
    return own


def _copy_manifest(manifest: ManifestFile, location: str) -> ManifestFile:
    """The same manifest in another place; ``[0]`` is its path (field 500, the first)."""
    path = f"{location}/metadata/{uuid.uuid4()}-m0.avro"
    lake_files.write_new(path, lake_files.read(manifest.manifest_path))
    manifest[0] = path
    return manifest


def _write_list(snapshot: Metadata, manifests: list[ManifestFile]) -> None:
    header = {
        "snapshot-id": str(snapshot["snapshot-id"]),
        "parent-snapshot-id": str(snapshot.get("parent-snapshot-id", "null")),
        "sequence-number": str(snapshot["sequence-number"]),
        "first-row-id": str(snapshot.get("first-row-id", "null")),
    }
    _write(snapshot["manifest-list"], _LIST, "manifest_file", header, manifests)


def _write(location: str, schema: Schema, name: str, header: Mapping[str, str], records: list[Any]) -> int:
    """Write an Avro file; its size, when it is on disk."""
    path = lake_files.local_path(location)
    avro_header = {**header, "format-version": str(_FORMAT)}
    output = _IO.new_output(str(path))
    with AvroOutputFile[Any](output, schema, name, record_schema=schema, metadata=avro_header) as file:
        if records:
            file.write_block(records)
    sync_path(path)
    return path.stat().st_size
