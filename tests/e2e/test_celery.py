"""A real CeleryExecutor: two workers without a shared disk, the tasks of one batch on both, one is killed."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.infra.launch.folders import CHECKOUT
from slotlake.infra.local.object_store import LocalObjectStore
from tests.catalogs import postgres_uri
from tests.conftest import Database, fresh_database
from tests.e2e.airflow_workers import airflow_without_workers, until, until_ended
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.provider_packages import executor_packages
from tests.storage import moved_to
from tests.workers import Worker, needs_namespaces

pytestmark = [pytest.mark.timeout(900), pytest.mark.airflow, needs_namespaces]
LONG = pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
TABLES = ["orders", "lines"]


class CeleryWorker:
    """One of Airflow's workers, on a machine of its own."""

    def __init__(self, name: str, file: Path, environment: Mapping[str, str], folder: Path) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        command = ["-m", "airflow", "celery", "worker", "-c", "1", "-q", "default", "--skip-serve-logs"]
        options = ["--without-mingle", "--without-gossip", "-H", name]
        own = {
            "AIRFLOW_HOME": f"{tempfile.gettempdir()}/airflow",
            "AIRFLOW_CONFIG": str(file.with_name("airflow.cfg")),
        }
        machine = Worker(file, environment, name=name)
        self._process = machine.popen([sys.executable, *command, *options], own, self.log)

    def wait_ready(self) -> None:
        until(lambda: f"{self.name} ready" in self.log.read_text(errors="replace"), self.log.read_text)

    def kill(self) -> None:
        """End it as a machine ends whose power fails."""
        for pid in (*_descendants(self._process.pid), self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


def _descendants(pid: int) -> list[int]:
    done = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    children = [int(line) for line in done.stdout.split()]
    return [each for child in children for each in (child, *_descendants(child))]


@LONG
def test_a_worker_is_killed_and_another_goes_on(
    database: Database, pg: Any, object_store: LocalObjectStore, connect: str, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, v text); CREATE TABLE lines (id int PRIMARY KEY, v text);"
        "INSERT INTO orders SELECT g, 'v' || g FROM generate_series(1, 60000) g"
    )
    with ExitStack() as stack:
        catalog, broker = (stack.enter_context(fresh_database(pg)) for _ in range(2))
        place = f"{object_store.warehouse}-celery/{secrets.token_hex(4)}"
        shared = f"changelog: {{path: '{place}'}}\nstate: {{path: '{place}'}}\n"
        file = pipeline_file(
            tmp_path / "files",
            database,
            TABLES,
            uri=postgres_uri(catalog),
            extra=f"{shared}airflow: {{schedule: null, verify: manual, maintenance: null}}\n"
            "monitor: {schedule: null}\n",
        )
        moved_to(object_store, file)
        environment = _environment(broker, file, connect)
        client = stack.enter_context(airflow_without_workers(tmp_path / "home", file, environment))
        client.wait_dags(["cdc_bootstrap_shop", "cdc_sync_shop"])
        for dag in ("cdc_bootstrap_shop", "cdc_sync_shop"):
            client.pause(dag, False)
        first = CeleryWorker("worker-a", file, environment, tmp_path)
        stack.callback(first.kill)
        first.wait_ready()
        assert "slotlake: workers start warm" in first.log.read_text()
        run = client.trigger("cdc_bootstrap_shop")
        until_ended(client, "cdc_bootstrap_shop", run)
        # So many that Spark brings them into the lake: that takes seconds.
        database.execute("UPDATE orders SET v = 'new' WHERE id % 3 = 0; INSERT INTO lines VALUES (1, 'a')")
        run = client.trigger("cdc_sync_shop")

        def apply() -> dict[str, Any]:
            return client.tasks("cdc_sync_shop", run)["apply"]

        until(lambda: apply()["state"] == "running", lambda: client.reason("cdc_sync_shop", run))
        time.sleep(0.7)
        first.kill()
        second = CeleryWorker("worker-b", file, environment, tmp_path)
        stack.callback(second.kill)
        until_ended(client, "cdc_sync_shop", run)
        hosts = {name: task["hostname"] for name, task in client.tasks("cdc_sync_shop", run).items()}
        assert hosts["pull"] == "worker-a"
        assert {hosts[name] for name in ("apply", "publish", "confirm")} == {"worker-b"}
        assert apply()["try_number"] >= 2
        with Pipeline.open(file, remote=connect) as pipeline:
            assert_equal(database, pipeline, TABLES)


def _environment(broker: Database, file: Path, connect: str) -> dict[str, str]:
    uri = broker.server.url(broker.name).replace("postgresql://", "postgresql+psycopg2://", 1)
    paths = [str(CHECKOUT / "src"), str(CHECKOUT), str(executor_packages())]
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        "AIRFLOW__CELERY__BROKER_URL": f"sqla+{uri}",
        "AIRFLOW__CELERY__RESULT_BACKEND": f"db+{uri}",
        "AIRFLOW__CELERY__WORKER_ENABLE_REMOTE_CONTROL": "False",
        "AIRFLOW__CELERY__CELERY_CONFIG_OPTIONS": "slotlake.infra.airflow.celery_config.CONFIG",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
        "SLOTLAKE_PIPELINES": str(file),
        "SLOTLAKE_SPARK_REMOTE": connect,
        **{name: value for name, value in os.environ.items() if name.startswith("SPARK_CONNECT")},
    }
