"""A scratch copy of the lake as it was at a kept point, for batches to be replayed onto.

No row is copied: each scratch table is a metadata file of its own whose one snapshot shares its data
files with the live table's.  What a replay writes goes to the scratch table's own directory, so the live
tables and their points are never touched; the scratch copy is good for as long as the point is kept.
Its metadata says ``gc.enabled=false``, so that who drops a scratch table, with PURGE too, leaves the shared
files alone; manifests, which not everyone spares, are copied.

Scratch tables belong to the owner ``<pipeline>.replay``.  A namespace that holds anything else is refused.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import replace

from slotlake.decoder.errors import LakeError
from slotlake.spark import lake_files
from slotlake.spark.catalog.base import load, load_one
from slotlake.spark.catalog.open import Catalog, check_lake, open_catalog
from slotlake.spark.catalog.tags import tagged
from slotlake.spark.lake import LakeSettings
from slotlake.spark.maintenance.removal import drop_tables
from slotlake.spark.names import COMMITS, LakeName, belongs, copying, derived_table_name
from slotlake.spark.publish.commits import Point, commits_name, create_commits, with_point
from slotlake.spark.publish.derived_tables import SUFFIXES
from slotlake.spark.publish.past import PAST_PROPERTY
from slotlake.spark.publish.place import table_directory
from slotlake.spark.read.pinned import Pinned
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.layout import without_missing_fields
from slotlake.spark.tables.manifests import with_own_manifests
from slotlake.spark.tables.metadata import MAIN, Metadata
from slotlake.spark.tables.schema import PIPELINE_PROPERTY, SCHEMA_PROPERTY, STAGED_SCHEMA_PROPERTY
from slotlake.spark.tables.settle import HISTORY_PROPERTY, STAGED_FIELDS_PROPERTY

_SHARES_FILES = {"gc.enabled": "false"}
_NOTHING_ELSE = dict.fromkeys(
    (STAGED_SCHEMA_PROPERTY, STAGED_FIELDS_PROPERTY, HISTORY_PROPERTY, PAST_PROPERTY)
)


def owner(pipeline: str) -> str:
    """Whose the scratch tables of a pipeline are."""
    return f"{pipeline}.replay"  # no pipeline is called so: its name has no dot


def scratch_of(lake: LakeSettings, namespace: str) -> LakeSettings:
    """The same catalog and warehouse, with another namespace.

    Raises:
        LakeError: it is the live lake's, or would be taken for a part of it; or Spark has no keys for it.
    """
    if lake.borrows_keys:
        raise LakeError(
            "a replay needs keys for the whole warehouse: its tables share files with those of the lake, and "
            "the REST catalog lends Spark keys for one table at a time",
            where=f"namespace {namespace} in {lake.place}",
            way_out="give access_key and secret_key in lake.storage for the replay",
        )
    if belongs(namespace, lake.namespace) or belongs(lake.namespace, namespace):
        raise LakeError(
            "a replay needs a namespace of its own",
            where=f"namespace {namespace}",
            way_out=f"name one that is not, and does not begin with, {lake.namespace}__",
        )
    return replace(lake, namespace=namespace, views=False)


def prepare_scratch(read_point: ReadPoint, scratch: LakeSettings, pipeline: str) -> list[str]:
    """Make the scratch namespace hold what the read point shows and nothing else; return its tables' names.

    Raises:
        LakeError: the namespace holds something that no earlier replay made.
    """
    check_lake(scratch)
    _clear(scratch, pipeline)
    point = Point(owner(pipeline), read_point.position, f"replay-{read_point.position:X}", "", "copy")
    with open_catalog(scratch) as catalog:
        snapshots = {}
        for schema in read_point.tables():
            name, live = schema.lake_name(scratch.namespace), read_point.find(schema.source_name)
            clones = {name: live} | {
                derived_table_name(name, SUFFIXES[mode]): each
                for mode, each in read_point.derived_tables(schema.source_name).items()
            }
            for clone, each in clones.items():
                snapshots[clone] = _clone(catalog, read_point.pinned[each], clone, point)
        _make_commits(catalog, point, snapshots)
    return sorted(str(name) for name in snapshots)


def _clear(scratch: LakeSettings, pipeline: str) -> None:
    drop_tables(scratch, owner(pipeline))
    with open_catalog(scratch) as catalog:
        strangers = [name for name in catalog.pointers() if belongs(name.namespace, scratch.namespace)]
    if strangers:
        raise LakeError(
            "the namespace for the replay holds tables that no replay of this pipeline made",
            where=f"table {strangers[0]}",
            way_out="name another namespace",
        )


def _clone(catalog: Catalog, pinned: Pinned, name: LakeName, point: Point) -> int:
    location = table_directory(catalog.lake, name)
    lake_files.remove_tree(location)
    metadata = _cloned(pinned, point, location)
    file = location / "metadata" / f"00000-{uuid.uuid4()}.metadata.json"
    lake_files.write_new(file, json.dumps(metadata, ensure_ascii=False).encode())
    catalog.make_namespace(name.namespace)
    catalog.add(name, file)
    return int(metadata["current-snapshot-id"])


def _cloned(pinned: Pinned, point: Point, location: str) -> Metadata:
    """A table whose whole history is the pinned snapshot, in the shape that it had then."""
    snapshot = pinned.snapshot or {}
    id_ = snapshot["snapshot-id"]
    snapshot = with_own_manifests(pinned.metadata, snapshot, location)
    now = int(time.time() * 1000)
    without_parent = {key: value for key, value in snapshot.items() if key != "parent-snapshot-id"}
    # On REST, a snapshot names the schema that it was written by, before its fields were settled.
    without_parent["schema-id"] = pinned.schema_id
    metadata = {
        **pinned.metadata,
        "table-uuid": str(uuid.uuid4()),
        "location": location,
        "last-updated-ms": now,
        "current-schema-id": pinned.schema_id,
        "current-snapshot-id": id_,
        "snapshots": [without_parent],
        "refs": {MAIN: {"snapshot-id": id_, "type": "branch"}},
        "snapshot-log": [{"snapshot-id": id_, "timestamp-ms": now}],
        "metadata-log": [],
        "statistics": [],
        "partition-statistics": [],
    }
    metadata = catalog_metadata.with_summary(without_missing_fields(metadata), id_, point.summary)
    properties = {PIPELINE_PROPERTY: point.pipeline, **_SHARES_FILES, **_NOTHING_ELSE, **_shape(pinned)}
    metadata = catalog_metadata.with_properties(metadata, properties)
    return tagged(metadata, {}, point.position, [point.position])


def spare_shared_files(scratch: LakeSettings, pipeline: str) -> None:
    """See that no scratch table's DROP takes files of the live ones along, as in earlier versions."""
    with open_catalog(scratch) as catalog:
        pointers = catalog.pointers()
        names = [name for name in pointers if belongs(name.namespace, scratch.namespace)]
        moves = []
        for table in (load(pointers, name) for name in names if name.table != COMMITS):
            properties = table.metadata.get("properties", {})
            if properties.get(PIPELINE_PROPERTY) == owner(pipeline) and "gc.enabled" not in properties:
                metadata = catalog_metadata.with_properties(table.metadata, dict(_SHARES_FILES))
                moves.append(catalog.prepared(table, metadata))
        if moves:
            catalog.move(moves)


def _shape(pinned: Pinned) -> dict[str, str | None]:
    """The shape without the columns that were added since; a table beside a mirror has none of its own."""
    if SCHEMA_PROPERTY not in pinned.metadata["properties"]:
        return {}
    shape = pinned.shape
    present = pinned.field_ids
    columns = tuple(
        replace(column, exact=column.exact and column.exact_name in present)
        for column in shape.columns
        if column.lake_name in present
    )
    return {SCHEMA_PROPERTY: replace(shape, columns=columns).to_json()}


def _make_commits(catalog: Catalog, point: Point, snapshots: dict[LakeName, int]) -> None:
    """Make `commits`, last: without it the scratch lake is not there."""
    name = commits_name(catalog.lake.namespace)
    hidden = copying(name)
    location = table_directory(catalog.lake, name)
    lake_files.remove_tree(location)
    catalog.discard(name, point.pipeline)
    catalog.drop([hidden])
    catalog.make_namespace(hidden.namespace)
    create_commits(catalog.iceberg, hidden, location, point.pipeline)
    new_table = load_one(catalog, hidden)
    metadata = with_point(catalog.lake.memory, new_table, point, snapshots, snapshots.keys())
    catalog.move([catalog.prepared(new_table, tagged(metadata, {}, point.position, [point.position]), name)])
    catalog.drop_namespace(hidden.namespace)
