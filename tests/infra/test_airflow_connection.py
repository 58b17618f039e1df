"""An Airflow connection of the type Postgres, with its extras, as the source's connection string."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from slotlake.decoder.errors import PipelineFileError, SlotlakeError, SourceError, SourceUnavailableError
from slotlake.decoder.server.source import connect
from slotlake.infra.config import airflow_connection
from slotlake.infra.config.airflow_connection import connection_text
from slotlake.infra.config.pipeline_file import load_pipeline
from tests.conftest import Database


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``stored(extra, **fields)``: the address of a connection that Airflow has in its environment."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow-home"))

    def read(extra: dict[str, Any], **fields: Any) -> dict[str, Any]:
        shop = {"host": "db", "login": "cdc", "password": "p@:/ %", "schema": "shop", "port": 6432}
        value = {"conn_type": "postgres", **shop, **fields, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", json.dumps(value))
        return dict(conninfo_to_dict(connection_text("shop_db", "shop.yaml, source.dsn")))

    return read


def test_host_user_password_and_database(stored: Any) -> None:
    plain = {"host": "db", "user": "cdc", "password": "p@:/ %", "dbname": "shop", "port": "6432"}
    assert stored({}) == plain
    assert stored({}, host="::1")["host"] == "::1"
    several = stored({}, host="a,b:7000")
    assert (several["host"], several["port"]) == ("a,b", "6432,7000")
    socket = stored({}, host="/run/postgresql")
    assert (socket["host"], socket["port"]) == ("/run/postgresql", "6432")


def test_extras_of_libpq_are_passed_on_whatever_their_type(stored: Any) -> None:
    extra = {
        "sslmode": "verify-full",
        "sslrootcert": "/certs/a b.pem",
        "options": "-c statement_timeout=0 -c x.y=1",
        "keepalives_idle": 30,
        "keepalives": True,
        "cursor": "dictcursor",
        "sqlalchemy_query": {"a": "b"},
        "iam": False,
        "aws_conn_id": "aws",
    }
    read = stored(extra)
    assert {name: read[name] for name in ("sslmode", "sslrootcert", "options")} == {
        name: extra[name] for name in ("sslmode", "sslrootcert", "options")
    }
    assert (read["keepalives_idle"], read["keepalives"]) == ("30", "1")
    assert not {"cursor", "sqlalchemy_query", "iam", "aws_conn_id"} & read.keys()


@pytest.mark.parametrize(
    ("extra", "what"),
    [
        ({"iam": True}, "'iam' asks for a token of AWS IAM, which slotlake does not fetch"),
        ({"iam": True, "redshift": True}, "'iam' asks for a token of AWS IAM, which slotlake does not fetch"),
        ({"use_azure_identity": True}, "a token of Azure"),
        ({"azure_conn_id": "x"}, "a token of Azure"),
        ({"sslmod": "require"}, "'sslmod' is no parameter of a PostgreSQL connection"),
        ({"options": ["-c", "x=1"]}, "'options' is no parameter"),
    ],
)
def test_an_extra_that_cannot_be_passed_on_is_refused_by_name(
    stored: Any, extra: dict[str, Any], what: str
) -> None:
    with pytest.raises(PipelineFileError, match=what) as refused:
        stored(extra)
    assert refused.value.where == "shop.yaml, source.dsn, Airflow connection 'shop_db'"
    assert "p@" not in str(refused.value)


def test_another_type_is_airflows_own_uri_and_a_missing_one_is_named(stored: Any) -> None:
    assert stored({}, conn_type="postgresql")["host"] == "db"
    with pytest.raises(PipelineFileError, match="'nothing' cannot be read"):
        connection_text("nothing", "here")


IAM = """name: shop
source: {dsn: "airflow:shop_db", publications: [shop], slot: shop}
lake: {catalog: lake, uri: "sqlite:///lake.db", warehouse: warehouse, namespace: shop}
"""


def _store(monkeypatch: pytest.MonkeyPatch, folder: Path, connection: dict[str, Any]) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(folder / "airflow-home"))
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", json.dumps({"conn_type": "postgres", **connection}))


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Airflow's Postgres hook, as far as slotlake asks it: the token that it fetches, or its error."""
    given: dict[str, Any] = {"token": "t1:/@", "asked": 0}

    class PostgresHook:
        def __init__(self, connection: Any) -> None:
            self._connection = connection

        def get_iam_token(self, connection: Any) -> tuple[str, str, int]:
            assert connection is self._connection
            assert connection.extra_dejson["aws_conn_id"] == "aws_shop"
            given["asked"] += 1
            if isinstance(given["token"], Exception):
                raise given["token"]
            return connection.login, given["token"], connection.port

    module = ModuleType("airflow.providers.postgres.hooks.postgres")
    module.PostgresHook = PostgresHook  # type: ignore[attr-defined]
    for name in ("postgres", "postgres.hooks"):
        monkeypatch.setitem(sys.modules, f"airflow.providers.{name}", ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return given


@pytest.mark.server
def test_a_token_of_iam_is_asked_for_when_a_connection_is_opened(
    database: Database, token: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it expires, and as it is a secret, it is in no address."""
    role = f"{database.name}_iam"
    database.execute(f"CREATE ROLE {role} LOGIN PASSWORD 't1:/@'")
    place = {"host": "127.0.0.1", "port": database.server.port, "schema": database.name, "login": role}
    extra = {"iam": True, "aws_conn_id": "aws_shop", "sslmode": "prefer"}
    _store(monkeypatch, tmp_path, {**place, "password": "of no use", "extra": extra})
    (tmp_path / "shop.yaml").write_text(IAM)
    dsn = load_pipeline(tmp_path / "shop.yaml").dsn()
    assert "t1" not in dsn
    assert conninfo_to_dict(dsn)["sslmode"] == "prefer"
    for _ in range(2):
        with connect(dsn) as connection:
            assert connection.execute("SELECT current_user").fetchone() == (role,)
    assert token["asked"] == 1  # it is valid for some minutes
    database.execute(f"ALTER ROLE {role} PASSWORD 't2'")
    token["token"] = "t2"
    with pytest.raises(SourceError) as refused:
        connect(dsn)
    assert "t1" not in str(refused.value)
    monkeypatch.setattr(airflow_connection, "TOKEN_SECONDS", 0.0)
    dsn = load_pipeline(tmp_path / "shop.yaml").dsn()
    with connect(dsn) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    token["token"] = RuntimeError("secret of AWS")
    with pytest.raises(SourceUnavailableError, match="no token of AWS IAM") as away:
        connect(dsn)
    assert "secret" not in str(away.value)
    database.execute(f"DROP ROLE {role}")


def test_without_airflows_providers_the_token_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _store(monkeypatch, tmp_path, {"host": "db", "login": "cdc", "schema": "shop", "extra": {"iam": True}})
    (tmp_path / "shop.yaml").write_text(IAM)
    with pytest.raises(SlotlakeError, match="apache-airflow-providers-postgres"):
        connect(load_pipeline(tmp_path / "shop.yaml").dsn())


@pytest.mark.server
def test_a_command_gives_the_password_of_a_connection_that_has_none(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = f"{database.name}_asked"
    database.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'from a program'")
    place = {"host": "127.0.0.1", "port": database.server.port, "schema": database.name, "login": role}
    file = tmp_path / "shop.yaml"
    file.write_text(IAM.replace("slot: shop}", "slot: shop, password: {command: [echo, from a program]}}"))
    _store(monkeypatch, tmp_path, place)
    with connect(load_pipeline(file).dsn()) as connection:
        assert connection.execute("SELECT current_user").fetchone() == (role,)
    _store(monkeypatch, tmp_path, {**place, "password": "another"})
    with pytest.raises(PipelineFileError, match=r"source\.dsn has a password, and source\.password"):
        load_pipeline(file).dsn()
    _store(monkeypatch, tmp_path, {**place, "extra": {"iam": True}})
    with pytest.raises(PipelineFileError, match=r"'iam' asks for a token of AWS IAM.*") as refused:
        load_pipeline(file).dsn()
    assert "take the extra away" in refused.value.way_out
    database.execute(f"DROP ROLE {role}")
