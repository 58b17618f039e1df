"""An asset for each table: which consumers run after a batch, what their events say; on a real scheduler."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from slotlake.infra.local.postgres import EmbeddedPostgres
from tests.e2e.airflow_small import bootstrapped, small_airflow
from tests.e2e.airflow_stack import Stack

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it"),
]
PIPELINES = {
    "four": "schedule: null, verify: manual",
    "one": "schedule: null, verify: manual, tasks: one",
    "loop": "verify: manual, run: continuous, run_for: 15s",
    "many": "schedule: null, verify: manual, tasks: one",
}
MANY = 130
CONSUMERS = """
from datetime import datetime

from airflow.sdk import DAG, Asset, task


WHOLE = Asset(name="slotlake_four", uri="slotlake://four")


@task(inlets=[WHOLE])
def look(*, triggering_asset_events=None, asset_state_store=None):
    extras = [event.extra for event in triggering_asset_events[WHOLE]]
    return {"extras": extras, "stored": asset_state_store[WHOLE].get("last_batch")}


@task
def note(*, triggering_asset_events=None):
    # By the asset: an event is listed by its alias, too.
    assets = [key for key in triggering_asset_events if isinstance(key, Asset)]
    return [event.extra for asset in assets for event in triggering_asset_events[asset]]


for pipeline in ("four", "one", "loop"):
    for table in ("orders", "log"):
        name, uri = f"slotlake_{pipeline}.public.{table}", f"slotlake://{pipeline}/public.{table}"
        with DAG(
            f"{pipeline}_{table}",
            schedule=[Asset(name=name, uri=uri)],
            start_date=datetime(2026, 1, 1),
            is_paused_upon_creation=False,
        ):
            note()
with DAG(
    "four_all",
    schedule=[WHOLE],
    start_date=datetime(2026, 1, 1),
    is_paused_upon_creation=False,
):
    look()
"""


@pytest.fixture(scope="module")
def stacks(
    pg: EmbeddedPostgres, connect: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Stack]]:
    folder = tmp_path_factory.mktemp("airflow")
    environment = {"SLOTLAKE_SPARK_REMOTE": connect}
    with small_airflow(pg, folder, PIPELINES, environment, dag_file=CONSUMERS) as made:
        made["four"].client.wait_dags(["four_orders", "four_all", "loop_log"])
        yield made


def _events(stack: Stack) -> dict[str, list[dict[str, Any]]]:
    """The extras of the events of a pipeline's DAG, by the asset's URI."""
    found: dict[str, list[dict[str, Any]]] = {}
    for event in stack.client.asset_events():
        if event["source_dag_id"] == stack.dag("sync"):
            found.setdefault(event["uri"], []).append(event["extra"])
    return found


def _runs(stack: Stack, dag: str) -> list[dict[str, Any]]:
    return stack.client.runs(f"{stack.name}_{dag}")


def _ran(stack: Stack, dag: str, number: int) -> None:
    def ended() -> bool:
        return [run["state"] for run in _runs(stack, dag)] == ["success"] * number

    stack.until(ended, f"{dag} has run {number} times")


@pytest.mark.parametrize("name", ["four", "one"])
def test_a_consumer_of_a_table_runs_when_that_table_changed_and_not_when_another_did(
    stacks: dict[str, Stack], name: str
) -> None:
    stack = bootstrapped(stacks[name])
    assert _events(stack) == {}  # a copy is no batch
    stack.database.execute("UPDATE orders SET v = 'changed' WHERE id <= 3")
    stack.sync()
    _ran(stack, "orders", 1)
    (extra,) = stack.client.xcoms(f"{name}_orders", _runs(stack, "orders")[0]["dag_run_id"])[
        "note", "return_value"
    ]
    assert (extra["table"], extra["changes"], extra["transactions"]) == ("public.orders", 3, 1)
    assert extra["oldest_commit"] == extra["newest_commit"] != ""
    stack.database.execute("INSERT INTO log VALUES (1, 'other'), (2, 'other')")
    stack.sync()
    _ran(stack, "log", 1)
    stack.database.execute("CREATE TABLE unseen (id int); INSERT INTO unseen VALUES (1)")
    before = stack.position()
    stack.sync()  # the server's position moved; no table of the pipeline changed
    assert stack.position() > before
    time.sleep(3)
    _ran(stack, "orders", 1)
    _ran(stack, "log", 1)
    events = _events(stack)
    assert {uri: len(extras) for uri, extras in events.items()} == {
        f"slotlake://{name}/": 2,
        f"slotlake://{name}/public.orders": 1,
        f"slotlake://{name}/public.log": 1,
    }
    assert [extra["changes"] for extra in events[f"slotlake://{name}/"]] == [3, 2]
    assert "other" not in json.dumps(events)


def test_the_store_of_the_pipelines_asset_has_the_newest_batch(stacks: dict[str, Stack]) -> None:
    stack = stacks["four"]
    _ran(stack, "all", 2)
    seen = stack.client.xcoms("four_all", _runs(stack, "all")[-1]["dag_run_id"])["look", "return_value"]
    assert seen["stored"] == seen["extras"][-1]
    assert (seen["stored"]["changes"], seen["stored"]["tables"]) == (2, 1)


def test_a_task_has_a_link_to_the_page_of_its_pipeline(stacks: dict[str, Stack]) -> None:
    stack = stacks["four"]
    dag = stack.dag("sync")
    run = stack.client.runs(dag)[0]["dag_run_id"]
    for task in ("pull", "publish"):
        links = stack.client.call("GET", f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}/links")
        assert links["extra_links"] == {"slotlake": f"/slotlake/dag/{dag}"}
    stack.client.call("GET", "/version")
    headers = {"Authorization": f"Bearer {stack.client._token}"}
    page, of_no_pipeline = (
        stack.client._send("GET", f"/slotlake/dag/{name}", None, headers, 30.0).decode()
        for name in (dag, "a_dag_of_others")
    )
    assert "four" in page
    assert "four" not in of_no_pipeline


def test_a_continuous_run_makes_one_event_per_table_when_it_ends(stacks: dict[str, Stack]) -> None:
    stack = bootstrapped(stacks["loop"])
    for number in range(3):
        stack.database.execute(f"UPDATE orders SET v = 'loop {number}' WHERE id = {number + 1}")
        stack.until(stack.equal, "the lake has the change")
    stack.until(lambda: len(stack.client.runs(stack.dag("sync"))) > 1, "the next run goes on")
    stack.client.pause(stack.dag("sync"), True)
    _ran(stack, "orders", 1)
    assert _runs(stack, "log") == []
    events = _events(stack)
    assert set(events) == {"slotlake://loop/", "slotlake://loop/public.orders"}
    ((extra,),) = (events["slotlake://loop/public.orders"],)
    assert (extra["changes"], extra["transactions"]) == (3, 3)
    assert extra["oldest_commit"] < extra["newest_commit"]


def test_a_batch_of_many_tables_makes_a_bounded_number_of_events(stacks: dict[str, Stack]) -> None:
    from slotlake.infra.airflow.assets import TABLES_MAX

    stack = stacks["many"]
    for number in range(MANY):
        stack.database.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY)")
    stack.database.execute("DROP PUBLICATION many; CREATE PUBLICATION many FOR ALL TABLES")
    bootstrapped(stack)
    stack.database.execute(";".join(f"INSERT INTO t{n} SELECT generate_series(0, {n})" for n in range(MANY)))
    run = stack.sync()
    query = {"limit": 100, "source_dag_id": stack.dag("sync")}
    answer = stack.client.call("GET", "/assets/events", **query)
    assert answer["total_entries"] == 1 + TABLES_MAX
    found = [
        *answer["asset_events"],
        *stack.client.call("GET", "/assets/events", offset=100, **query)["asset_events"],
    ]
    (whole,) = [event["extra"] for event in found if event["uri"] == "slotlake://many/"]
    assert (whole["tables"], whole["left_out_tables"]) == (MANY, MANY - TABLES_MAX)
    assert set(whole["left_out"]) == {f"public.t{number}" for number in range(MANY - TABLES_MAX)}
    report = stack.client.xcoms(stack.dag("sync"), run)["sync", "return_value"]
    assert len(json.dumps(report)) < 20_000
    written = sorted(datetime.fromisoformat(event["timestamp"]) for event in found)
    assert (written[-1] - written[0]).total_seconds() < 10, "the request that ends the task"
    print("seconds to write the events:", (written[-1] - written[0]).total_seconds())
