"""query_s: `slotlake query` as a person calls it, from the start of the process to its end."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from slotlake.bench.figures import Figure
from slotlake.bench.lakes import bench_pipeline
from slotlake.bench.workload import DATABASE, bench_folder, bench_server, make_table, rows_asked, runs_asked
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.server.source import connect

if TYPE_CHECKING:
    from slotlake.infra.progress import Progressing

SECONDS_MAX = 1.5
LARGE_ROWS, SMALL_ROWS = 5_000_000, 1000
_UPDATED_PART = 50  # one row of so many is updated after the copy: the table has deletion vectors
_RUNS = 5
# What is asked, and the rows of the answer; the same in DuckDB and in Spark SQL.
_STATEMENTS = {
    "count(*) of {rows} rows": "SELECT count(*) FROM {table}",
    "a sum by group of {rows} rows": "SELECT paid, sum(price) AS s FROM {table} GROUP BY paid ORDER BY paid",
    "one row of {rows} by its key": "SELECT * FROM {table} WHERE id = 500",
}


def query_s(progress: Progressing) -> list[Figure]:
    """Cold queries of a small and a large table by DuckDB, against the limit and against Spark."""
    rows = {"small": SMALL_ROWS, "large": rows_asked(LARGE_ROWS)}
    figures: list[Figure] = []
    with bench_server() as server, bench_folder() as folder, connect(server.dsn(DATABASE)) as connection:
        for table, count in rows.items():
            make_table(connection, table, count)
        with bench_pipeline(server, folder, list(rows), progress) as pipeline:
            for table in rows:
                update = f"UPDATE {table} SET quantity = quantity + 1 WHERE id % {_UPDATED_PART} = 7"
                connection.execute(update.encode())
            pipeline.sync()
            file = pipeline.file.path
        for table, count in rows.items():
            for what, statement in _STATEMENTS.items():
                progress(f"query_s: {what.format(rows=count)}", len(figures) + 1, 2 * len(_STATEMENTS))
                figures.append(_figure(file, what.format(rows=f"{count:,}"), statement.format(table=table)))
    return figures


def _figure(file: Path, what: str, statement: str) -> Figure:
    _seconds(file, statement, "duckdb")  # files of the programs come from the disk only once
    before = _processor_seconds()
    ours = [_seconds(file, statement, "duckdb") for _ in range(runs_asked(_RUNS))]
    processor_seconds = (_processor_seconds() - before) / len(ours)
    by_spark, answer = _seconds(file, statement, "spark")
    if any(rows != answer for _, rows in ours):
        raise SlotlakeError(f"DuckDB and Spark answer differently: {statement}")
    return Figure(
        what=f"slotlake query, cold: {what}",
        peer="limit",
        unit="s",
        ours=tuple(seconds for seconds, _ in ours),
        theirs=(SECONDS_MAX,) * len(ours),
        better="less",
        wanted=1.0,
        parts={"s of CPU time": processor_seconds, "s, with --engine spark": by_spark},
    )


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _seconds(file: Path, statement: str, engine: str) -> tuple[float, object]:
    """Seconds of the whole command, and the rows that it prints."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "slotlake", "query", str(file), statement, "--engine", engine, "--json"],
        check=True,
        capture_output=True,
    )
    seconds = time.monotonic() - started
    return seconds, json.loads(done.stdout)["rows"]
