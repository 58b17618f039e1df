"""`airflow.deadline` on a real scheduler: a run that is late is told of, in words and by callback."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psycopg
import pytest

from slotlake import Pipeline
from slotlake.infra.launch.folders import CHECKOUT
from slotlake.infra.local.airflow import LocalAirflow
from slotlake.infra.local.postgres import EmbeddedPostgres
from tests.e2e.airflow_stack import Stack

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it"),
]
FILE = """name: late
source: {{dsn: "{dsn}", publications: [late], slot: slotlake_late}}
lake: {{catalog: lake, uri: "sqlite:///lake.db", warehouse: "warehouse", namespace: late}}
airflow: {{schedule: null, tasks: one, verify: manual, deadline: 20s}}
monitor: {{schedule: null, on_warning: "tests.e2e.warned:note"}}
tables: {{public.orders: {{}}, public.log: {{}}}}
"""


@pytest.fixture(scope="module")
def stack(pg: EmbeddedPostgres, connect: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("airflow")
    file, warned = folder / "late.yaml", folder / "warned"
    file.write_text(FILE.format(dsn=pg.url("airflow_late")))
    with psycopg.connect(pg.dsn(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE airflow_late")
    airflow = LocalAirflow(
        folder / "home",
        CHECKOUT / "dags",
        environment={
            "SLOTLAKE_PIPELINES": str(file),
            "SLOTLAKE_SPARK_REMOTE": connect,
            "SLOTLAKE_TEST_WARNED": str(warned),
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            **{name: value for name, value in os.environ.items() if name.startswith("SPARK_CONNECT")},
        },
        pools={"slotlake_slotlake_late": 1},
        dies_with_parent=True,
    )
    with psycopg.connect(pg.dsn("airflow_late"), autocommit=True) as database:
        database.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, v text); CREATE TABLE log (id int, v text);"
            "INSERT INTO orders SELECT g, 'v' || g FROM generate_series(1, 100) g"
        )
        try:
            client = airflow.start().wait_ready()
            yield Stack("late", airflow, client, database, file, [pg.password], warned)
            airflow.stop()
        finally:
            airflow.remove()
            database.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                "WHERE database = current_database() AND NOT active"
            )


def test_a_run_that_is_late_is_told_of_and_goes_on(stack: Stack) -> None:
    stack.client.wait_dags([stack.dag("bootstrap"), stack.dag("sync")])
    for kind in ("bootstrap", "sync"):
        stack.client.pause(stack.dag(kind), False)
    stack.done("bootstrap")
    stack.database.execute("INSERT INTO orders VALUES (1000, 'in time')")
    stack.sync()
    stack.database.execute("INSERT INTO orders VALUES (1001, 'late')")
    with Pipeline.open(stack.file) as pipeline, pipeline.exclusively(60.0, step="a test"):
        assert not stack.warned.exists()  # the run before was in time
        run = stack.client.trigger(stack.dag("sync"))
        stack.until(stack.warned.exists, "Airflow calls")
    assert stack.ended("sync", run) == "success"
    text = stack.warned.read_text()
    print(text)
    assert f"pipeline late is late: run {run} of cdc_sync_late has not ended within 20 s" in text
    assert "of WAL behind the source" in text
    assert "slotlake_slotlake_late" in text
    logs = [path for path in (stack.airflow.folder / "logs").rglob("*") if path.is_file()]
    said = [path for path in logs if "pipeline late is late" in path.read_text(errors="replace")]
    assert said
    texts = [path.read_text(errors="replace") for path in logs]
    assert not any(password in text for text in texts for password in stack.passwords)
