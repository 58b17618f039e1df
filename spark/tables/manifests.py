"""Manifests and lists of them: read, and written without Spark (Iceberg table spec, "Manifests").

Of format 3, which pyiceberg reads and does not write, or of format 2, which knows no numbers of rows.

Invariant: what is written is seen by nobody before the catalog is given the metadata.
"""

from __future__ import annotations

import json
import secrets
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal

from pyiceberg.avro.file import AvroFile, AvroOutputFile
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
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
from pyiceberg.typedef import StructProtocol

from slotlake.decoder.errors import LakeError
from slotlake.spark import lake_files
from slotlake.spark.storage.base import StoreUnavailableError
from slotlake.spark.storage.file_io import StoreFileIO
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import MAIN, STAGE, Metadata

Format = Literal[2, 3]
FORMATS: Final[tuple[Format, ...]] = (2, 3)
WITH_ROW_IDS: Final = 3
_ROW_ID = [field.field_id for field in MANIFEST_LIST_FILE_SCHEMAS[WITH_ROW_IDS].fields].index(520)
_IO = StoreFileIO()


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


def _current(metadata: Metadata) -> Metadata:
    schema: Metadata = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
    return schema


def write_manifest(
    metadata: Metadata, snapshot: Metadata, spec: PartitionSpec, added: Sequence[DataFile]
) -> ManifestFile:
    """Write a manifest of files that a snapshot adds; all are data files, or none is.

    Args:
        spec: what the files are partitioned by.
        added: at least one.
    """
    entries = [
        ManifestEntry.from_args(
            _table_format_version=format_of(metadata),
            status=ManifestEntryStatus.ADDED,
            snapshot_id=snapshot["snapshot-id"],
            data_file=file,
        )
        for file in added
    ]
    return write_entries(metadata, snapshot, spec, entries)


def write_entries(
    metadata: Metadata, snapshot: Metadata, spec: PartitionSpec, entries: Sequence[ManifestEntry]
) -> ManifestFile:
    """Write a manifest of files that a snapshot adds, has from before, or removes.

    Args:
        spec: what the files are partitioned by.
        entries: at least one; all of data files, or none. Those of before say their sequence numbers.
    """
    version = format_of(metadata)
    path = f"{metadata['location']}/metadata/{uuid.uuid4()}-m0.avro"
    schema = Schema.model_validate(_current(metadata))
    is_data = entries[0].data_file.content == DataFileContent.DATA
    content = ManifestContent.DATA if is_data else ManifestContent.DELETES
    number = snapshot["sequence-number"]
    live = [entry for entry in entries if entry.status != ManifestEntryStatus.DELETED]
    header = {
        "schema": schema.model_dump_json(),
        "partition-spec": json.dumps(json.loads(spec.model_dump_json())["fields"]),
        "partition-spec-id": str(spec.spec_id),
        "content": "data" if content == ManifestContent.DATA else "deletes",
        "format-version": str(version),
    }
    size = _write(path, entry_schema(version, schema, spec), "manifest_entry", header, list(entries))
    counts: dict[str, int] = {}
    for status in ManifestEntryStatus:
        rows = [entry.data_file.record_count for entry in entries if entry.status == status]
        counts |= {f"{status.name.lower()}_{what}": n for what, n in _counted(rows).items()}
    return ManifestFile.from_args(
        _table_format_version=version,
        manifest_path=path,
        manifest_length=size,
        partition_spec_id=spec.spec_id,
        content=content,
        sequence_number=number,
        min_sequence_number=min((e.sequence_number or number for e in live), default=number),
        added_snapshot_id=snapshot["snapshot-id"],
        partitions=construct_partition_summaries(spec, schema, [e.data_file.partition for e in entries]),
        **counts,
    )


def _counted(rows: Sequence[int]) -> dict[str, int]:
    return {"files_count": len(rows), "rows_count": sum(rows)}


def entry_schema(version: Format, schema: Schema, spec: PartitionSpec) -> Schema:
    """The schema of a manifest's entries.

    Args:
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


def first_row_id_of(manifest: ManifestFile) -> int | None:
    """The number of the first row, of all files of a manifest that do not say it; None if it has none."""
    number: int | None = manifest[_ROW_ID]
    return number


def with_own_manifests(metadata: Metadata, snapshot: Metadata, location: str) -> Metadata:
    """A snapshot of a table that lies elsewhere, for a clone at ``location``: its metadata files are copied.

    A DROP of the clone may remove manifests whatever ``gc.enabled`` says (Iceberg's `dropTableData`,
    which Trino calls); so what it shares are data files only, and these `gc.enabled` keeps.

    Args:
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
        snapshot: names the list; in format 3 it says the first new number of a row.
    """
    if version == WITH_ROW_IDS:
        following = first = snapshot["first-row-id"]
        for manifest in manifests:
            if manifest.content == ManifestContent.DATA and manifest[_ROW_ID] is None:
                manifest[_ROW_ID] = following
                following += (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)
        snapshot = {**snapshot, "added-rows": following - first}
    _write_list(version, snapshot, manifests)
    return snapshot


def new_snapshot(metadata: Metadata, branch: str) -> Metadata:
    """A snapshot that follows the head of a branch: all but its summary; its list is not written yet."""
    before, number = catalog_metadata.head(metadata, branch), secrets.randbits(62) + 1
    has_row_ids = format_of(metadata) == WITH_ROW_IDS
    return {
        "snapshot-id": number,
        **({} if before is None else {"parent-snapshot-id": before["snapshot-id"]}),
        "sequence-number": metadata["last-sequence-number"] + 1,
        **({"first-row-id": metadata.get("next-row-id", 0)} if has_row_ids else {}),
        "timestamp-ms": int(max(time.time() * 1000, metadata["last-updated-ms"])),
        "manifest-list": f"{metadata['location']}/metadata/snap-{number}-1-{uuid.uuid4()}.avro",
        "schema-id": metadata["current-schema-id"],
    }


def with_new_snapshot(metadata: Metadata, snapshot: Metadata, branch: str) -> Metadata:
    """The metadata with a snapshot, as `write_list` returns it, as the head of a branch."""
    numbered = {}
    if "first-row-id" in snapshot:
        numbered = {"next-row-id": snapshot["first-row-id"] + snapshot["added-rows"]}
    grown = {
        **metadata,
        "snapshots": [*metadata.get("snapshots", ()), snapshot],
        "last-sequence-number": snapshot["sequence-number"],
        **numbered,
    }
    return catalog_metadata.with_ref(grown, branch, snapshot["snapshot-id"])


def with_snapshot_on_top(
    metadata: Metadata, entries: Mapping[str, str] = MappingProxyType({}), *, come_past_damage: bool = False
) -> Metadata:
    """The metadata with a snapshot on top of main's, with the same files and what a point said of them.

    It has a list of its own, because whoever lets go of a snapshot removes its list.  It takes the place of
    main's in every reference.

    Args:
        entries: of the summary, before those of main's.
        come_past_damage: where main's list is damaged or missing, the snapshot has the same one.

    Raises:
        LakeError: main's list cannot be read, or the new one cannot be written.
    """
    head = catalog_metadata.head(metadata) or {}
    of_main = {
        k: v for k, v in catalog_metadata.summary(head).items() if k.startswith(("total-", "slotlake."))
    }
    on_top = {**new_snapshot(metadata, MAIN), "summary": {**of_main, **entries, "operation": "replace"}}
    try:
        manifests = manifests_of(metadata, head)
    except Exception as error:  # whatever a damaged Avro file makes of its reader
        if not come_past_damage or isinstance(error, StoreUnavailableError):
            raise
        on_top = {**on_top, "manifest-list": head["manifest-list"]}
        if "first-row-id" in on_top:
            on_top["added-rows"] = 0
    else:
        on_top = write_list(format_of(metadata), on_top, manifests)
    grown = with_new_snapshot(metadata, on_top, MAIN)
    refs = {
        name: {**ref, "snapshot-id": on_top["snapshot-id"]}
        if ref["snapshot-id"] == head["snapshot-id"]
        else ref
        for name, ref in grown["refs"].items()
    }
    return {**grown, "refs": refs}


def with_nothing_staged(metadata: Metadata) -> Metadata:
    """Write a snapshot without files; the metadata with it as ``stage``.

    Nothing is read of what the table had: it may be damaged.

    Raises:
        LakeError: the list cannot be written.
    """
    totals = ("records", "files-size", "data-files", "delete-files", "position-deletes", "equality-deletes")
    summary = {"operation": "delete", **{f"total-{each}": "0" for each in totals}}
    # After main: ``stage`` was set to it.
    snapshot = write_list(format_of(metadata), {**new_snapshot(metadata, MAIN), "summary": summary}, [])
    return with_new_snapshot(metadata, snapshot, STAGE)


def _write_list(version: Format, snapshot: Metadata, manifests: list[ManifestFile]) -> None:
    header = {
        "snapshot-id": str(snapshot["snapshot-id"]),
        "parent-snapshot-id": str(snapshot.get("parent-snapshot-id", "null")),
        "sequence-number": str(snapshot["sequence-number"]),
        "format-version": str(version),
    }
    if version == WITH_ROW_IDS:
        header["first-row-id"] = str(snapshot.get("first-row-id", "null"))
    listed = MANIFEST_LIST_FILE_SCHEMAS[version]
    _write(snapshot["manifest-list"], listed, "manifest_file", header, manifests)


def _write(location: str, schema: Schema, name: str, header: Mapping[str, str], records: list[Any]) -> int:
    """Write an Avro file; its size, when it is on disk."""
    output = StoreFileIO().new_output(location)  # with what is written at the same time, if anything is
    with AvroOutputFile[Any](output, schema, name, record_schema=schema, metadata=dict(header)) as file:
        if records:
            file.write_block(records)
    return len(output)
