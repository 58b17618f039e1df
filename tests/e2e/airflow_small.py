"""A real Airflow with the DAGs of small pipelines, and with DAG files of a test."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg

from slotlake.infra.local.airflow import LocalAirflow
from slotlake.infra.local.postgres import EmbeddedPostgres
from tests.e2e.airflow_stack import Stack

FILE = """name: {name}
source: {{dsn: "{dsn}", publications: [{name}], slot: slotlake_{name}}}
lake: {{catalog: lake, uri: "sqlite:///lake-{name}.db", warehouse: "warehouse", namespace: {name}}}
airflow: {{{airflow}}}
monitor: {{schedule: null}}
"""


@contextmanager
def small_airflow(
    pg: EmbeddedPostgres,
    folder: Path,
    pipelines: Mapping[str, str],
    environment: Mapping[str, str],
    *,
    dag_file: str = "",
) -> Iterator[dict[str, Stack]]:
    """Start it; each pipeline has a database of its own with ``orders`` and ``log``, and publishes them.

    Args:
        pg: the source's server.
        folder: for all files.
        pipelines: name → the section ``airflow`` of its file.
        environment: of all parts of Airflow.
        dag_file: a further DAG file.
    """
    for name in ("pipelines", "dags"):
        (folder / name).mkdir()
    (folder / "dags" / "slotlake_dags.py").write_text("from slotlake.dags import *  # DAGs for Airflow\n")
    if dag_file:
        (folder / "dags" / "of_the_test.py").write_text(dag_file)
    files = {name: folder / "pipelines" / f"{name}.yaml" for name in pipelines}
    databases = {name: _database(pg, name) for name in pipelines}
    for name, file in files.items():
        text = FILE.format(name=name, dsn=pg.url(f"airflow_{name}"), airflow=pipelines[name])
        file.write_text(text)
    airflow = LocalAirflow(
        folder / "home",
        folder / "dags",
        environment={
            "SLOTLAKE_PIPELINES": str(folder / "pipelines"),
            **{name: value for name, value in os.environ.items() if name.startswith("SPARK_CONNECT")},
            **environment,
        },
        pools={f"slotlake_slotlake_{name}": 1 for name in files},
        dies_with_parent=True,
    )
    try:
        client = airflow.start().wait_ready()
        yield {
            name: Stack(name, airflow, client, databases[name], file, [pg.password], folder / "warned")
            for name, file in files.items()
        }
        airflow.stop()
    finally:
        airflow.remove()
        for database in databases.values():
            database.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                "WHERE database = current_database() AND NOT active"
            )
            database.close()


def bootstrapped(stack: Stack) -> Stack:
    """Copy the tables of a pipeline, and let its micro-batches go."""
    stack.client.wait_dags([stack.dag(kind) for kind in ("bootstrap", "sync")])
    stack.client.pause(stack.dag("bootstrap"), False)
    stack.done("bootstrap")
    stack.client.pause(stack.dag("sync"), False)
    return stack


def _database(pg: EmbeddedPostgres, name: str) -> psycopg.Connection[tuple[object, ...]]:
    with psycopg.connect(pg.dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE airflow_{name}")
    database = psycopg.connect(pg.dsn(f"airflow_{name}"), autocommit=True)
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, v text); CREATE TABLE log (id int, v text)")
    database.execute(f"CREATE PUBLICATION {name} FOR TABLE orders, log")
    database.execute("INSERT INTO orders SELECT g, 'v' || g FROM generate_series(1, 100) g")
    return database
