"""verify_load_percent: how much of the source a verification takes beside pgbench at full speed.

What the kernel counts for the server's processes that compute hashes for the verification, over the time of
the comparison, in percent of one core.  And how late batches are queryable with `slotlake run` beside pgbench
at the demo's rate, without verification and with it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import TYPE_CHECKING

import psycopg
import yaml

from slotlake.bench.figures import Figure
from slotlake.bench.sync import LINES, bank, ended, pgbench, pipeline_file, running, written
from slotlake.bench.workload import DATABASE, bench_folder, runs_asked
from slotlake.infra.pipeline import Pipeline

if TYPE_CHECKING:
    from slotlake.infra.local.postgres import EmbeddedPostgres
    from slotlake.infra.progress import Progressing

LOAD_PERCENT_MAX, SHARE = 10.0, 0.1
_RUNS, _SECONDS, _BATCHES = 5, 60, 3
_SAMPLE_SECONDS = 0.02
_AT_WORK = (
    "SELECT pid FROM pg_stat_activity WHERE query LIKE '%hashtextextended%' AND pid <> pg_backend_pid()"
)
_VERIFY = {"changed": "every_batch", "full_within": 3600, "source_load": SHARE}


def verify_load_percent(progress: Progressing) -> list[Figure]:
    """Share of one core of the source, by scope; and the lag of batches without and with verification."""
    with bank() as server, bench_folder() as folder:
        file = pipeline_file(server, folder)
        _configure(file, _VERIFY)
        with Pipeline.open(file) as pipeline:
            pipeline.init(progress=progress)
            with ended(pgbench(server, "--no-vacuum", "--client=4", "--jobs=1", "--time=3600")):
                figures = [
                    _load_figure(server, pipeline, scope, progress)
                    for scope in ("changed", "rolling", "full")
                ]
        figures.append(_lag_figure(server, file, progress))
        return figures


def _load_figure(server: EmbeddedPostgres, pipeline: Pipeline, scope: str, progress: Progressing) -> Figure:
    count = runs_asked(_RUNS) if scope != "full" else 1
    loads, rows = [], 0
    for number in range(count):
        progress(f"verify_load_percent: {scope}", number + 1, count)
        load, compared = _load(server, pipeline, scope)
        loads.append(load)
        rows += compared
    return Figure(
        what=f"{scope} rows compared beside pgbench at full speed, {rows:,} rows in {count} verifications",
        peer="limit",
        unit="% of a core of the source",
        ours=tuple(loads),
        theirs=(LOAD_PERCENT_MAX,) * count,
        better="less",
        wanted=1.0,
        note=f"source_load: {SHARE:g}; from the first query to the rest after the last one",
    )


def _load(server: EmbeddedPostgres, pipeline: Pipeline, scope: str) -> tuple[float, int]:
    """Percent of a core that the server's processes took, and how many rows were compared."""
    cpu: dict[int, tuple[float, float]] = {}
    stop = Event()
    thread = Thread(target=_sample, args=(server.dsn(DATABASE), cpu, stop))
    thread.start()
    try:
        report = pipeline.verify(scope, source_load=SHARE)
    finally:
        stop.set()
        thread.join()
    used = sum(last - first for first, last in cpu.values())
    rest = (report.source_seconds or 0.0) / SHARE  # of a short one, the last rest is not waited for
    rows = sum(table.source_rows for table in report.tables.values())
    return max(0.001, 100 * used / max(report.seconds, rest, 0.001)), rows


def _sample(dsn: str, cpu: dict[int, tuple[float, float]], stop: Event) -> None:
    """Note the first and the last CPU time that was seen of each process that computes hashes."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        while not stop.wait(_SAMPLE_SECONDS):
            at_work = [int(pid) for (pid,) in connection.execute(_AT_WORK).fetchall()]
            for pid in {*at_work, *cpu}:
                spent = _cpu_seconds(pid)
                if spent is not None:  # it had done little before its first hash
                    cpu[pid] = (cpu.get(pid, (0.0, 0.0))[0], spent)


def _cpu_seconds(pid: int) -> float | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _lag_figure(server: EmbeddedPostgres, file: Path, progress: Progressing) -> Figure:
    """The lag of batches with verification, against that without, each for the same time."""
    lags: dict[bool, list[float]] = {}
    for verified in (False, True):
        _configure(file, _VERIFY if verified else {})
        progress(f"verify_load_percent: lag {'with' if verified else 'without'} verification", 0)
        with written(server), running(file):
            time.sleep(runs_asked(_SECONDS) + 20)
        lines = map(json.loads, (file.parent / LINES).read_text().splitlines())
        batches = [line["lag_seconds"] for line in lines if line["transactions"]]
        lags[verified] = batches[_BATCHES:]
    count = min(map(len, lags.values()))
    return Figure(
        what="lag of a batch of slotlake run with verify.changed: every_batch, beside pgbench",
        peer="without verification",
        unit="s",
        ours=tuple(lags[True][:count]),
        theirs=tuple(lags[False][:count]),
        better="less",
        parts={f"s, median {name}": median(lags[key]) for key, name in ((False, "without"), (True, "with"))},
    )


def _configure(file: Path, verify: dict[str, object]) -> None:
    contents = yaml.safe_load(file.read_text())
    contents.pop("verify", None)
    file.write_text(yaml.safe_dump({**contents, **({"verify": verify} if verify else {})}))
