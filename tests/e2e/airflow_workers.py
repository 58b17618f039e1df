"""An Airflow whose tasks run elsewhere, for tests of its executors."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.infra.launch.folders import CHECKOUT
from slotlake.infra.local.airflow import LocalAirflow
from slotlake.infra.local.airflow_client import AirflowClient

_SECONDS_MAX = 240.0


@contextmanager
def airflow_without_workers(
    folder: Path, file: Path, environment: Mapping[str, str]
) -> Iterator[AirflowClient]:
    """Scheduler, DAG processor and API server; the environment says which executor.

    Args:
        folder: its AIRFLOW_HOME; a copy of its airflow.cfg lies next to the pipeline file.
        file: the pipeline file, whose pool is made.
        environment: variables of its processes.
    """
    pool = load_pipeline(file).pool
    airflow = LocalAirflow(
        folder, CHECKOUT / "dags", environment=environment, pools={pool: 1}, dies_with_parent=True
    )
    try:
        client = airflow.start().wait_ready()
        shutil.copy(folder / "airflow.cfg", file.parent)
        yield client
    finally:
        airflow.remove()


def until(true: Callable[[], bool], why_not: Callable[[], str]) -> None:
    """Wait until something is so.

    Args:
        true: says whether it is.
        why_not: what the test says if it never is.
    """
    give_up = time.monotonic() + _SECONDS_MAX
    while not true():
        assert time.monotonic() < give_up, why_not()
        time.sleep(0.2)


def until_ended(
    client: AirflowClient, dag: str, run: str, why_not: Callable[[], str] = lambda: ""
) -> dict[str, dict[str, Any]]:
    """Wait for the end of a run, which must succeed; return its tasks.

    Args:
        client: of Airflow.
        dag: the DAG.
        run: its run.
        why_not: more to say when it does not end.
    """
    until(
        lambda: client.run(dag, run)["state"] in ("success", "failed"),
        lambda: f"{client.tasks(dag, run)}\n{why_not()}",
    )
    assert client.run(dag, run)["state"] == "success", client.reason(dag, run) + why_not()
    return client.tasks(dag, run)
