"""one_row_sync_s: what a micro-batch costs when it is as small as it can be and Spark is warm."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any

import psycopg

from slotlake.bench.figures import Figure
from slotlake.bench.lakes import bench_pipeline
from slotlake.bench.workload import DATABASE, bench_folder, bench_server, make_table, rows_asked, runs_asked
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.server.source import connect

if TYPE_CHECKING:
    from slotlake.infra.pipeline import Pipeline
    from slotlake.infra.progress import Progressing
    from slotlake.infra.reports import SyncReport

TABLES = ("one", "two", "three", "four")
ROWS = 10_000
SECONDS_MAX = 2.5
_WARM_UPS, _RUNS = 8, 15


def one_row_sync_s(progress: Progressing) -> list[Figure]:
    """One row changed in one table of four, and one row in each of the four."""
    with bench_server() as server, bench_folder() as folder, connect(server.dsn(DATABASE)) as connection:
        for table in TABLES:
            make_table(connection, table, rows_asked(ROWS))
        with bench_pipeline(server, folder, TABLES, progress) as pipeline:
            warm_ups = runs_asked(_WARM_UPS)
            for i in range(warm_ups):
                progress("one_row_sync_s: warming up", i + 1, warm_ups)
                _synced(pipeline, connection, TABLES[:1])
            return [_figure(pipeline, connection, changed, progress) for changed in (TABLES[:1], TABLES)]


def _figure(
    pipeline: Pipeline, connection: psycopg.Connection[Any], changed: tuple[str, ...], progress: Progressing
) -> Figure:
    what = "one row in one table of four" if len(changed) == 1 else "one row in each of four tables"
    runs: list[tuple[float, SyncReport]] = []
    count = runs_asked(_RUNS)
    for i in range(count):
        progress(f"one_row_sync_s: {what}", i + 1, count)
        runs.append(_synced(pipeline, connection, changed))
    steps = {step for _, report in runs for step in report.seconds_by_step}
    parts = {
        f"s, {step}": median(r.seconds_by_step.get(step, 0.0) for _, r in runs) for step in sorted(steps)
    }
    return Figure(
        what=f"warm sync() of {what}",
        peer="limit",
        unit="s",
        ours=tuple(seconds for seconds, _ in runs),
        theirs=(SECONDS_MAX,) * count,
        better="less",
        aim=1.0 if len(changed) == 1 else None,
        parts=parts,
        note="the whole call, confirming included; the row is queryable before that",
    )


def _synced(
    pipeline: Pipeline, connection: psycopg.Connection[Any], changed: tuple[str, ...]
) -> tuple[float, SyncReport]:
    for table in changed:
        connection.execute(f"UPDATE {table} SET quantity = quantity + 1 WHERE id = 500".encode())
    started = time.monotonic()
    report = pipeline.sync()
    seconds = time.monotonic() - started
    if report.changes != len(changed):
        raise SlotlakeError(f"sync brought {report.changes} changes, not {len(changed)}")
    return seconds, report
