"""The table `<namespace>.commits`: one row per consistency point, and the lake's position.

It is an Iceberg table of format v2, because pyiceberg writes that and so no Spark is needed.  The
summary of its main snapshot says ``slotlake.lsn``: that, and nothing else anywhere, is the position
of the pipeline.  Its row and that snapshot are published in the same swap as the tables' own.

A row names the snapshot of *every* table at its point, not only of those that changed: whoever pins by
hand needs one row.  Its tags say which points are kept (spark/publish/points.py); snapshots of it that are
neither tagged nor its newest leave its metadata, so that this does not grow with every batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog as IcebergCatalog
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.table import ALWAYS_TRUE, StaticTable, Table, Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.types import LongType, MapType, NestedField, StringType, TimestamptzType

from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.decoder.memory import Memory
from slotlake.decoder.server.timeline import Origin
from slotlake.spark import lake_files
from slotlake.spark.catalog.base import Catalog, Loaded, load_one
from slotlake.spark.names import LakeName
from slotlake.spark.publish.commits_trim import newest_only
from slotlake.spark.publish.origins import origin_summary
from slotlake.spark.publish.pins import Pins
from slotlake.spark.publish.points import COMMITTED
from slotlake.spark.publish.position import FORMAT_PROPERTY, LAKE_FORMAT, commits_name, position_of
from slotlake.spark.storage.file_io import FILE_IO
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import MAIN, Metadata
from slotlake.spark.tables.schema import PIPELINE_PROPERTY

__all__ = ["commits_name", "position_of"]  # for those who write the table too
LSN = catalog_metadata.LSN
BATCH, DIGEST, PIPELINE = "slotlake.batch", "slotlake.digest", "slotlake.pipeline"
ABANDONED_PROPERTY = "slotlake.left"  # histories that the source gave up (spark/publish/rewind.py)
PREPARED = "slotlake.prepared"  # transactions with changes that wait for their outcome
LAG = "slotlake.lag-seconds"  # of the newest point with transactions: from the oldest commit to publication
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
_ARROW_FIELDS: list[tuple[str, pa.DataType]] = [
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
_ARROW = pa.schema(_ARROW_FIELDS)


_MANIFEST_BYTES = 64 * 1024

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
        oldest_commit: when the first one was.
        changed: lake table ("namespace.table") → how many changes it got.
        origin: the server that it was read from; that of the point before when not given.
        prepared, settled: transactions that began to wait for their outcome, and that wait no more, as in a
            batch's manifest.
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
    prepared: Sequence[Mapping[str, Any]] = ()
    settled: Sequence[Mapping[str, Any]] = ()
    oldest_commit: datetime | None = None

    @property
    def summary(self) -> dict[str, str]:
        """What stands in the summary of every snapshot of this point."""
        return {
            PIPELINE: self.pipeline,
            BATCH: self.batch,
            LSN: format_lsn(self.position),
            DIGEST: self.digest,
        }


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
            # Some hundred rows a manifest: a larger one would be written anew whenever others are merged.
            "commit.manifest.target-size-bytes": str(_MANIFEST_BYTES),
            PIPELINE_PROPERTY: pipeline,
            FORMAT_PROPERTY: str(LAKE_FORMAT),
        },
    )


@dataclass(frozen=True)
class _Written:
    """The pins that this process has written into the newest row: the next point need not read it.

    All others, who ask for what the lake has, read the row.
    """

    row: tuple[str, int | None]
    pins: Pins


def with_point(
    memory: Memory,
    table: Loaded,
    point: Point,
    published: Mapping[LakeName, int],
    existing: AbstractSet[LakeName],
    may_leave: Callable[[LakeName], bool] = lambda _: True,
) -> Metadata:
    """The table's metadata with a point's row on main; its files are written, nothing leads to them yet.

    pyiceberg writes the files.  It is shown the table without its past: with a hundred kept points it would
    go through all of them twenty times.

    Args:
        published: the snapshots that this point makes those of their tables.
        may_leave: says of a table that the catalog lacks whether the row may do without it.
    """
    iceberg = newest_only(table)
    pins = pins_of(table, memory).after(published, existing, may_leave)
    changes = Transaction(iceberg)
    own = (_commit_time_summary, _lag_summary, _prepared_summary)
    properties = point.summary | origin_summary(point.origin, point.position, table.metadata)
    for each in own:
        properties |= each(point, table.metadata)
    changes.append(_row(point, pins), snapshot_properties=properties)
    updates = changes._updates  # noqa: SLF001 - it has no other way to say what it would commit
    (added,) = (update.snapshot for update in updates if isinstance(update, AddSnapshotUpdate))
    snapshot = json.loads(added.model_dump_json(by_alias=True, exclude_none=True))
    grown = {
        **table.metadata,
        "snapshots": [*table.metadata.get("snapshots", []), snapshot],
        "last-sequence-number": snapshot["sequence-number"],
    }
    grown = catalog_metadata.with_ref(grown, MAIN, snapshot["snapshot-id"])
    memory.put(_Written(_row_of(grown), pins))
    return grown


def _row_of(metadata: Metadata) -> tuple[str, int | None]:
    return metadata["table-uuid"], catalog_metadata.ref(metadata, MAIN)


def _row(point: Point, pins: Pins) -> pa.Table:
    values = {
        "lsn": format_lsn(point.position),
        "position": point.position,
        "batch": point.batch,
        "digest": point.digest,
        "commit_time": point.commit_time,
        "published_at": datetime.now(UTC),
        "kind": point.kind,
        "transactions": point.transactions,
        "changes": point.changes,
        "changed": sorted(point.changed.items()),
    }
    row = pa.Table.from_pylist([values], schema=_ARROW.remove(_ARROW.get_field_index("tables")))
    return row.append_column(_ARROW.field("tables"), pins.as_map()).select(_ARROW.names)


def _commit_time_summary(point: Point, present: Metadata) -> dict[str, str]:
    """The source's time at the point: that of its last commit, or of the point before."""
    if point.commit_time is not None:
        return {COMMITTED: point.commit_time.isoformat()}
    before = catalog_metadata.summary(catalog_metadata.newest_of_a_point(present)).get(COMMITTED)
    return {COMMITTED: before} if before else {}


def _lag_summary(point: Point, present: Metadata) -> dict[str, str]:
    """How late the point is, or the newest one before it that had transactions."""
    if point.oldest_commit is not None:
        late = (datetime.now(UTC) - point.oldest_commit).total_seconds()
        return {LAG: f"{max(0.0, late):.3f}"}
    before = catalog_metadata.summary(catalog_metadata.newest_of_a_point(present)).get(LAG)
    return {LAG: before} if before else {}


def newest_lag(metadata: Metadata) -> float | None:
    """The seconds from the oldest commit of the newest point with transactions to its publication, if known.

    Args:
        metadata: of the table `commits`.
    """
    text = catalog_metadata.summary(catalog_metadata.newest_of_a_point(metadata)).get(LAG)
    return None if text is None else float(text)


def _prepared_summary(point: Point, present: Metadata) -> dict[str, str]:
    """The transactions that wait for their outcome from this point on."""
    waiting = {
        tuple(entry.values()): entry
        for entry in [*prepared_transactions(present), *map(_prepared, point.prepared)]
    }
    for entry in map(_prepared, point.settled):
        waiting.pop(tuple(entry.values()), None)
    return {PREPARED: json.dumps(list(waiting.values()))} if waiting else {}


def _prepared(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in ("gid", "xid", "prepare_lsn")}


def prepared_transactions(metadata: Metadata) -> list[dict[str, Any]]:
    """The prepared transactions with changes whose outcome the lake does not hold: gid, xid, prepare_lsn."""
    text = catalog_metadata.summary(catalog_metadata.newest_of_a_point(metadata)).get(PREPARED, "[]")
    transactions: list[dict[str, Any]] = json.loads(text)
    return transactions


def pins_of(table: Loaded, memory: Memory | None = None) -> Pins:
    """The snapshot that the newest point gives each table of the lake.

    Args:
        table: the table `commits`.
        memory: of the lake: what this process has written is not read again; None: it is.
    """
    written = None if memory is None else memory.get(_Written)
    if written is not None and written.row == _row_of(table.metadata):
        return written.pins
    return Pins.of(newest_pins(newest_only(table), catalog_metadata.newest_position(table.metadata)))


def pins_in(catalog: Catalog) -> Pins:
    """The same of a lake's `commits`; what this process has written is not read again."""
    lake = catalog.lake
    return pins_of(load_one(catalog, commits_name(lake.namespace)), lake.memory)


def newest_pins(table: Table, position: int | None) -> dict[str, int]:
    """Lake table → snapshot id, of the newest row; ``position``: the lake's."""
    pins: dict[str, int] = _newest_row(table, position).get("tables", {})
    return pins


def newest_times(table: Loaded) -> tuple[datetime | None, datetime | None]:
    """When the newest point's last transaction was committed, if it has one; when it was published."""
    row = _newest_row(newest_only(table), catalog_metadata.newest_position(table.metadata))
    return row.get("commit_time"), row.get("published_at")


def _newest_row(table: Table, position: int | None) -> dict[str, Any]:
    """Of the newest point; read from the one file that was added last: all have millions of pins."""
    present = table.metadata.current_snapshot()
    if present is None:
        return {}
    if present.summary is not None and present.summary.operation == Operation.APPEND:
        for manifest in present.manifests(table.io):
            if manifest.added_snapshot_id == present.snapshot_id:
                for entry in manifest.fetch_manifest_entry(table.io):
                    if entry.snapshot_id == present.snapshot_id and entry.status == ManifestEntryStatus.ADDED:
                        file = pa.BufferReader(lake_files.read(entry.data_file.file_path))
                        rows = pq.read_table(file, columns=list(_NEWEST)).to_pylist()
                        row = max(rows, key=lambda row: [row[c] for c in _ORDER])
                        return {**row, "tables": dict(row["tables"])}
    # A compaction, or that rows were removed, is on top of it.
    at_position = (
        [] if position is None else _rows_where(table, present.snapshot_id, f"position = {position}")
    )
    rows = at_position or _rows_where(table, present.snapshot_id, None)
    return rows[-1] if rows else {}


def _rows_where(table: Table, snapshot_id: int, condition: str | None) -> list[dict[str, Any]]:
    return _points(table.scan(condition or ALWAYS_TRUE, snapshot_id=snapshot_id).to_arrow(), table.properties)


def read_points(
    metadata_location: str, snapshot_id: int, above: int | None = None, *, pins: bool = True
) -> list[dict[str, Any]]:
    """The rows of the table at one of its snapshots, oldest point first.

    Args:
        above: only points above this position; files that have none are not opened.
        pins: with the snapshots of all tables, which is most of what a row has.
    """
    table = StaticTable.from_metadata(metadata_location, dict(FILE_IO))
    condition = ALWAYS_TRUE if above is None else f"position > {above}"
    fields = ("*",) if pins else tuple(name for name in _ARROW.names if name != "tables")
    rows = table.scan(condition, selected_fields=fields, snapshot_id=snapshot_id).to_arrow()
    return _points(rows, table.properties)


def _points(rows: pa.Table, properties: Mapping[str, str]) -> list[dict[str, Any]]:
    """Oldest first, without those of histories that the source gave up."""
    maps = ("tables", "changed")
    points: list[dict[str, Any]] = [
        {**row, **{name: dict(row[name] or ()) for name in maps if name in row}} for row in rows.to_pylist()
    ]
    for abandoned in json.loads(properties.get(ABANDONED_PROPERTY, "[]")):
        above, at = parse_lsn(abandoned["lsn"]), datetime.fromisoformat(abandoned["at"])
        points = [row for row in points if row["position"] <= above or row["published_at"] > at]
    return sorted(points, key=lambda row: [row[column] for column in _ORDER])
