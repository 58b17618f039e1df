"""Files that lie in a table's directory become its content: a snapshot that adds them, made without Spark.

Spark's `add_files` does the same, at half a second of a JVM's CPU for each table.  Written here are a
manifest, the list of manifests, and metadata that knows the snapshot (Iceberg table spec, "Manifests",
"Manifest Lists", "Snapshots", "Row Lineage"), of format 3, which pyiceberg reads and does not write, or of
format 2, which knows no numbers of rows.  What is told of each column comes from the files' footers, by
pyiceberg's rules.

Invariant: what is written is seen by nobody before the catalog is given the metadata, and is on disk then.
"""

from __future__ import annotations

import json
import os
import secrets
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroFile, AvroOutputFile
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
    construct_partition_summaries,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record, StructProtocol

from slotlake.decoder.errors import LakeError
from slotlake.spark import lake_files
from slotlake.spark.storage.file_io import StoreFileIO
from slotlake.spark.storage.location import Location
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.layout import default_spec, sort_order_id
from slotlake.spark.tables.metadata import MAIN, Metadata
from slotlake.spark.tables.schema import COLUMNS_COUNTED

Format = Literal[2, 3]
FORMATS: Final[tuple[Format, ...]] = (2, 3)
_WITH_ROW_IDS: Final = 3
_ROW_ID = [field.field_id for field in MANIFEST_LIST_FILE_SCHEMAS[_WITH_ROW_IDS].fields].index(520)
_CHOSEN = "write.metadata.metrics.column."
_NOTHING: Mapping[str, str] = {}
_NO_PARTITIONS: Mapping[Location, tuple[Any, ...]] = {}
_MANIFEST_FILES_MAX = 10_000
_IO = StoreFileIO()


def with_files(
    metadata: Metadata,
    files: Sequence[Location],
    unused: Collection[str] = (),
    *,
    branch: str = MAIN,
    entries: Mapping[str, str] = _NOTHING,
    partitions: Mapping[Location, tuple[Any, ...]] = _NO_PARTITIONS,
) -> Metadata:
    """The table with these files added to what a branch has, as a snapshot that is the branch's.

    Args:
        files: Parquet with the table's field ids; with none the snapshot is made all the same.
        unused: columns that leave the table; no file has them.
        entries: what else the snapshot's summary says.
        partitions: of files of a table that is partitioned, as a manifest has them (`spark.copy.spread`);
            such files are sorted as the table is.

    Raises:
        LakeError: a file cannot be read, or nothing can be written.
    """
    with_schema = _without(metadata, unused)
    before, number = catalog_metadata.head(metadata, branch), secrets.randbits(62) + 1
    try:
        added = _data_files(with_schema, files, partitions)
        snapshot = _snapshot(with_schema, before, number, added)
        snapshot["summary"].update(entries)
        new = _manifests(with_schema, snapshot, added) if added else []
        snapshot = write_list(format_of(metadata), snapshot, [*new, *manifests_of(metadata, before)])
    except LakeError:
        raise
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
    }
    if "first-row-id" in snapshot:
        grown["next-row-id"] = snapshot["first-row-id"] + snapshot["added-rows"]
    return catalog_metadata.with_ref(grown, branch, number)


def format_of(metadata: Metadata) -> Format:
    """The format of a table.

    Raises:
        LakeError: it is of one that slotlake does not write.
    """
    for each in FORMATS:
        if metadata["format-version"] == each:
            return each
    raise LakeError(
        f"a table has Iceberg's format {metadata['format-version']}, and slotlake writes 2 and 3",
        where=metadata["location"],
        way_out="make the table again, with lake.format 2 or 3",
    )


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


def _manifests(metadata: Metadata, snapshot: Metadata, added: list[DataFile]) -> list[ManifestFile]:
    """Manifests of the new files, by the spec that the table has now."""
    spec = PartitionSpec.model_validate(default_spec(metadata))
    if spec.fields:
        added = sorted(added, key=lambda file: repr(file.partition))
    starts = range(0, len(added), _MANIFEST_FILES_MAX)
    return [write_manifest(metadata, snapshot, spec, added[i : i + _MANIFEST_FILES_MAX]) for i in starts]


def _data_files(
    metadata: Metadata, files: Sequence[Location], partitions: Mapping[Location, tuple[Any, ...]]
) -> list[DataFile]:
    schema = Schema.model_validate(_current(metadata))
    plan = _statistics_plan(schema, metadata.get("properties", {}))
    columns = parquet_path_to_id_mapping(schema)
    data_files = []
    for location in files:
        with lake_files.open_to_read(location) as file:
            footer, size = pq.read_metadata(file), file.seek(0, os.SEEK_END)
        statistics = data_file_statistics_from_parquet_metadata(footer, plan, columns)
        data_files.append(
            DataFile.from_args(
                _table_format_version=format_of(metadata),
                content=DataFileContent.DATA,
                file_path=str(location),
                file_format=FileFormat.PARQUET,
                partition=Record(*partitions.get(location, ())),
                sort_order_id=sort_order_id(metadata) if location in partitions else None,
                file_size_in_bytes=size,
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
    numbered = {"first-row-id": metadata.get("next-row-id", 0)}
    return {
        "snapshot-id": number,
        **({} if before is None else {"parent-snapshot-id": before["snapshot-id"]}),
        "sequence-number": metadata["last-sequence-number"] + 1,
        "timestamp-ms": now,
        "summary": _summary(catalog_metadata.summary(before), added),
        "manifest-list": f"{metadata['location']}/metadata/snap-{number}-1-{uuid.uuid4()}.avro",
        "schema-id": metadata["current-schema-id"],
        **(numbered if format_of(metadata) == _WITH_ROW_IDS else {}),
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


def write_manifest(
    metadata: Metadata, snapshot: Metadata, spec: PartitionSpec, added: Sequence[DataFile]
) -> ManifestFile:
    """Write a manifest of files that a snapshot adds; all are data files, or none is.

    Args:
        spec: what the files are partitioned by.
        added: at least one.
    """
    version = format_of(metadata)
    path = f"{metadata['location']}/metadata/{uuid.uuid4()}-m0.avro"
    schema = Schema.model_validate(_current(metadata))
    content = ManifestContent.DATA if added[0].content == DataFileContent.DATA else ManifestContent.DELETES
    entries = [
        ManifestEntry.from_args(
            _table_format_version=version,
            status=ManifestEntryStatus.ADDED,
            snapshot_id=snapshot["snapshot-id"],
            data_file=file,
        )
        for file in added
    ]
    header = {
        "schema": schema.model_dump_json(),
        "partition-spec": json.dumps(json.loads(spec.model_dump_json())["fields"]),
        "partition-spec-id": str(spec.spec_id),
        "content": "data" if content == ManifestContent.DATA else "deletes",
        "format-version": str(version),
    }
    size = _write(path, entry_schema(version, schema, spec), "manifest_entry", header, entries)
    counts = {f"{kind}_{what}_count": 0 for kind in ("existing", "deleted") for what in ("files", "rows")}
    return ManifestFile.from_args(
        _table_format_version=version,
        manifest_path=path,
        manifest_length=size,
        partition_spec_id=spec.spec_id,
        content=content,
        sequence_number=snapshot["sequence-number"],
        min_sequence_number=snapshot["sequence-number"],
        added_snapshot_id=snapshot["snapshot-id"],
        added_files_count=len(added),
        added_rows_count=sum(file.record_count for file in added),
        partitions=construct_partition_summaries(spec, schema, [file.partition for file in added]),
        **counts,
    )


def entry_schema(version: Format, schema: Schema, spec: PartitionSpec) -> Schema:
    """The schema of a manifest's entries.

    Args:
        schema: the table's.
        spec: what the manifest's files are partitioned by.
    """
    data_file = data_file_with_partition(spec.partition_type(schema), version)
    return manifest_entry_schema_with_data_file(version, data_file)


def manifests_of(metadata: Metadata, snapshot: Metadata | None) -> list[ManifestFile]:
    """Those that a snapshot has, with all that the table's format says of them."""
    if snapshot is None:
        return []
    source = _IO.new_input(snapshot["manifest-list"])
    kinds: dict[int, Callable[..., StructProtocol]] = {-1: ManifestFile, 508: PartitionFieldSummary}
    listed = MANIFEST_LIST_FILE_SCHEMAS[format_of(metadata)]
    with AvroFile[ManifestFile](source, listed, kinds, {517: ManifestContent}) as manifests:
        return list(manifests)


def with_own_manifests(metadata: Metadata, snapshot: Metadata, location: str) -> Metadata:
    """A snapshot of a table that lies elsewhere, for a clone at ``location``: its metadata files are copied.

    A DROP of the clone may remove manifests whatever ``gc.enabled`` says (Iceberg's `dropTableData`,
    which Trino calls); so what it shares are data files only, and these `gc.enabled` keeps.

    Args:
        metadata: of the table that has the snapshot.
        snapshot: as that table has it.
        location: the clone's directory, as a URI.

    Raises:
        LakeError: a file cannot be read, or nothing can be written.
    """
    listed = f"{location}/metadata/snap-{snapshot['snapshot-id']}-1-{uuid.uuid4()}.avro"
    own = {**snapshot, "manifest-list": listed}
    try:
        copies = [_copy_manifest(manifest, location) for manifest in manifests_of(metadata, snapshot)]
        _write_list(format_of(metadata), own, copies)
    except LakeError:
        raise
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


def write_list(version: Format, snapshot: Metadata, manifests: list[ManifestFile]) -> Metadata:
    """Write a new snapshot's list of manifests; return the snapshot, with the count of rows numbered in it.

    As Iceberg's own writer: numbers go to the manifests that have none yet.  Those are the new one, and after
    a table came from format 2, those of before.

    Args:
        version: the table's format.
        snapshot: names the list; in format 3 it says the first new number of a row.
        manifests: the new one, then those of before.
    """
    if version == _WITH_ROW_IDS:
        following = first = snapshot["first-row-id"]
        for manifest in manifests:
            if manifest.content == ManifestContent.DATA and manifest[_ROW_ID] is None:
                manifest[_ROW_ID] = following
                following += (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)
        snapshot = {**snapshot, "added-rows": following - first}
    _write_list(version, snapshot, manifests)
    return snapshot


def _write_list(version: Format, snapshot: Metadata, manifests: list[ManifestFile]) -> None:
    header = {
        "snapshot-id": str(snapshot["snapshot-id"]),
        "parent-snapshot-id": str(snapshot.get("parent-snapshot-id", "null")),
        "sequence-number": str(snapshot["sequence-number"]),
        "format-version": str(version),
    }
    if version == _WITH_ROW_IDS:
        header["first-row-id"] = str(snapshot.get("first-row-id", "null"))
    listed = MANIFEST_LIST_FILE_SCHEMAS[version]
    _write(snapshot["manifest-list"], listed, "manifest_file", header, manifests)


def _write(location: str, schema: Schema, name: str, header: Mapping[str, str], records: list[Any]) -> int:
    """Write an Avro file; its size, when it is on disk."""
    output = _IO.new_output(location)
    with AvroOutputFile[Any](output, schema, name, record_schema=schema, metadata=dict(header)) as file:
        if records:
            file.write_block(records)
    return len(output)
