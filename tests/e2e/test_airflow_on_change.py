"""`airflow.schedule: on_change` on a real scheduler with a real triggerer: what wakes, and how often."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

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
NAMES = ("first", "second")
IDLE_SECONDS = 25.0
FILE = """name: {name}
source: {{dsn: "{dsn}", publications: [{name}], slot: slotlake_{name}}}
lake: {{catalog: lake, uri: "sqlite:///lake-{name}.db", warehouse: "warehouse", namespace: {name}}}
airflow: {{schedule: on_change, tasks: one, verify: manual}}
monitor: {{schedule: null}}
tables: {{public.orders: {{}}, public.log: {{}}}}
"""


@pytest.fixture(scope="module")
def stack(pg: EmbeddedPostgres, connect: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("airflow")
    (folder / "pipelines").mkdir()
    files = {name: folder / "pipelines" / f"{name}.yaml" for name in NAMES}
    with psycopg.connect(pg.dsn(), autocommit=True) as admin:
        for name, file in files.items():
            admin.execute(f"CREATE DATABASE airflow_{name}")
            file.write_text(FILE.format(name=name, dsn=pg.url(f"airflow_{name}")))
    airflow = LocalAirflow(
        folder / "home",
        CHECKOUT / "dags",
        environment={
            "SLOTLAKE_PIPELINES": str(folder / "pipelines"),
            "SLOTLAKE_SPARK_REMOTE": connect,
            **{name: value for name, value in os.environ.items() if name.startswith("SPARK_CONNECT")},
        },
        pools={f"slotlake_slotlake_{name}": 1 for name in files},
        parse_seconds=5,
        dies_with_parent=True,
        triggerer=True,
    )
    for name in NAMES:
        _make_tables(pg, name)
    with psycopg.connect(pg.dsn("airflow_first"), autocommit=True) as database:
        try:
            client = airflow.start().wait_ready()
            yield Stack("first", airflow, client, database, files["first"], [pg.password], folder / "warned")
            airflow.stop()
        finally:
            airflow.remove()
            _drop_slots(pg)


def _make_tables(pg: EmbeddedPostgres, name: str) -> None:
    with psycopg.connect(pg.dsn(f"airflow_{name}"), autocommit=True) as database:
        database.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, v text); CREATE TABLE log (id int, v text);"
            "CREATE TABLE private (id int);"
            "INSERT INTO orders SELECT g, 'v' || g FROM generate_series(1, 100) g"
        )


def _drop_slots(pg: EmbeddedPostgres) -> None:
    for name in NAMES:
        with psycopg.connect(pg.dsn(f"airflow_{name}"), autocommit=True) as database:
            database.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                "WHERE database = current_database() AND NOT active"
            )


def test_changes_wake_the_dag_and_nothing_else_does(stack: Stack, pg: EmbeddedPostgres) -> None:
    for name in NAMES:
        other = replace(stack, name=name, file=stack.file.with_name(f"{name}.yaml"))
        stack.client.wait_dags([other.dag("bootstrap"), other.dag("sync")])
        stack.client.pause(other.dag("bootstrap"), False)
        other.done("bootstrap")
        stack.client.pause(other.dag("sync"), False)
    stack.database.execute("INSERT INTO orders VALUES (1000, 'first')")
    stack.until(stack.equal, "the first change wakes the DAG")
    _settle(stack)
    _latency(stack)
    _a_burst(stack)
    _changes_during_runs(stack)
    _nothing_to_do(stack, pg)
    _airflow_starts_again(stack)
    _no_secret(stack)


def _runs(stack: Stack) -> list[dict[str, Any]]:
    return stack.client.runs(stack.dag("sync"))


def _ended(stack: Stack) -> bool:
    return all(run["state"] in ("success", "failed") for run in _runs(stack))


def _settle(stack: Stack) -> int:
    """Wait until no run has come for a while; how many there were until then."""
    before, since = -1, time.monotonic()
    while time.monotonic() - since < 8.0:
        now = len(_runs(stack)) if _ended(stack) else -1
        if now != before:
            before, since = now, time.monotonic()
        time.sleep(0.3)
    return before


def _latency(stack: Stack) -> None:
    """Print the seconds from a commit to the start of its run, and to the lake."""
    found = []
    for number in range(6):
        before = _settle(stack)
        stack.database.execute(f"INSERT INTO log VALUES ({number}, 'one')")
        committed = datetime.now(UTC)
        stack.until(stack.equal, "the lake has the change")
        queryable = (datetime.now(UTC) - committed).total_seconds()
        run = _runs(stack)[before]
        queued = (datetime.fromisoformat(run["queued_at"]) - committed).total_seconds()
        began = (datetime.fromisoformat(run["start_date"]) - committed).total_seconds()
        found.append((round(queued, 2), round(began, 2), round(queryable, 2)))
    print("seconds from commit to run queued, run started, lake seen:", found)
    assert sorted(began for _, began, _ in found)[3] < 20.0


def _a_burst(stack: Stack) -> None:
    before = _settle(stack)
    # A hundred transactions by the server itself: sent one by one they last for seconds on a busy machine.
    stack.database.execute(
        "DO $$BEGIN FOR i IN 1..100 LOOP INSERT INTO log VALUES (i, 'burst'); COMMIT; END LOOP; END$$"
    )
    stack.until(stack.equal, "the lake has the burst")
    assert _settle(stack) == before + 1


def _changes_during_runs(stack: Stack) -> None:
    before = _settle(stack)
    stack.database.execute("INSERT INTO log VALUES (0, 'wakes')")
    stack.until(lambda: len(_runs(stack)) > before, "a run comes")
    waiting = 0
    while not _ended(stack):
        stack.database.execute("INSERT INTO log VALUES (1, 'meanwhile')")
        waiting = max(waiting, sum(run["state"] == "queued" for run in _runs(stack)))
        if len(_runs(stack)) > before + 1:
            break
        time.sleep(0.2)
    stack.until(stack.equal, "the lake has the changes")
    assert waiting <= 1
    assert _settle(stack) <= before + 3


def _nothing_to_do(stack: Stack, pg: EmbeddedPostgres) -> None:
    """An idle source: what other databases, tables that are not published, and checkpoints write."""
    before = _settle(stack)
    others = len(stack.client.runs("cdc_sync_second"))
    give_up = time.monotonic() + IDLE_SECONDS
    with psycopg.connect(pg.dsn("airflow_second"), autocommit=True) as second:
        while time.monotonic() < give_up:
            second.execute("INSERT INTO private VALUES (1); CHECKPOINT")
            stack.database.execute("INSERT INTO private VALUES (1)")
            time.sleep(0.5)
    assert len(_runs(stack)) == before
    assert len(stack.client.runs("cdc_sync_second")) == others


def _airflow_starts_again(stack: Stack) -> None:
    before = _settle(stack)
    stack.airflow.stop()
    stack.database.execute("INSERT INTO log VALUES (1, 'while Airflow was away')")
    stack.client = stack.airflow.start().wait_ready()
    stack.until(stack.equal, "the change wakes the DAG")
    assert _settle(stack) == before + 1


def _no_secret(stack: Stack) -> None:
    home = stack.airflow.folder
    logs = [home / "triggerer.log", *[path for path in (home / "logs").rglob("*") if path.is_file()]]
    assert (home / "triggerer.log").stat().st_size > 0
    for path in logs:
        text = path.read_text(errors="replace")
        assert not any(password in text for password in stack.passwords), path
    blocked = re.findall(r"thread was blocked for ([\d.]+) s", (home / "triggerer.log").read_text())
    assert all(float(seconds) < 1.0 for seconds in blocked), blocked
    with psycopg.connect(stack.airflow.metadata.url()) as metadata:
        stored = metadata.execute("SELECT data::text FROM serialized_dag").fetchall()
    dags = "".join(str(row[0]) for row in stored)
    assert "SourceTrigger" in dags
    assert not any(password in dags for password in stack.passwords)
