"""The DAG `cdc_new`: from a connection of Airflow to a pipeline file, on a real server."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from slotlake.infra.config.pipeline_file import load_pipeline
from tests.conftest import Database

pytestmark = pytest.mark.timeout(300)
ROLE, PASSWORD = "cdc_new_reader", "hush-4711-new"


@pytest.fixture
def place(tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of pipeline files; two connections lead to the database."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SLOTLAKE_PIPELINES", f"/nowhere/a.yaml:{tmp_path / 'pipelines'}")
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", database.server.url(database.name))
    server = database.server.url(database.name).rpartition("@")[2]
    monkeypatch.setenv("AIRFLOW_CONN_READER", f"postgresql://{ROLE}:{PASSWORD}@{server}")
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY); CREATE SCHEMA shop; CREATE TABLE loose (id int);"
        "CREATE TABLE shop.a (id int PRIMARY KEY); CREATE TABLE shop.b (id int PRIMARY KEY)"
    )
    (tmp_path / "pipelines").mkdir()
    import airflow.sdk  # its first import sets logging up, which a test's own would not survive

    import slotlake.infra.airflow.new

    assert airflow.sdk
    assert slotlake.infra.airflow.new
    return tmp_path / "pipelines"


def _form(connection: str, **fields: Any) -> dict[str, Any]:
    return {
        "connection": connection,
        "name": None,
        "tables": [],
        "lake": "lake",
        "overwrite": False,
        **fields,
    }


def test_a_file_for_a_connection(
    place: Path, database: Database, session: object, caplog: pytest.LogCaptureFixture
) -> None:
    from slotlake.infra.airflow.new import new_pipeline

    caplog.set_level(logging.INFO)
    done = new_pipeline(_form("shop_db", name="shop", tables=["orders", "shop.*"]))
    assert (done["pipeline"], done["file"]) == ("shop", str(place / "shop.yaml"))
    file = load_pipeline(place / "shop.yaml")
    assert file.source.dsn.get_secret_value() == "airflow:shop_db"
    assert list(file.tables) == ["public.orders", "shop.*"]
    assert "public.loose: no key" in caplog.text
    assert "begin with cdc_bootstrap_shop" in caplog.text
    written = (place / "shop.yaml").read_text()
    assert written in "\n".join(record.getMessage() for record in caplog.records)
    assert database.server.password not in caplog.text + written

    # Again: the file stays as somebody has edited it, unless the form says otherwise.
    (place / "shop.yaml").write_text(f"{written}# mine\n")
    new_pipeline(_form("shop_db", name="shop", tables=["orders"]))
    assert (place / "shop.yaml").read_text().endswith("# mine\n")
    new_pipeline(_form("shop_db", name="shop", overwrite=True, tables=["public.*"]))
    assert list(load_pipeline(place / "shop.yaml").tables) == ["public.*"]


def test_what_the_role_lacks_and_the_same_form_again(
    place: Path, database: Database, session: object, caplog: pytest.LogCaptureFixture
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from slotlake.infra.airflow.new import new_pipeline

    caplog.set_level(logging.INFO)
    database.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'")
    try:
        with pytest.raises(AirflowFailException, match="trigger the DAG again") as refused:
            new_pipeline(_form("reader", name="shop", tables=["orders"]))
        assert "REPLICATION" in str(refused.value)
        (statements,) = [
            record.getMessage().partition(":\n")[2]
            for record in caplog.records
            if record.getMessage().startswith("a superuser can")
        ]
        assert PASSWORD not in caplog.text + str(refused.value)
        database.execute(statements)
        assert new_pipeline(_form("reader", name="shop", tables=["orders"]))["pipeline"] == "shop"
    finally:
        database.execute(f"DROP OWNED BY {ROLE}; DROP PUBLICATION IF EXISTS slotlake_shop; DROP ROLE {ROLE}")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"connection": "nowhere"}, r"the Airflow connection 'nowhere' cannot be read[^$]*where: Connection"),
        ({"name": "Not a name"}, r"is no name for a pipeline[^$]*where: Name"),
        ({"tables": ["ordres"]}, r"no table [^$]*where: Tables[^$]*did you mean public.orders"),
        ({"lake": "s3://"}, r"where: Lake[^$]*what to do: name a folder"),
    ],
)
def test_wrong_answers(place: Path, fields: dict[str, Any], said: str) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from slotlake.infra.airflow.new import new_pipeline

    with pytest.raises(AirflowFailException, match=said):
        new_pipeline({**_form("shop_db"), **fields})
    assert list(place.iterdir()) == []


def test_without_a_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from slotlake.infra.airflow.new import folder, new_pipeline

    monkeypatch.setenv("SLOTLAKE_PIPELINES", "/nowhere/a.yaml")
    assert folder() is None  # the DAG is not there
    with pytest.raises(AirflowFailException, match="names no folder"):
        new_pipeline(_form("shop_db"))
