"""The table `<namespace>.commits`: one row per consistency point, and the lake's position.

It is an Iceberg table of format v2, because pyiceberg writes that and so no Spark is needed.  The
summary of its main snapshot says ``slotlake.lsn``: that, and nothing else anywhere, is the position
of the pipeline.  Its row and that snapshot are published in the same swap as the tables' own.

A row names the snapshot of *every* table at its point, not only of those that changed: whoever pins by
hand needs one row.  Its tags say which points are kept (spark/points.py); snapshots of it that are
neither tagged nor its newest leave its metadata, so that this does not grow with every batch.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog as IcebergCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table, Transaction
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.types import LongType, MapType, NestedField, StringType, TimestamptzType

from decoder.errors import LakeError
from decoder.lsn import format_lsn, parse_lsn
from decoder.timeline import Origin
from spark import catalog_metadata, lake_files
from spark.catalog_base import Loaded
from spark.catalog_metadata import MAIN, Metadata
from spark.names import COMMITS, LakeName
from spark.points import COMMITTED
from spark.tables import PIPELINE_PROPERTY

LSN = catalog_metadata.LSN
BATCH, DIGEST, PIPELINE = "slotlake.batch", "slotlake.digest", "slotlake.pipeline"
SYSTEM, TIMELINE = "slotlake.system-identifier", "slotlake.timeline"
LEFT_PROPERTY = "slotlake.left"  # histories that the source gave up (spark/lowering.py)
STEPS, RUN = "slotlake.steps", "slotlake.run"  # how many snapshots make up what is staged, and whose they are
_FIELDS = (
    ("lsn", StringType()),
    ("position", LongType()),
    ("batch", StringType()),
    ("digest", StringType()),
    ("commit_time", TimestamptzType()),
    ("published_at", TimestamptzType()),
    ("kind", StringType()),
    ("transactions", LongType()),
    ("changes", LongType()),
)


def _map_field(number: int, name: str) -> NestedField:
    kind = MapType(number + 1, StringType(), number + 2, LongType(), value_required=False)
    return NestedField(number, name, kind, required=False)


_SCHEMA = Schema(
    *(NestedField(i, name, kind, required=False) for i, (name, kind) in enumerate(_FIELDS, 1)),
    *(_map_field(len(_FIELDS) + 1 + 3 * i, name) for i, name in enumerate(("tables", "changed"))),
)
_ARROW = pa.schema(
    [
        ("lsn", pa.string()),
        ("position", pa.int64()),
        ("batch", pa.string()),
        ("digest", pa.string()),
        ("commit_time", pa.timestamp("us", "UTC")),
        ("published_at", pa.timestamp("us", "UTC")),
        ("kind", pa.string()),
        ("transactions", pa.int64()),
        ("changes", pa.int64()),
        ("tables", pa.map_(pa.string(), pa.int64())),
        ("changed", pa.map_(pa.string(), pa.int64())),
    ]
)


# Two points may have one position: a table that joins, or is read again, at the lake's own.
_ORDER = ("position", "published_at")
_NEWEST = (*_ORDER, "commit_time", "tables")


@dataclass(frozen=True)
class Point:
    """A consistency point about to be published, or published.

    Attributes:
        position: the lake's position from then on (an LSN as integer).
        batch: the batch's name, ``copy-<lsn>`` or ``backfill-<lsn>-<table>``.
        kind: copy | batch | backfill.
        commit_time: when the last transaction in it was committed in the source, if there was one.
        changed: lake table ("namespace.table") → how many changes it got.
        origin: the server that it was read from; that of the point before when not given.
    """

    pipeline: str
    position: int
    batch: str
    digest: str
    kind: str
    commit_time: datetime | None = None
    transactions: int = 0
    changes: int = 0
    changed: Mapping[str, int] = field(default_factory=dict)
    origin: Origin | None = None

    @property
    def summary(self) -> dict[str, str]:
        """What stands in the summary of every snapshot of this point."""
        return {
            PIPELINE: self.pipeline,
            BATCH: self.batch,
            LSN: format_lsn(self.position),
            DIGEST: self.digest,
        }


def commits_name(namespace: str) -> LakeName:
    """The table's name."""
    return LakeName(namespace, COMMITS)


def create_commits(iceberg: IcebergCatalog, name: LakeName, location: str, pipeline: str) -> None:
    """Make the table, empty."""
    iceberg.create_table(
        (name.namespace, name.table),
        _SCHEMA,
        location=location,
        properties={
            "format-version": "2",
            "write.parquet.compression-codec": "zstd",
            # One row a snapshot: without it each adds a manifest, and reading the list costs more each time.
            "commit.manifest-merge.enabled": "true",
            "commit.manifest.min-count-to-merge": "50",
            PIPELINE_PROPERTY: pipeline,
        },
    )


def with_point(
    table: Loaded, point: Point, published: Mapping[LakeName, int], held: Container[LakeName]
) -> Metadata:
    """The table's metadata with a point's row on main; its files are written, nothing leads to them yet.

    pyiceberg writes the files.  It is shown the table without its past: with a hundred kept points it would
    go through all of them twenty times.

    Args:
        published: the snapshots that this point makes those of their tables.
        held: what the catalog has; tables that were dropped leave the row.
    """
    newest = catalog_metadata.ref(table.metadata, MAIN)
    shown = _without_past(table.metadata, newest)
    iceberg = _seen_by_pyiceberg(shown, table.location)
    pins = {text: id_ for text, id_ in newest_pins(iceberg).items() if LakeName.parse(text) in held}
    pins |= {str(name): snapshot_id for name, snapshot_id in published.items()}
    changes = Transaction(iceberg)
    changes.append(
        pa.Table.from_pylist([_row(point, pins)], schema=_ARROW),
        snapshot_properties={
            **point.summary,
            **_committed(point, table.metadata),
            **_read_from(point, table.metadata),
        },
    )
    (added,) = (update.snapshot for update in changes._updates if isinstance(update, AddSnapshotUpdate))
    snapshot = json.loads(added.model_dump_json(by_alias=True, exclude_none=True))
    grown = {
        **table.metadata,
        "snapshots": [*table.metadata.get("snapshots", []), snapshot],
        "last-sequence-number": snapshot["sequence-number"],
    }
    return catalog_metadata.with_ref(grown, MAIN, snapshot["snapshot-id"])


def _row(point: Point, pins: Mapping[str, int]) -> dict[str, Any]:
    return {
        "lsn": format_lsn(point.position),
        "position": point.position,
        "batch": point.batch,
        "digest": point.digest,
        "commit_time": point.commit_time,
        "published_at": datetime.now(UTC),
        "kind": point.kind,
        "transactions": point.transactions,
        "changes": point.changes,
        "tables": sorted(pins.items()),
        "changed": sorted(point.changed.items()),
    }


def _without_past(metadata: Metadata, newest: int | None) -> Metadata:
    head = catalog_metadata.snapshot(metadata, newest)
    return {
        **metadata,
        "snapshots": [head] if head else [],
        "refs": {MAIN: {"snapshot-id": newest, "type": "branch"}} if head else {},
        "snapshot-log": [],
        "metadata-log": [],
    }


def _seen_by_pyiceberg(metadata: Metadata, location: str) -> Table:
    io = load_file_io({}, metadata["location"])
    parsed = TableMetadataUtil.parse_obj(metadata)
    return Table(("slotlake", COMMITS), parsed, location, io, NoopCatalog("slotlake"))


def _committed(point: Point, present: Metadata) -> dict[str, str]:
    """The source's time at the point: that of its last commit, or of the point before."""
    if point.commit_time is not None:
        return {COMMITTED: point.commit_time.isoformat()}
    before = catalog_metadata.summary(catalog_metadata.newest_of_a_point(present)).get(COMMITTED)
    return {COMMITTED: before} if before else {}


def _read_from(point: Point, present: Metadata) -> dict[str, str]:
    """The server that the lake was fed from last."""
    origin = point.origin or origin_of(present)
    return {} if origin is None else {SYSTEM: origin.system_identifier, TIMELINE: str(origin.timeline)}


def origin_of(metadata: Metadata) -> Origin | None:
    """The server that the lake was fed from last; None if it was written before it said so."""
    summary = catalog_metadata.summary(catalog_metadata.newest_of_a_point(metadata))
    if SYSTEM not in summary or TIMELINE not in summary:
        return None
    return Origin(summary[SYSTEM], int(summary[TIMELINE]))


def pins_of(table: Loaded) -> dict[LakeName, int]:
    """The snapshot that the newest point gives each table of the lake."""
    shown = _without_past(table.metadata, catalog_metadata.ref(table.metadata, MAIN))
    pins = newest_pins(_seen_by_pyiceberg(shown, table.location))
    return {LakeName.parse(text): snapshot for text, snapshot in pins.items()}


def newest_pins(table: Table) -> dict[str, int]:
    """Lake table → snapshot id, of the newest row."""
    found: dict[str, int] = _newest_row(table).get("tables", {})
    return found


def newest_times(table: Loaded) -> tuple[datetime | None, datetime | None]:
    """When the newest point's last transaction was committed, if it has one; when it was published."""
    shown = _without_past(table.metadata, catalog_metadata.ref(table.metadata, MAIN))
    row = _newest_row(_seen_by_pyiceberg(shown, table.location))
    return row.get("commit_time"), row.get("published_at")


def _newest_row(table: Table) -> dict[str, Any]:
    """Of the newest point; read from the one file that was added last: all have millions of pins."""
    present = table.metadata.current_snapshot()
    if present is None:
        return {}
    for manifest in present.manifests(table.io):
        if manifest.added_snapshot_id == present.snapshot_id:
            for entry in manifest.fetch_manifest_entry(table.io):
                if entry.snapshot_id == present.snapshot_id and entry.status == ManifestEntryStatus.ADDED:
                    path = lake_files.local_path(entry.data_file.file_path)
                    rows = pq.read_table(path, columns=list(_NEWEST)).to_pylist()
                    row = max(rows, key=lambda row: [row[c] for c in _ORDER])
                    return {**row, "tables": dict(row["tables"])}
    rows = _points(table.scan(snapshot_id=present.snapshot_id).to_arrow(), table.properties)
    return rows[-1] if rows else {}


def position_of(metadata: Metadata, name: LakeName) -> int:
    """The lake's position, from the commits table's metadata; a compaction on top of it changes nothing.

    Raises:
        LakeError: the table's newest snapshot does not say.
    """
    for snapshot in catalog_metadata.ancestry(metadata):
        summary = catalog_metadata.summary(snapshot)
        if LSN in summary:
            return parse_lsn(summary[LSN])
        if summary.get("operation") != "replace":
            break
    raise LakeError(
        "the lake does not say at which position it stands",
        where=f"table {name}",
        way_out="something else wrote to it; roll it back to its last snapshot made by slotlake",
    )


def read_points(metadata_location: str, snapshot_id: int) -> list[dict[str, Any]]:
    """The rows of the table at one of its snapshots, oldest point first."""
    table = StaticTable.from_metadata(metadata_location)
    return _points(table.scan(snapshot_id=snapshot_id).to_arrow(), table.properties)


def _points(rows: pa.Table, properties: Mapping[str, str]) -> list[dict[str, Any]]:
    """Oldest first, without those of histories that the source gave up."""
    maps = ("tables", "changed")
    found: list[dict[str, Any]] = [
        {**row, **{name: dict(row[name] or ()) for name in maps}} for row in rows.to_pylist()
    ]
    for left in json.loads(properties.get(LEFT_PROPERTY, "[]")):
        above, at = parse_lsn(left["lsn"]), datetime.fromisoformat(left["at"])
        found = [row for row in found if row["position"] <= above or row["published_at"] > at]
    return sorted(found, key=lambda row: [row[column] for column in _ORDER])
