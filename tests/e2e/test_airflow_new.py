"""A fresh Airflow: a form makes a pipeline of a connection, its pool makes itself, its monitor notifies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from slotlake.infra.launch.folders import CHECKOUT
from slotlake.infra.local.airflow import LocalAirflow
from slotlake.infra.local.airflow_client import AirflowClient
from slotlake.infra.local.postgres import EmbeddedPostgres
from tests.webhook import SECRET, Webhook, webhook

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it"),
]
_NAME = "airflow_new"


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with webhook() as made:
        yield made


@pytest.fixture
def airflow(pg: EmbeddedPostgres, connect: str, hook: Webhook, tmp_path: Path) -> Iterator[LocalAirflow]:
    """It knows a connection, and has no pipeline and no pool."""
    with psycopg.connect(pg.dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {_NAME}")
    with psycopg.connect(pg.dsn(_NAME), autocommit=True) as database:
        database.execute("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1), (2)")
    (tmp_path / "pipelines").mkdir()
    airflow = LocalAirflow(
        tmp_path / "home",
        CHECKOUT / "dags",
        environment={
            "SLOTLAKE_PIPELINES": str(tmp_path / "pipelines"),
            "SLOTLAKE_SPARK_REMOTE": connect,
            "AIRFLOW_CONN_SHOP_DB": pg.url(_NAME),
            "A_RECEIVER": hook.url,
            **{name: value for name, value in os.environ.items() if name.startswith("SPARK_CONNECT")},
        },
        parse_seconds=5,
        dies_with_parent=True,
    )
    try:
        yield airflow
    finally:
        airflow.remove()


def _ended(client: AirflowClient, dag: str, form: dict[str, object] | None = None) -> str:
    client.pause(dag, False)
    return client.wait_run(dag, client.trigger(dag, form), seconds_max=240)


def _pools(client: AirflowClient) -> dict[str, int]:
    pools = client.call("GET", "/pools")["pools"]
    return {pool["name"]: pool["slots"] for pool in pools if pool["name"] != "default_pool"}


def test_from_a_connection_to_a_notification(
    airflow: LocalAirflow, pg: EmbeddedPostgres, hook: Webhook, tmp_path: Path
) -> None:
    client = airflow.start().wait_ready()
    client.wait_dags(["cdc_new"])
    form: dict[str, object] = {"connection": "shop_db", "name": "shop", "tables": ["orders"], "lake": "lake"}
    assert _ended(client, "cdc_new", form) == "success"
    file = tmp_path / "pipelines" / "shop.yaml"
    assert pg.password not in file.read_text()
    file.write_text(f"{file.read_text()}monitor: {{schedule: null}}\nnotify: {{to: [env:A_RECEIVER]}}\n")
    assert _pools(client) == {}
    client.wait_dags(["cdc_bootstrap_shop", "cdc_monitor_shop"])
    assert _ended(client, "cdc_bootstrap_shop") == "success"
    assert _pools(client) == {"slotlake_slotlake_shop": 1}

    assert _ended(client, "cdc_monitor_shop") == "success"
    assert hook.take() == []
    with psycopg.connect(pg.dsn(_NAME), autocommit=True) as database:
        database.execute("SELECT pg_drop_replication_slot('slotlake_shop')")
    assert _ended(client, "cdc_monitor_shop") == "failed"
    message = hook.one()["message"].splitlines()
    assert message[0] == "the replication slot 'slotlake_shop' does not exist"
    assert f"in Airflow: trigger cdc_recover_shop ({airflow.url}/dags/cdc_recover_shop)" in message
    assert message[-1] == f"page: {airflow.url}/slotlake/pipeline/shop"
    assert _ended(client, "cdc_monitor_shop") == "failed"
    assert hook.take() == []
    airflow.stop()
    texts = [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert not [text for text in texts if SECRET in text]
