"""Files that lie in a table's directory become its content: a snapshot that adds them, made without Spark.

Spark's `add_files` does the same, at half a second of a JVM's CPU for each table.  Written here are a
manifest, the list of manifests, and metadata that knows the snapshot (Iceberg table spec, "Manifests",
"Manifest Lists", "Snapshots", "Row Lineage"), of format 3, which pyiceberg reads and does not write, or of
format 2, which knows no numbers of rows.  What is told of each column comes from the files' footers, by
pyiceberg's rules.

Invariant: what is written is seen by nobody before the catalog is given the metadata, and is on disk then.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    StatisticsCollector,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, FloatType, LongType, NestedField

from slotlake.decoder.errors import LakeError
from slotlake.spark import lake_files
from slotlake.spark.storage.location import Location
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.layout import default_spec, sort_order_id
from slotlake.spark.tables.manifests import (
    format_of,
    manifests_of,
    new_snapshot,
    with_new_snapshot,
    write_list,
    write_manifest,
)
from slotlake.spark.tables.metadata import MAIN, Metadata
from slotlake.spark.tables.schema import COLUMNS_COUNTED, METRICS

# Reserved fields (Iceberg table spec, "Row Lineage"): a row's number, and the number of its last change.
ROW_NUMBERS: Final = (
    NestedField(2147483540, "_row_id", LongType(), required=False),
    NestedField(2147483539, "_last_updated_sequence_number", LongType(), required=False),
)
_MANIFEST_FILES_MAX = 10_000
_SURROGATES: Final = 0xD800
_AFTER_SURROGATES: Final = 0xE000


def with_files(
    metadata: Metadata,
    files: Sequence[Location],
    unused: Collection[str] = (),
    *,
    branch: str = MAIN,
    entries: Mapping[str, str] = MappingProxyType({}),
    partitions: Mapping[Location, tuple[Any, ...]] = MappingProxyType({}),
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
    before = catalog_metadata.head(metadata, branch)
    try:
        added = _data_files(with_schema, files, partitions)
        snapshot = new_snapshot(with_schema, branch)
        snapshot["summary"] = {**_summary(catalog_metadata.summary(before), added), **entries}
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
    return with_new_snapshot(with_schema, snapshot, branch)


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
    data_files = []
    describe = description_of_files(metadata)
    for location in files:
        with lake_files.open_to_read(location) as file:
            footer, size = pq.read_metadata(file), file.seek(0, os.SEEK_END)
        data_files.append(describe(location, footer, size, partitions.get(location)))
    return data_files


Describe = Callable[[Location, pq.FileMetaData, int, "tuple[Any, ...] | None"], DataFile]


def description_of_files(metadata: Metadata) -> Describe:
    """Return what makes a manifest's description of a file: of its location, footer, size and partition.

    A file that has a partition, also an empty one, is sorted as the table is.
    """
    schema = Schema.model_validate(_current(metadata))
    # Numbers of rows may stand in a file, and are no column of the table.
    whole = Schema(*schema.fields, *ROW_NUMBERS)
    plan = _statistics_plan(whole, metadata.get("properties", {}))
    columns, own = parquet_path_to_id_mapping(whole), {field.field_id for field in ROW_NUMBERS}

    def describe(
        location: Location, footer: pq.FileMetaData, size: int, partition: tuple[Any, ...] | None
    ) -> DataFile:
        gathered = data_file_statistics_from_parquet_metadata(footer, plan, columns)
        for number in _without_ends(footer, columns):
            gathered.column_aggregates.pop(number, None)
        for ends in gathered.column_aggregates.values():
            if isinstance(ends.current_max, str) and ends.trunc_length is not None:
                ends.current_max = text_above(ends.current_max, ends.trunc_length)
        statistics = gathered.to_serialized_dict()
        for of_columns in statistics.values():
            if isinstance(of_columns, dict):
                for number in own:
                    of_columns.pop(number, None)
        return DataFile.from_args(
            _table_format_version=format_of(metadata),
            content=DataFileContent.DATA,
            file_path=str(location),
            file_format=FileFormat.PARQUET,
            partition=Record(*(partition or ())),
            sort_order_id=None if partition is None else sort_order_id(metadata),
            file_size_in_bytes=size,
            **statistics,
        )

    return describe


def _without_ends(footer: pq.FileMetaData, columns: Mapping[str, int]) -> set[int]:
    """Columns of which some row group says nothing of its values' ends, though it has values.

    Parquet's writer leaves out ends of more than 4,096 bytes, and those of NaN.  pyiceberg takes the ends of
    the other row groups for those of the file.
    """
    if footer.num_row_groups == 1:
        return set()
    groups = map(footer.row_group, range(footer.num_row_groups))
    chunks = (group.column(i) for group in groups for i in range(footer.num_columns))
    return {columns[chunk.path_in_schema] for chunk in chunks if not _has_ends(chunk)}


def _has_ends(chunk: pq.ColumnChunkMetaData) -> bool:
    statistics = chunk.statistics
    if statistics is None:
        return False
    return bool(statistics.has_min_max or statistics.null_count == chunk.num_values)


def text_above(text: str, length: int) -> str | None:
    """Return a text of so many characters at most that no text with the same beginning comes after.

    As Iceberg's (`UnicodeUtil.truncateStringMax`): the last character that has a next one becomes that one.
    UTF-8 has none from U+D800 to U+DFFF, nor beyond U+10FFFF.  None if there is no such text.

    Args:
        text: the largest of some texts, in the order of their UTF-8.
        length: at least 1.
    """
    if len(text) <= length:
        return text
    for end in range(length, 0, -1):
        following = ord(text[end - 1]) + 1
        following = _AFTER_SURROGATES if following == _SURROGATES else following
        if following <= sys.maxunicode:
            return text[: end - 1] + chr(following)
    return None


def _statistics_plan(schema: Schema, properties: dict[str, str]) -> dict[int, StatisticsCollector]:
    """What is told of each column: of a wide table's, as Iceberg does, the first ones' and the chosen.

    Nothing is told of a float (docs/adr/0092).
    """
    plan = compute_statistics_plan(schema, properties)
    for place, (number, collector) in enumerate(plan.items()):
        is_counted = place < COLUMNS_COUNTED or f"{METRICS}{collector.column_name}" in properties
        if not is_counted or isinstance(schema.find_type(number), FloatType | DoubleType):
            plan[number] = replace(collector, mode=MetricsMode(MetricModeTypes.NONE))
    return plan


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
