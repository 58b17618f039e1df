"""last_update_vs_first: a table that is only updated, 500 micro-batches long, without `maintain`.

Each batch is a `sync` of a thousand updates, spread over a table of 200,000 rows, so that every batch meets
what all batches before it have written.  What is compared is the last tenth of the batches with the first,
each a mean, so that a batch that does more than its own work counts.
"""

from __future__ import annotations

import time
from statistics import fmean
from typing import TYPE_CHECKING, Any

import psycopg

from slotlake.bench.figures import Figure
from slotlake.bench.lakes import NAMESPACE, bench_pipeline
from slotlake.bench.workload import DATABASE, bench_folder, bench_server, make_table, rows_asked, runs_asked
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.server.source import connect

if TYPE_CHECKING:
    from slotlake.infra.pipeline import Pipeline
    from slotlake.infra.progress import Progressing

ROWS = 200_000
BATCHES, _BATCHES_SHORT = 500, 10
_CHANGES_MAX = 1000
_WARM_UPS = 10
_GROWS_MAX = 1.3


def last_update_vs_first(progress: Progressing) -> list[Figure]:
    """Seconds of a sync, the last fifty against the first fifty."""
    rows = rows_asked(ROWS)
    batches = BATCHES if rows == ROWS else _BATCHES_SHORT
    changes = min(_CHANGES_MAX, rows // 200)
    with bench_server() as server, bench_folder() as folder, connect(server.dsn(DATABASE)) as connection:
        make_table(connection, "stock", rows)
        make_table(connection, "warm", rows)
        with bench_pipeline(server, folder, ["stock", "warm"], progress) as pipeline:
            warm_ups = runs_asked(_WARM_UPS)
            for i in range(warm_ups):
                progress("last_update_vs_first: warming up", i + 1, warm_ups)
                _synced(pipeline, connection, "warm", i, changes)
            seconds = []
            for i in range(batches):
                progress("last_update_vs_first: batch", i + 1, batches)
                seconds.append(_synced(pipeline, connection, "stock", i, changes))
            files = _files(pipeline)
    some = batches // 10
    return [
        Figure(
            what=f"sync() of {changes:,} updates of {rows:,} rows, mean of the last {some} of {batches}",
            peer=f"the same, mean of the first {some}",
            unit="s",
            ours=(fmean(seconds[-some:]),),
            theirs=(fmean(seconds[:some]),),
            better="less",
            wanted=1 / _GROWS_MAX,
            parts={"s, the slowest": max(seconds), **files},
        )
    ]


def _synced(
    pipeline: Pipeline, connection: psycopg.Connection[Any], table: str, number: int, changes: int
) -> float:
    connection.execute(
        f"UPDATE {table} SET quantity = quantity + 1, note = note || '.' WHERE id IN (SELECT 1 + "
        f"(g::bigint * 7919 + {number}::bigint * 104729) % (SELECT max(id) FROM {table}) "
        f"FROM generate_series(1, {changes}) g)".encode()
    )
    started = time.monotonic()
    report = pipeline.sync()
    seconds = time.monotonic() - started
    if report.changes != changes:
        raise SlotlakeError(f"sync brought {report.changes} changes, not {changes}")
    return seconds


def _files(pipeline: Pipeline) -> dict[str, float]:
    table = f"lake.{NAMESPACE}.stock"
    query = f"SELECT count_if(content = 0), count_if(content <> 0) FROM {table}.files"
    [row] = pipeline.session.sql(query).collect()
    return {"data files at the end": float(row[0]), "deletion vectors": float(row[1])}
