"""Lineage as Airflow's OpenLineage provider writes it to a file, from a real scheduler."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slotlake.infra.launch.folders import CHECKOUT
from slotlake.infra.local.postgres import EmbeddedPostgres
from tests.e2e.airflow_small import bootstrapped, small_airflow
from tests.e2e.airflow_stack import Stack
from tests.provider_packages import openlineage_packages

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it"),
]
PIPELINES = {
    "traced": "schedule: null, verify: manual",
    "tracedone": "schedule: null, verify: manual, tasks: one",
}


@pytest.fixture(scope="module")
def events_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lineage") / "events.json"


@pytest.fixture(scope="module")
def stacks(
    pg: EmbeddedPostgres, connect: str, events_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Stack]]:
    transport = {"type": "file", "log_file_path": str(events_file), "append": True}
    paths = [str(CHECKOUT / "src"), str(CHECKOUT), str(openlineage_packages())]
    environment = {
        "SLOTLAKE_SPARK_REMOTE": connect,
        "PYTHONPATH": os.pathsep.join(paths),
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
    }
    with small_airflow(pg, tmp_path_factory.mktemp("airflow"), PIPELINES, environment) as made:
        yield made


def _complete(file: Path, job: str) -> list[dict[str, Any]]:
    """The events at the end of a task, that have a lake table."""
    lines = file.read_text().splitlines() if file.exists() else []
    events = [json.loads(line) for line in lines]
    mine = [event for event in events if event["job"]["name"] == job and event["eventType"] == "COMPLETE"]
    return [event for event in mine if event["outputs"]]


@pytest.mark.parametrize(("name", "task"), [("traced", "publish"), ("tracedone", "sync")])
def test_source_table_lake_table_columns_and_lsn(
    stacks: dict[str, Stack], events_file: Path, pg: EmbeddedPostgres, name: str, task: str
) -> None:
    stack, job = bootstrapped(stacks[name]), f"cdc_sync_{name}.{task}"
    stack.database.execute("UPDATE orders SET v = 'secret value' WHERE id <= 3")
    run = stack.sync()
    stack.until(lambda: bool(_complete(events_file, job)), "the provider has written an event")
    (event,) = _complete(events_file, job)
    ((source,), (lake,)) = event["inputs"], event["outputs"]
    assert source["namespace"].startswith("postgres://")
    assert source["name"] == f"airflow_{name}.public.orders"
    columns = [(field["name"], field["type"]) for field in source["facets"]["schema"]["fields"]]
    assert columns == [("id", "int4"), ("v", "text")]
    assert (lake["namespace"], Path(lake["name"]).is_dir()) == ("file", True)
    assert lake["facets"]["symlinks"]["identifiers"][0]["name"] == f"{name}.orders"
    assert [(field["name"], field["type"]) for field in lake["facets"]["schema"]["fields"]] == [
        ("id", "int"),
        ("v", "string"),
    ]
    for column, made_of in lake["facets"]["columnLineage"]["fields"].items():
        (field,) = made_of["inputFields"]
        assert (field["namespace"], field["name"], field["field"]) == (
            source["namespace"],
            source["name"],
            column,
        )
    report = stack.client.xcoms(stack.dag("sync"), run)[task, "return_value"]
    for dataset in (source, lake):
        assert dataset["facets"]["version"]["datasetVersion"] == report["lsn"]
    facts = event["run"]["facets"]["slotlake"]
    assert (facts["end_lsn"], facts["batch"], facts["transactions"]) == (report["lsn"], report["batch"], 1)
    stack.sync()
    assert len(_complete(events_file, job)) == 1  # nothing was published
    assert pg.password not in events_file.read_text()
    assert "secret value" not in events_file.read_text()
