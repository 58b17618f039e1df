"""An Airflow connection of the type Postgres, with its extras, as the source's connection string."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.config.airflow_connection import connection_text


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
