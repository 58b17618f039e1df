"""The table `<namespace>.commits`: one row per consistency point, and the lake's position.

It is an Iceberg table of format v2, because pyiceberg writes that and so no Spark is needed.  The
summary of its main snapshot says ``slotlake.lsn``: that, and nothing else anywhere, is the position
of the pipeline.  Its row and that snapshot are published in the same swap as the tables' own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.types import LongType, MapType, NestedField, StringType, TimestamptzType

from decoder.errors import LakeError
from decoder.lsn import format_lsn, parse_lsn
from spark import catalog_metadata
from spark.catalog_metadata import Metadata
from spark.names import COMMITS, LakeName
from spark.tables import PIPELINE_PROPERTY

LSN, BATCH, DIGEST, PIPELINE = "slotlake.lsn", "slotlake.batch", "slotlake.digest", "slotlake.pipeline"
STEPS = "slotlake.steps"
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
_SCHEMA = Schema(
    *(NestedField(i, name, kind, required=False) for i, (name, kind) in enumerate(_FIELDS, 1)),
    NestedField(
        len(_FIELDS) + 1,
        "tables",
        MapType(len(_FIELDS) + 2, StringType(), len(_FIELDS) + 3, LongType(), value_required=False),
        required=False,
    ),
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
    ]
)


@dataclass(frozen=True)
class Point:
    """A consistency point about to be published, or published.

    Attributes:
        position: the lake's position from then on (an LSN as integer).
        batch: the batch's name, ``copy-<lsn>`` or ``backfill-<lsn>-<table>``.
        kind: copy | batch | backfill.
        commit_time: when the last transaction in it was committed in the source, if there was one.
    """

    pipeline: str
    position: int
    batch: str
    digest: str
    kind: str
    commit_time: datetime | None = None
    transactions: int = 0
    changes: int = 0

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


def create_commits(iceberg: SqlCatalog, name: LakeName, location: str, pipeline: str) -> None:
    """Make the table, empty."""
    iceberg.create_table(
        (name.namespace, name.table),
        _SCHEMA,
        location=location,
        properties={
            "format-version": "2",
            "write.parquet.compression-codec": "zstd",
            PIPELINE_PROPERTY: pipeline,
        },
    )


def append_point(
    iceberg: SqlCatalog, name: LakeName, point: Point, tables: Mapping[LakeName, int], branch: str
) -> None:
    """Write a point's row into a branch of the table.

    Args:
        tables: the snapshots that this point publishes.
    """
    row = {
        "lsn": format_lsn(point.position),
        "position": point.position,
        "batch": point.batch,
        "digest": point.digest,
        "commit_time": point.commit_time,
        "published_at": datetime.now(UTC),
        "kind": point.kind,
        "transactions": point.transactions,
        "changes": point.changes,
        "tables": sorted((str(table), snapshot_id) for table, snapshot_id in tables.items()),
    }
    table = iceberg.load_table((name.namespace, name.table))
    table.append(pa.Table.from_pylist([row], schema=_ARROW), snapshot_properties=point.summary, branch=branch)


def position_of(metadata: Metadata, name: LakeName) -> int:
    """The lake's position, from the commits table's metadata.

    Raises:
        LakeError: the table's newest snapshot does not say.
    """
    text = catalog_metadata.summary(catalog_metadata.head(metadata)).get(LSN)
    if text is None:
        raise LakeError(
            "the lake does not say at which position it stands",
            where=f"table {name}",
            way_out="something else wrote to it; roll it back to its last snapshot made by slotlake",
        )
    return parse_lsn(text)


def read_points(metadata_location: str, snapshot_id: int) -> list[dict[str, Any]]:
    """The rows of the table at one of its snapshots, oldest point first."""
    rows = StaticTable.from_metadata(metadata_location).scan(snapshot_id=snapshot_id).to_arrow()
    found: list[dict[str, Any]] = [{**row, "tables": dict(row["tables"] or ())} for row in rows.to_pylist()]
    return sorted(found, key=lambda row: (row["position"], row["published_at"]))
