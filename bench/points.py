"""ten_thousand_points_vs_few: what kept points, and batches that have been, add to the cost of a batch.

The points are made by the project's own publishing, of batches that Spark has no part in: a snapshot without
a file is staged by hand and published like any other, with its row of `commits`, its tags and its past files.
The last of these publications are held against the first, and `sync()` with Spark against what it was.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slotlake.bench.figures import Figure
from slotlake.bench.lakes import NAMESPACE, bench_pipeline
from slotlake.bench.workload import DATABASE, bench_folder, bench_server, make_table, rows_asked, runs_asked
from slotlake.decoder.server.source import connect
from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.copy.files import with_files
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName
from slotlake.spark.publish.commits import STEPS, Point
from slotlake.spark.publish.swap import publish_tables, reset_stage
from slotlake.spark.storage.location import Location
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import MAIN, STAGE

if TYPE_CHECKING:
    from slotlake.infra.pipeline import Pipeline
    from slotlake.infra.progress import Progressing

ROWS = 5000
POINTS, _POINTS_SHORT = 10_000, 60
_STEP = 8  # bytes of WAL between two points
_SYNCS, _WARM_UPS = 15, 5
_SLOWER_MAX = 1.2


def ten_thousand_points_vs_few(progress: Progressing) -> list[Figure]:
    """Publications, and syncs."""
    points = POINTS if rows_asked(ROWS) == ROWS else _POINTS_SHORT
    settings = {"keep_points": {"count": 2 * POINTS, "days": 30}}
    with bench_server() as server, bench_folder() as folder, connect(server.dsn(DATABASE)) as connection:
        make_table(connection, "orders", rows_asked(ROWS))
        with bench_pipeline(server, folder, ["orders"], progress, lake_more=settings) as pipeline:

            def syncs(count: int) -> list[float]:
                seconds = []
                for _ in range(count):
                    connection.execute(b"UPDATE orders SET quantity = quantity + 1 WHERE id = 5")
                    started = time.monotonic()
                    pipeline.sync()
                    seconds.append(time.monotonic() - started)
                return seconds

            runs = runs_asked(_SYNCS)
            syncs(runs_asked(_WARM_UPS))
            few = syncs(runs)
            filler = f"SELECT pg_logical_emit_message(false, 'filler', repeat('x', {_STEP * points * 2}))"
            connection.execute(filler.encode())  # WAL for the points to lie in
            published = _points(pipeline, points, progress)
            syncs(runs_asked(_WARM_UPS))
            many = syncs(runs)
            size = _metadata_kb(pipeline)
    share = max(10, points // 10)
    return [
        Figure(
            what=f"sync() of one row, {points:,} points kept and as many batches published",
            peer="the same, with some twenty points",
            unit="s",
            ours=tuple(many),
            theirs=tuple(few),
            better="less",
            wanted=1 / _SLOWER_MAX,
            parts={"KB, the table's metadata file": size},
        ),
        Figure(
            what=f"a publication, the last {share:,} of {points:,}",
            peer=f"the first {share:,}",
            unit="s",
            ours=tuple(published[-share:]),
            theirs=tuple(published[:share]),
            better="less",
            wanted=1 / _SLOWER_MAX,
        ),
    ]


def _points(pipeline: Pipeline, count: int, progress: Progressing) -> list[float]:
    position, seconds = pipeline.position(), []
    name = LakeName(NAMESPACE, "orders")
    for i in range(count):
        started = time.monotonic()
        position = publish_by_hand(pipeline.lake, pipeline.name, name, position, position + _STEP)
        seconds.append(time.monotonic() - started)
        if i % 100 == 0:
            progress("ten_thousand_points_vs_few: points", i, count)
    return seconds


def publish_by_hand(
    lake: LakeSettings, pipeline: str, name: LakeName, start: int, end: int, files: Sequence[Path] = ()
) -> int:
    """Publish a batch that adds files to a table, without Spark; returns the lake's position.

    Args:
        start, end: the batch's positions.
        files: Parquet files to add.
    """
    point = Point(pipeline, end, f"{start:016X}-{end:016X}", "by hand", "batch", changed={str(name): 1})
    with open_catalog(lake) as catalog:
        reset_stage(catalog, [load_one(catalog, name)])
        table = load_one(catalog, name)
        before = table.metadata
        grown = with_files(before, [Location(f"file://{file}") for file in files])
        staged = catalog_metadata.ref(grown, MAIN) or 0
        metadata = catalog_metadata.with_ref(grown, STAGE, staged)
        metadata = catalog_metadata.with_summary(metadata, staged, {**point.summary, STEPS: "1"})
        metadata |= {
            "current-snapshot-id": before["current-snapshot-id"],
            "snapshot-log": before["snapshot-log"],
            "refs": {**metadata["refs"], MAIN: before["refs"][MAIN]},
        }
        catalog.move([catalog.prepared(table, metadata)])
    return publish_tables(lake, point, [name], start=start).position


def _metadata_kb(pipeline: Pipeline) -> float:
    with open_catalog(pipeline.lake) as catalog:
        location = catalog.pointer(LakeName(NAMESPACE, "orders")) or ""
    return Path(location.removeprefix("file:").replace("///", "/")).stat().st_size / 1e3
