"""verify_connections: what a second connection gains when all rows of one large table are compared.

Both sides are read: the source by SQL that hashes its rows, the lake by threads of this process.  With one
connection the server may use further processes for a query (max_parallel_workers_per_gather); with two it may
not, so it has one process for each.
"""

from __future__ import annotations

import os
from statistics import median
from typing import TYPE_CHECKING

from slotlake.bench.figures import PAIRS, Figure
from slotlake.bench.lakes import bench_pipeline
from slotlake.bench.workload import DATABASE, bench_folder, bench_server, make_table, rows_asked, runs_asked
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.server.source import connect

if TYPE_CHECKING:
    from slotlake.infra.pipeline import Pipeline
    from slotlake.infra.progress import Progressing

_ROWS = 5_000_000


def verify_connections(progress: Progressing) -> list[Figure]:
    """Seconds of a full verification over two connections, and over one."""
    rows, count = rows_asked(_ROWS), runs_asked(PAIRS)
    with bench_server() as server, bench_folder() as folder, connect(server.dsn(DATABASE)) as connection:
        progress("verify_connections: making the table", 0)
        make_table(connection, "orders", rows)
        connection.execute("VACUUM (ANALYZE) orders")
        with bench_pipeline(server, folder, ["orders"], progress) as pipeline:
            _seconds(pipeline, 2)  # loads the compiled code
            two, one, single = [], [], []
            for number in range(count):
                progress("verify_connections", number + 1, count)
                two.append(_seconds(pipeline, 2))
                one.append(_seconds(pipeline, 1))
                single.append(_seconds(pipeline, 1, source_load=1.0))
    return [
        Figure(
            what=f"all of {rows:,} rows compared over two connections",
            peer="over one connection",
            unit="s",
            ours=tuple(two),
            theirs=tuple(one),
            better="less",
            parts={"s, one connection, one process of the server": median(single)},
            note=f"{os.cpu_count()} cores; the comparison itself, without bringing the lake to the LSN",
        )
    ]


def _seconds(pipeline: Pipeline, connections: int, source_load: float | None = None) -> float:
    report = pipeline.verify(connections=connections, source_load=source_load)
    if not report.equal:
        raise SlotlakeError("the verification finds differences")
    return report.seconds
