"""Iceberg's rules for a table's metadata: what it says must be true of the files, for every row.

Source: the Iceberg table spec, "Sequence Numbers", "Manifests", "Snapshots", "Column Metrics" (bounds), "Row
Lineage", "Delete Formats"; the Puffin spec for deletion vectors.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from tests.roads.floats import bounded_floats
from tests.roads.lake_files import (
    ADDED,
    DATA,
    DELETED,
    EXISTING,
    LAST_UPDATED,
    ROW_ID,
    Entry,
    Json,
    LakeFiles,
    Snapshot,
    as_map,
    field_id,
    schema_of,
    snapshots_in_use,
)

_NUMBERS: Final = {"int": "<i", "long": "<q", "float": "<f", "double": "<d", "date": "<i"}
_TIMES: Final = ("timestamp", "timestamptz", "time")


def faults(files: LakeFiles, metadata: Json) -> list[str]:
    """Return what is wrong with a table's metadata and the files it leads to; empty if nothing is.

    Args:
        files: of its lake.
        metadata: its newest metadata.
    """
    found = list(_of_metadata(metadata))
    for json in snapshots_in_use(metadata):
        snapshot = files.snapshot(metadata, json)
        name = f"snapshot {json['snapshot-id']} ({json.get('summary', {}).get('operation')})"
        for rule in (_numbers, _counts, _summary, _lists_what_lives, _deletes, _lineage):
            found += [f"{name}: {each}" for each in rule(files, metadata, snapshot)]
        for entry in snapshot.data.values():
            wrong = [*_data_file(files, metadata, entry), *bounded_floats(files, metadata, entry)]
            found += [f"{name}: {each} of {entry.path[-40:]}" for each in wrong]
    return list(dict.fromkeys(found))


def _of_metadata(metadata: Json) -> Iterator[str]:
    yield from _references(metadata)
    yield from _schemas(metadata)
    if not any(s["spec-id"] == metadata["default-spec-id"] for s in metadata["partition-specs"]):
        yield "the default partition spec is not there"
    log = [entry["timestamp-ms"] for entry in metadata.get("snapshot-log", ())]
    if log != sorted(log):
        yield "the snapshot log is not in the order of time"


def _references(metadata: Json) -> Iterator[str]:
    snapshots = {s["snapshot-id"]: s for s in metadata.get("snapshots", ())}
    for name, ref in metadata.get("refs", {}).items():
        if ref["snapshot-id"] not in snapshots:
            yield f"the reference {name} names a snapshot that is not there"
    main = metadata.get("refs", {}).get("main", {}).get("snapshot-id")
    if main is not None and metadata.get("current-snapshot-id") != main:
        yield "the current snapshot is not that of main"
    for snapshot in snapshots.values():
        if snapshot["sequence-number"] > metadata["last-sequence-number"]:
            yield "a snapshot has a greater sequence number than the last"
        parent = snapshots.get(snapshot.get("parent-snapshot-id"))
        if parent is not None and parent["sequence-number"] >= snapshot["sequence-number"]:
            yield "a snapshot's sequence number is not greater than its parent's"


def _schemas(metadata: Json) -> Iterator[str]:
    numbers = {schema["schema-id"] for schema in metadata["schemas"]}
    if not numbers.issuperset(snapshot.get("schema-id") for snapshot in metadata.get("snapshots", ())):
        yield "a snapshot does not name a schema that is there"
    for schema in metadata["schemas"]:
        ids = [f["id"] for f in schema["fields"]]
        names = [f["name"] for f in schema["fields"]]
        if len(set(ids)) < len(ids) or len(set(names)) < len(names):
            yield f"schema {schema['schema-id']} has a field twice"
        if max(ids, default=0) > metadata["last-column-id"]:
            yield "a field has a greater id than the last"


def _numbers(_: LakeFiles, metadata: Json, snapshot: Snapshot) -> Iterator[str]:
    """Sequence numbers."""
    own = snapshot.json["sequence-number"]
    for manifest in snapshot.manifests:
        if manifest["sequence_number"] > own:
            yield "a manifest has a greater sequence number than its snapshot"
        mine = [e for e in snapshot.entries if e.manifest is manifest]
        live = [e.sequence_number for e in mine if e.status != DELETED]
        if live and manifest["min_sequence_number"] > min(live):
            yield "a manifest's smallest sequence number is greater than that of a file"
    for entry in snapshot.entries:
        if entry.status == ADDED and entry.file_sequence_number != entry.manifest["sequence_number"]:
            yield "an added file has another file sequence number than its manifest"
        if entry.sequence_number > entry.file_sequence_number:
            yield "a file's data is newer than the file"
        if entry.status == ADDED and entry.snapshot_id != entry.manifest["added_snapshot_id"]:
            yield "an added file has another snapshot than its manifest"


def _counts(_: LakeFiles, metadata: Json, snapshot: Snapshot) -> Iterator[str]:
    """Counts of files and rows, and the bounds of partitions, in the list of manifests."""
    for manifest in snapshot.manifests:
        mine = [e for e in snapshot.entries if e.manifest is manifest]
        for status, word in ((ADDED, "added"), (EXISTING, "existing"), (DELETED, "deleted")):
            some = [e for e in mine if e.status == status]
            told = (manifest[f"{word}_files_count"], manifest[f"{word}_rows_count"])
            truth = (len(some), sum(e.rows for e in some))
            if told != truth:
                yield f"of {word} files and rows a manifest has {truth}, and says {told}"
        if any((e.file["content"] == DATA) != (manifest["content"] == 0) for e in mine):
            yield "a manifest of data files has delete files, or the other way round"
        yield from _partition_bounds(metadata, manifest, mine)


def _partition_bounds(metadata: Json, manifest: Json, entries: Sequence[Entry]) -> Iterator[str]:
    fields = _spec(metadata, manifest["partition_spec_id"])["fields"]
    bounds = manifest.get("partitions") or []
    if len(bounds) != len(fields):
        if fields:
            yield "a manifest says nothing of its partitions"
        return
    for number, (of_spec, bound) in enumerate(zip(fields, bounds, strict=True)):
        values = [list(e.file["partition"].values())[number] for e in entries]
        if None in values and not bound["contains_null"]:
            yield f"a manifest says that no partition of {of_spec['name']} is NULL"
        kind = _result_type(metadata, of_spec)
        for value in values:
            if value is None:
                continue
            own = comparable(_as_number(value), kind)
            if not _within(own, kind, bound["lower_bound"], bound["upper_bound"]):
                yield f"a partition of {of_spec['name']} lies outside its manifest's bounds"


def _summary(_: LakeFiles, metadata: Json, snapshot: Snapshot) -> Iterator[str]:
    summary = snapshot.json.get("summary", {})
    number = snapshot.json["snapshot-id"]
    added = [e for e in snapshot.entries if e.status == ADDED and e.snapshot_id == number]
    gone = [e for e in snapshot.entries if e.status == DELETED and e.snapshot_id == number]
    deletes = [e for e in added if e.file["content"] != DATA]
    truth = {
        "total-data-files": len(snapshot.data),
        "total-records": sum(e.rows for e in snapshot.data.values()),
        "total-delete-files": len(snapshot.deletes),
        "total-position-deletes": sum(e.rows for e in snapshot.deletes),
        "total-equality-deletes": 0,
        "total-files-size": sum(_size(e) for e in [*snapshot.data.values(), *snapshot.deletes]),
        "added-data-files": sum(e.file["content"] == DATA for e in added),
        "added-records": sum(e.rows for e in added if e.file["content"] == DATA),
        "added-delete-files": len(deletes),
        "added-position-deletes": sum(e.rows for e in deletes),
        "deleted-data-files": sum(e.file["content"] == DATA for e in gone),
        "deleted-records": sum(e.rows for e in gone if e.file["content"] == DATA),
        "removed-delete-files": sum(e.file["content"] != DATA for e in gone),
        "removed-position-deletes": sum(e.rows for e in gone if e.file["content"] != DATA),
    }
    for name, value in truth.items():
        told = summary.get(name)
        if (
            told is None
            and name.startswith("total")
            and "parent-snapshot-id" not in snapshot.json
            and not value
        ):
            continue
        if int(told or 0) != value and not (told is None and name.startswith("total")):
            yield f"the summary's {name} is {told}, and {value} is true"


def _size(entry: Entry) -> int:
    """Of a vector its own bytes: the file that it is in has others too."""
    size = entry.file.get("content_size_in_bytes")
    return int(entry.file["file_size_in_bytes"] if size is None else size)


def _lists_what_lives(files: LakeFiles, metadata: Json, snapshot: Snapshot) -> Iterator[str]:
    listed = Counter(e.path for e in snapshot.entries if e.status != DELETED and e.file["content"] == DATA)
    yield from (f"a data file is listed {n} times" for n in listed.values() if n > 1)
    for manifest in snapshot.manifests:
        if files.path(manifest["manifest_path"]).stat().st_size != manifest["manifest_length"]:
            yield "a manifest has another length than its list says"
    for entry in [*snapshot.data.values(), *snapshot.deletes]:
        path = files.path(entry.path)
        if not path.exists():
            yield f"a file that lives is not there: {entry.path[-40:]}"
        elif path.stat().st_size != entry.file["file_size_in_bytes"]:
            yield "a file has another size than its manifest says"


def _deletes(files: LakeFiles, metadata: Json, snapshot: Snapshot) -> Iterator[str]:
    vectors: Counter[str] = Counter()
    for entry in snapshot.deletes:
        is_vector = str(entry.file["file_format"]).upper() == "PUFFIN"
        if is_vector != (metadata["format-version"] == 3):
            yield f"a delete file of format {metadata['format-version']} is of {entry.file['file_format']}"
        positions = files.positions(entry)
        if sum(map(len, positions.values())) != entry.rows:
            yield f"a delete file has {sum(map(len, positions.values()))} positions, and says {entry.rows}"
        for path, some in positions.items():
            data = snapshot.data.get(path)
            vectors[path] += is_vector
            if data is None:
                if is_vector:
                    yield "a deletion vector is of a data file that does not live"
                continue
            if len(some) and (int(some.max()) >= data.rows or int(some.min()) < 0):
                yield "a deleted position is not in its file"
            if len(some) != len(set(some.tolist())):
                yield "a delete file has a position twice"
            if data.sequence_number > entry.sequence_number:
                yield "a delete file is older than the data that it is of"
    yield from (f"a data file has {n} deletion vectors" for n in vectors.values() if n > 1)


def _lineage(files: LakeFiles, metadata: Json, snapshot: Snapshot) -> Iterator[str]:
    """Row numbers: each row has one of its own, below the table's next."""
    if metadata["format-version"] != 3:
        return
    seen: Counter[Any] = Counter()
    for entry, rows in files.live_rows(snapshot):
        if entry.first_row_id is None:
            yield f"a data file has no first row number: {entry.path[-40:]}"
            continue
        seen.update(rows[str(ROW_ID)].to_pylist())
        updated = pc.max(rows[str(LAST_UPDATED)]).as_py()
        if updated is not None and updated > snapshot.json["sequence-number"]:
            yield "a row was changed after its snapshot"
    yield from (f"{n} rows have the number {row}" for row, n in seen.items() if n > 1)
    first, added = snapshot.json.get("first-row-id"), snapshot.json.get("added-rows")
    if first is None or added is None:
        yield "the snapshot has no first row number"
    elif max(seen, default=-1) >= metadata["next-row-id"] or first + added > metadata["next-row-id"]:
        yield "a row has a number that is not below the table's next"


def _data_file(files: LakeFiles, metadata: Json, entry: Entry) -> Iterator[str]:
    """What a manifest says of a data file is true of every row in it."""
    footer = pq.read_metadata(files.path(entry.path))
    if footer.num_rows != entry.rows:
        yield f"{footer.num_rows} rows, the manifest says {entry.rows},"
    rows = files.rows_of(entry.path)
    known = {f["id"]: f for s in metadata["schemas"] for f in s["fields"]}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        number = int(name)
        if number in (ROW_ID, LAST_UPDATED):
            continue
        if number not in known:
            yield f"a column has the field id {number}, which no schema has,"
        elif isinstance(known[number]["type"], str):
            yield from _column(entry, known[number], number, column)
        else:
            yield from _nested(known[number]["type"], column.type)
    yield from _partition(metadata, entry, rows)


def _nested(kind: Json, arrow: pa.DataType) -> Iterator[str]:
    """The field ids within a struct are those of the schema."""
    if kind.get("type") != "struct":
        return
    known = {f["id"]: f["type"] for f in kind["fields"]}
    for number in range(arrow.num_fields):
        of = arrow.field(number)
        if field_id(of) not in known:
            yield f"a struct has the field id {field_id(of)}, which its schema has not,"
        elif not isinstance(known[field_id(of)], str):
            yield from _nested(known[field_id(of)], of.type)


def _column(entry: Entry, of: Json, number: int, column: pa.ChunkedArray) -> Iterator[str]:
    metrics = {name: as_map(entry.file.get(name)) for name in _METRICS}
    kind: str = of["type"]
    # A column that became wider: the bound is of the type that the file's column has.
    if kind in ("long", "double"):
        kind = _KINDS_OF_FILES.get(str(column.type), kind)
    values = [comparable(value, kind) for value in _values(column)]
    nans = sum(isinstance(v, float) and math.isnan(v) for v in values)
    for name, truth in (
        ("value_counts", len(column)),
        ("null_value_counts", column.null_count),
        ("nan_value_counts", nans),
    ):
        told = metrics[name].get(number)
        if told is not None and told != truth:
            yield f"{of['name']}: {name} is {told}, and {truth} is true,"
    lower, upper = metrics["lower_bounds"].get(number), metrics["upper_bounds"].get(number)
    for value in values:
        if not (isinstance(value, float) and math.isnan(value)) and not _within(value, kind, lower, upper):
            yield f"{of['name']} ({kind}): a value lies outside the bounds"
            return


_METRICS: Final = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
_KINDS_OF_FILES: Final = {"int32": "int", "float": "float"}


def _values(column: pa.ChunkedArray) -> list[Any]:
    """The values that are there, times and dates as numbers."""
    kind = column.type
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    return [value for value in column.to_pylist() if value is not None]


def comparable(value: Any, kind: str) -> Any:
    """A value as Iceberg compares those of its type."""
    if kind.startswith("decimal"):
        return unscaled(value, int(kind.rstrip(")").split(",")[1]))
    if kind == "string":
        return value.encode()
    if kind == "uuid":
        return bytes(value)
    return value


def unscaled(value: Any, scale: int) -> int:
    """A decimal in units of its last digit: whole numbers, so that no context rounds it."""
    sign, digits, exponent = value.as_tuple()
    number = int("".join(map(str, digits)) + "0" * (scale + exponent))
    return -number if sign else number


def _within(value: Any, kind: str, lower: bytes | None, upper: bytes | None) -> bool:
    key: Callable[[Any], Any] = _in_order if kind in ("float", "double") else lambda each: each
    low = None if lower is None else bound(lower, kind)
    high = None if upper is None else bound(upper, kind)
    return (low is None or key(low) <= key(value)) and (high is None or key(value) <= key(high))


def _in_order(value: float) -> tuple[float, float]:
    """IEEE 754's total order, without NaN: -0 comes before 0."""
    return value, math.copysign(1, value)


def bound(stored: bytes, kind: str) -> Any:
    """A bound of a manifest (Iceberg table spec, "Binary single-value serialization")."""
    if kind in _NUMBERS:
        return struct.unpack(_NUMBERS[kind], stored)[0]
    if kind.startswith(_TIMES):
        return struct.unpack("<q", stored)[0]
    if kind.startswith("decimal"):
        return int.from_bytes(stored, "big", signed=True)
    return bool(stored[0]) if kind == "boolean" else bytes(stored)


def _spec(metadata: Json, number: int) -> Json:
    found: Json = next(s for s in metadata["partition-specs"] if s["spec-id"] == number)
    return found


def _result_type(metadata: Json, of_spec: Json) -> str:
    """The type of a partition field's values."""
    fields = {f["id"]: f["type"] for s in metadata["schemas"] for f in s["fields"]}
    transform = of_spec["transform"]
    if transform.startswith(("identity", "truncate", "void")):
        return str(fields[of_spec["source-id"]])
    return "date" if transform == "day" else "int"


def _partition(metadata: Json, entry: Entry, rows: pa.Table) -> Iterator[str]:
    """Every row's values lead to the partition that the manifest names, by pyiceberg's transforms."""
    number = entry.manifest["partition_spec_id"]
    if not _spec(metadata, number)["fields"] or not rows.num_rows:
        return
    spec = PartitionSpec.model_validate(_spec(metadata, number))
    schema = Schema.model_validate({**schema_of(metadata), "identifier-field-ids": []})
    known = {f.field_id: f for f in schema.fields}
    for of_spec, told in zip(spec.fields, entry.file["partition"].values(), strict=True):
        source = of_spec.source_id
        if source not in known or str(source) not in rows.column_names:
            continue
        kind = known[source].field_type
        transform = of_spec.transform.transform(kind)
        column = rows[str(source)]
        if pa.types.is_date32(column.type):
            column = column.cast(pa.int32())
        elif pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        made = {transform(value) for value in column.to_pylist()}
        if made - {_as_number(told)}:
            yield f"rows belong to the partitions {made} by {of_spec.name}, and are in {told!r},"


def _as_number(value: Any) -> Any:
    """A day comes from Avro as a date."""
    if hasattr(value, "toordinal") and not hasattr(value, "hour"):
        return value.toordinal() - 719163
    return value
