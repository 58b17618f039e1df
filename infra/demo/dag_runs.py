"""The DAG runs of the demo: waiting for them, and where the lake is meanwhile."""

from __future__ import annotations

import time
from typing import Any

from slotlake.decoder.errors import SetupError
from slotlake.decoder.lsn import format_lsn
from slotlake.infra.config.pipeline_file import PipelineFile
from slotlake.infra.demo.screen import Step
from slotlake.infra.local.airflow_client import AirflowClient

SYNC = "cdc_sync_demo"


def lake_of(pipeline: PipelineFile) -> Any:
    """Return the settings of a pipeline's lake."""
    from slotlake.spark.lake import LakeSettings

    lake = pipeline.lake
    return LakeSettings(
        lake.catalog,
        pipeline.lake_uri(),
        pipeline.warehouse(),
        lake.namespace,
        storage=pipeline.lake_storage(),
        exchange=pipeline.state_dir / "exchange",
    )


def wait_run(client: AirflowClient, dag: str, run: str, step: Step) -> None:
    """Wait for the success of a DAG run, and show the states of its tasks.

    Raises:
        SetupError: the run failed; the message says why.
    """
    while (state := client.run(dag, run)["state"]) not in ("success", "failed"):
        tasks = client.tasks(dag, run)
        step.show(", ".join(f"{name} {task['state'] or 'waits'}" for name, task in tasks.items()))
        time.sleep(0.5)
    if state == "failed":
        raise SetupError(f"{dag} failed", where=run, way_out=client.reason(dag, run))


def show_position(client: AirflowClient, pipeline: PipelineFile, step: Step) -> int:
    """Show and return the lake's position.

    Args:
        pipeline: says where the lake is.

    Raises:
        SetupError: a run of cdc_sync failed; the message says why.
    """
    from slotlake.spark.read.point import ReadPoint

    for run in client.runs(SYNC):
        if run["state"] == "failed":
            reason = client.reason(SYNC, run["dag_run_id"])
            raise SetupError(f"{SYNC} failed", where=run["dag_run_id"], way_out=reason)
    read_point = ReadPoint.latest(lake_of(pipeline))
    rows = [row for row in read_point.commits() if row["transactions"]]
    changes = sum(row["changes"] for row in rows)
    step.show(f"{len(rows)} batches, {changes:,} changes, the lake is at {format_lsn(read_point.position)}")
    return read_point.position


def sync_seconds(client: AirflowClient) -> float:
    """Return the seconds that pull, apply and publish worked in all runs with a batch."""
    total = 0.0
    for run in client.runs(SYNC):
        tasks = client.tasks(SYNC, run["dag_run_id"])
        if tasks["publish"]["state"] == "success":
            total += sum(tasks[name]["duration"] or 0.0 for name in ("pull", "apply", "publish"))
    return total
