"""lag_scheduled_s: commit to queryable when Airflow starts a micro-batch every ten seconds.

A real Airflow, a warm Spark and the demo's load, as in `slotlake demo`.  Heartbeats are committed from the
moment at which cdc_sync is switched on, so the first batch of fresh workers counts too. The independent
reader of lag_s says when it sees each of them.  Batches of four tasks, and of one task.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import psycopg
import yaml

from slotlake.bench.figures import Figure
from slotlake.bench.sync import bank, beats, pipeline_file, reading, seen_by, written
from slotlake.bench.workload import DATABASE, bench_folder, runs_asked
from slotlake.decoder.errors import SlotlakeError
from slotlake.infra.launch.folders import CHECKOUT
from slotlake.infra.local.airflow import LocalAirflow
from slotlake.infra.local.runtime import spark_runtime
from slotlake.infra.local.spark_connect import LocalSparkConnect

if TYPE_CHECKING:
    from slotlake.infra.local.airflow_client import AirflowClient
    from slotlake.infra.local.postgres import EmbeddedPostgres
    from slotlake.infra.progress import Progressing

SCHEDULE_SECONDS, WORST_SECONDS_MAX = 10, 12.0
_SECONDS = 120
_BOOTSTRAP, _SYNC = "cdc_bootstrap_bench", "cdc_sync_bench"


def lag_scheduled_s(progress: Progressing) -> list[Figure]:
    """The worst lag of a heartbeat beside the demo's load; with four tasks per batch, and with one."""
    with bank() as server:
        return [_figure(server, tasks, progress) for tasks in ("four", "one")]


def _figure(server: EmbeddedPostgres, tasks: str, progress: Progressing) -> Figure:
    with bench_folder() as folder:
        _empty(server)
        file = pipeline_file(server, folder)
        _configure(file, tasks)
        progress(f"lag_scheduled_s: airflow.tasks: {tasks}: starting Airflow and Spark", 0)
        with _airflow(folder, file) as client:
            _bootstrapped(client)
            progress(f"lag_scheduled_s: airflow.tasks: {tasks}: measuring", 0)
            with written(server), reading(folder) as reader:
                client.pause(_SYNC, False)
                sent = beats(server, runs_asked(_SECONDS), 0)
                seen = seen_by(reader, len(sent), lambda: _reasons(client))
            client.pause(_SYNC, True)
            return _lag_figure(tasks, sent, seen, _moments(client))


def _lag_figure(
    tasks: str, sent: dict[int, float], seen: dict[int, float], moments: dict[str, list[float]]
) -> Figure:
    lags = sorted(seen[number] - at for number, at in sent.items())
    first_seen = min(seen.values())  # of one batch the reader sees all heartbeats at once
    first = max(first_seen - at for number, at in sent.items() if seen[number] == first_seen)
    return Figure(
        what=f"the worst of {len(lags)} heartbeats beside pgbench; a batch of {tasks} "
        f"task{'s' if tasks == 'four' else ''} every {SCHEDULE_SECONDS} s",
        peer="limit",
        unit="s",
        ours=(lags[-1],),
        theirs=(WORST_SECONDS_MAX,),
        better="less",
        wanted=1.0,
        parts={
            "s, median": median(lags),
            "s, 99 %": lags[min(len(lags) - 1, int(len(lags) * 0.99))],
            "s, the worst of the first batch": first,
            **{f"s, {what}, median of {len(times)} runs": median(times) for what, times in moments.items()},
        },
        note="commit to read, by another process; a heartbeat waits for the next run, up to ten seconds",
    )


@contextmanager
def _airflow(folder: Path, file: Path) -> Iterator[AirflowClient]:
    """Spark Connect and Airflow, as the demo starts them."""
    connect = LocalSparkConnect(folder / "spark", spark_runtime(""), memory="1g", dies_with_parent=True)
    with connect:
        airflow = LocalAirflow(
            folder / "airflow",
            CHECKOUT / "dags",
            environment={"SLOTLAKE_PIPELINES": str(file), **connect.client_environment()},
            pools={"slotlake_bench": 1},
            parse_seconds=120,
            dies_with_parent=True,
        )
        try:
            yield airflow.start().wait_ready()
            airflow.stop()
        finally:
            airflow.remove()


def _bootstrapped(client: AirflowClient) -> None:
    client.wait_dags((_BOOTSTRAP, _SYNC))
    client.pause(_BOOTSTRAP, False)
    run = client.trigger(_BOOTSTRAP)
    if client.wait_run(_BOOTSTRAP, run, 300.0) != "success":
        raise SlotlakeError(f"{_BOOTSTRAP} failed", where=run, way_out=client.reason(_BOOTSTRAP, run))


def _reasons(client: AirflowClient) -> str:
    failed = [run["dag_run_id"] for run in client.runs(_SYNC) if run["state"] == "failed"]
    return "; ".join(client.reason(_SYNC, run) for run in failed) or "no run failed"


def _moments(client: AirflowClient) -> dict[str, list[float]]:
    """Seconds from the time at which each run should have begun to the beginnings and ends of its tasks."""
    moments: dict[str, list[float]] = {}
    for run in client.runs(_SYNC):
        if not run["end_date"]:
            continue
        due = datetime.fromisoformat(run["run_after"])
        times = {"run end": run["end_date"]}
        for name, task in client.tasks(_SYNC, run["dag_run_id"]).items():
            if task["state"] == "success":
                times |= {f"{name} start": task["start_date"], f"{name} end": task["end_date"]}
        for what, at in sorted(times.items(), key=lambda moment: str(moment[1])):
            moments.setdefault(what, []).append((datetime.fromisoformat(at) - due).total_seconds())
    return moments


def _configure(file: Path, tasks: str) -> None:
    contents = yaml.safe_load(file.read_text())
    airflow = {"schedule": SCHEDULE_SECONDS, "tasks": tasks, "verify": "manual", "maintenance": None}
    file.write_text(yaml.safe_dump({**contents, "airflow": airflow, "monitor": {"schedule": None}}))


def _empty(server: EmbeddedPostgres) -> None:
    """Remove what the measurement before has left: its heartbeats and its slot."""
    with psycopg.connect(server.dsn(DATABASE), autocommit=True) as connection:
        connection.execute("TRUNCATE heartbeat")
        connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
