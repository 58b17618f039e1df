"""Micro-batches in one task, and in a loop, on a real scheduler."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import psycopg
import pytest

from slotlake.infra.launch.folders import CHECKOUT
from slotlake.infra.local.airflow import LocalAirflow
from slotlake.infra.local.postgres import EmbeddedPostgres
from tests.e2e.airflow_stack import Stack

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it"),
]
RUN_SECONDS = 25
FILE = """name: {name}
source: {{dsn: "{dsn}", publications: [{name}], slot: slotlake_{name}}}
lake: {{catalog: lake, uri: "sqlite:///lake-{name}.db", warehouse: "warehouse", namespace: {name}}}
airflow: {{{airflow}}}
monitor: {{schedule: null}}
tables: {{public.orders: {{}}, public.log: {{}}}}
"""
CHOICES = {
    "one": "schedule: null, verify: every_batch, tasks: one",
    "loop": f"verify: manual, run: continuous, run_for: {RUN_SECONDS}s",
}


@pytest.fixture(scope="module")
def stack(pg: EmbeddedPostgres, connect: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("airflow")
    with psycopg.connect(pg.dsn(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE airflow_in_a_loop")
    (folder / "pipelines").mkdir()
    files = {name: folder / "pipelines" / f"{name}.yaml" for name in CHOICES}
    for name, file in files.items():
        file.write_text(FILE.format(name=name, dsn=pg.url("airflow_in_a_loop"), airflow=CHOICES[name]))
    airflow = LocalAirflow(
        folder / "home",
        CHECKOUT / "dags",
        environment={
            "SLOTLAKE_PIPELINES": str(folder / "pipelines"),
            "SLOTLAKE_SPARK_REMOTE": connect,
            **{name: value for name, value in os.environ.items() if name.startswith("SPARK_CONNECT")},
        },
        pools={f"slotlake_slotlake_{name}": 1 for name in files},
        dies_with_parent=True,
    )
    with psycopg.connect(pg.dsn("airflow_in_a_loop"), autocommit=True) as database:
        database.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, v text); CREATE TABLE log (id int, v text);"
            "INSERT INTO orders SELECT g, 'v' || g FROM generate_series(1, 100) g"
        )
        try:
            client = airflow.start().wait_ready()
            yield Stack("one", airflow, client, database, files["one"], [pg.password], folder / "warned")
            airflow.stop()
        finally:
            airflow.remove()
            database.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                "WHERE database = current_database() AND NOT active"
            )


@pytest.fixture(scope="module", params=["one", "loop"])
def bootstrapped(stack: Stack, request: pytest.FixtureRequest) -> Stack:
    """One of the pipelines, copied."""
    made = replace(stack, name=request.param, file=stack.file.with_name(f"{request.param}.yaml"))
    made.client.wait_dags([made.dag(kind) for kind in ("bootstrap", "sync", "verify")])
    for kind in ("bootstrap", "verify"):
        made.client.pause(made.dag(kind), False)
    made.done("bootstrap")
    return made


def test_a_micro_batch(bootstrapped: Stack) -> None:
    {"one": _in_one_task, "loop": _in_a_loop}[bootstrapped.name](bootstrapped)
    bootstrapped.client.pause(bootstrapped.dag("sync"), True)


def _in_one_task(stack: Stack) -> None:
    stack.client.pause(stack.dag("sync"), False)
    stack.database.execute("UPDATE orders SET v = 'one' WHERE id < 5")
    run = stack.sync()
    states = {name: task["state"] for name, task in stack.client.tasks(stack.dag("sync"), run).items()}
    assert states == {"sync": "success"}
    assert stack.equal()
    (event,) = stack.batch_events()
    report = stack.client.xcoms(stack.dag("sync"), run)["sync", "return_value"]
    extra = event["extra"]
    assert [extra[key] for key in ("start_lsn", "end_lsn", "batch", "changes", "tables")] == [
        *(report[key] for key in ("start_lsn", "lsn", "batch", "changes")),
        1,
    ]
    stack.until(lambda: stack.batch_events()[-1]["created_dagruns"] != [], "the event starts cdc_verify")
    stack.run_again("sync", run, ["sync"], attempt=2)
    assert stack.equal()
    stack.sync()
    assert len(stack.batch_events()) == 1  # nothing was published


def _in_a_loop(stack: Stack) -> None:
    dag = stack.dag("sync")
    stack.client.pause(dag, False)
    for number in range(3):
        stack.database.execute(f"INSERT INTO log VALUES ({number}, 'loop')")
        stack.database.execute(f"DELETE FROM orders WHERE id = {50 + number}")
        stack.until(stack.equal, "the lake has the change")
    (first,) = stack.client.runs(dag)
    assert first["state"] == "running"
    assert stack.result("verify")["equal"]  # it takes its turn
    stack.until(lambda: len(stack.client.runs(dag)) > 1, "the next run goes on")
    assert stack.client.run(dag, first["dag_run_id"])["state"] == "success"
    assert "transactions (public." in stack.client.log(dag, first["dag_run_id"], "run")
    assert len(stack.batch_events()) == 1
    _cleared_and_killed(stack, dag)


def _cleared_and_killed(stack: Stack, dag: str) -> None:
    second = stack.client.runs(dag)[-1]["dag_run_id"]
    stack.until(partial(_works, stack, dag, second), "the second run works")
    stack.client.clear(dag, second)
    stack.database.execute("INSERT INTO log VALUES (10, 'cleared')")
    stack.until(stack.equal, "the cleared run goes on")
    stack.until(partial(_works, stack, dag, second), "the cleared run works")
    for process in _pullers(stack):
        process.send_signal(signal.SIGKILL)
    stack.database.execute("INSERT INTO log VALUES (11, 'killed')")
    stack.until(stack.equal, "Airflow tries the killed task again")
    stack.client.pause(dag, True)
    stack.until(
        lambda: all(run["state"] in ("success", "failed") for run in stack.client.runs(dag)), "all runs end"
    )
    assert {run["state"] for run in stack.client.runs(dag)} == {"success"}


def _works(stack: Stack, dag: str, run: str) -> bool:
    return bool(stack.client.tasks(dag, run)["run"]["state"] == "running" and _pullers(stack))


def _pullers(stack: Stack) -> list[psutil.Process]:
    """The process that reads the pipeline's slot, by what `status` says of it."""
    from slotlake import Pipeline
    from slotlake.infra.source import standing_puller

    with Pipeline.open(Path(stack.file)) as pipeline:
        number = standing_puller.process_id(pipeline.file)
    return [] if number is None else [psutil.Process(number)]
