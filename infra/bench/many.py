"""ten_of_a_thousand_vs_ten: what tables that a batch does not touch add to its cost.

Two pipelines read the same ten tables' changes, one of a thousand tables and one of these ten, in one Spark.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from decoder.errors import SlotlakeError
from decoder.source import connect
from infra.bench.figures import Figure, in_turns
from infra.bench.lakes import bench_pipeline
from infra.bench.workload import COLUMNS, DATABASE, bench_folder, bench_server, rows_asked, runs_asked

if TYPE_CHECKING:
    from infra.output import Progressing
    from infra.pipeline import Pipeline

ROWS = 100
TABLES, _TABLES_SHORT, TOUCHED = 1000, 20, 10
_WARM_UPS, _RUNS = 3, 7
_SLOWER_MAX = 1.2


def ten_of_a_thousand_vs_ten(progress: Progressing) -> list[Figure]:
    """One row changed in each of ten tables, synced by either pipeline, in turns."""
    count = TABLES if rows_asked(ROWS) == ROWS else _TABLES_SHORT
    names = [f"t{i}" for i in range(1, count + 1)]
    with bench_server() as server, bench_folder() as folder, connect(server.dsn(DATABASE)) as connection:
        progress("ten_of_a_thousand_vs_ten: making tables", 0)
        for name in names:
            connection.execute(f"CREATE TABLE {name} ({COLUMNS})".encode())
            connection.execute(
                f"INSERT INTO {name} (id, quantity) SELECT i, 0 FROM generate_series(1, {ROWS}) i".encode()
            )
        change = ";".join(
            f"UPDATE {name} SET quantity = quantity + 1 WHERE id = 5" for name in names[:TOUCHED]
        )
        with (
            bench_pipeline(server, folder, names[:TOUCHED], progress, suffix="_few") as few,
            bench_pipeline(server, folder, names, progress, suffix="_many") as many,
        ):

            def of_many() -> float:
                connection.execute(change.encode())
                return _synced(many)

            for i in range(runs_asked(_WARM_UPS)):
                progress("ten_of_a_thousand_vs_ten: warming up", i + 1)
                in_turns(of_many, lambda: _synced(few), 1)
            progress("ten_of_a_thousand_vs_ten: pairs", 0)
            seconds = in_turns(of_many, lambda: _synced(few), runs_asked(_RUNS))
    return [
        Figure(
            what=f"sync() of one row in each of ten tables, in a pipeline of {count:,}",
            peer="the same in a pipeline of ten",
            unit="s",
            ours=tuple(mine for mine, _ in seconds),
            theirs=tuple(other for _, other in seconds),
            better="less",
            wanted=1 / _SLOWER_MAX,
        )
    ]


def _synced(pipeline: Pipeline) -> float:
    started = time.monotonic()
    report = pipeline.sync()
    if report.changes != TOUCHED:
        raise SlotlakeError(f"sync brought {report.changes} changes, not {TOUCHED}")
    return time.monotonic() - started
