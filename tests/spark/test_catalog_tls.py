"""A PostgreSQL catalog that wants TLS and a certificate of its client: Spark comes in as libpq does."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from cryptography.hazmat.primitives import serialization
from sqlalchemy.engine import make_url

from slotlake.decoder.errors import LakeError
from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.infra.config.unencrypted import unencrypted_connections
from slotlake.infra.local.postgres import EmbeddedPostgres, temporary_postgres
from slotlake.infra.local.postgres_archives import is_fetched
from slotlake.spark.jdbc import jdbc_properties
from slotlake.spark.lake import LakeSettings
from tests.conftest import Database
from tests.e2e.certificates import Authority
from tests.spark.lake_lab import Lab, insert, relation

PASSWORD, KEY_PASSWORD = "it's a $ecret %s", "k3y w@rd"
HBA = "hostssl all lakehand 127.0.0.1/32 scram-sha-256 clientcert=verify-full\nhost all lakehand all reject\n"
ITEMS = relation("items", ["id"], id="int8", v="text")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def guarded(authority: Authority) -> Iterator[EmbeddedPostgres]:
    if os.environ.get("SLOTLAKE_OFFLINE") and not is_fetched(17):
        pytest.skip("SLOTLAKE_OFFLINE is set, and PostgreSQL 17 has not been fetched")
    with temporary_postgres(version=17) as server:
        certificate, key = authority.issue("server", "127.0.0.1")
        places = ((certificate, "server.crt"), (key, "server.key"), (authority.root, "ca.crt"))
        for source, name in places:
            shutil.copyfile(source, server.data / name)
            (server.data / name).chmod(0o600)
            shutil.chown(server.data / name, server.data.stat().st_uid, server.data.stat().st_gid)
        hba = server.data / "pg_hba.conf"
        hba.write_text(HBA + hba.read_text())
        admin = Database(server, "postgres")
        admin.execute(f"CREATE ROLE lakehand LOGIN PASSWORD '{PASSWORD.replace(chr(39), chr(39) * 2)}'")
        admin.execute("CREATE DATABASE catalog OWNER lakehand")
        admin.execute("ALTER SYSTEM SET ssl_ca_file = 'ca.crt'")
        admin.execute("ALTER SYSTEM SET ssl = 'on'")
        admin.execute("SELECT pg_reload_conf()")
        yield server


@pytest.fixture(scope="module")
def client(authority: Authority) -> dict[str, str]:
    """What a client must show; its key is encrypted."""
    certificate, key = authority.issue("lakehand")
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    kept = serialization.BestAvailableEncryption(KEY_PASSWORD.encode())
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    key.write_bytes(private.private_bytes(*form, kept))
    return {"sslcert": str(certificate), "sslkey": str(key), "sslpassword": KEY_PASSWORD}


def _uri(server: EmbeddedPostgres, **query: str) -> str:
    user = f"lakehand:{quote(PASSWORD, safe='')}"
    return f"postgresql+psycopg://{user}@127.0.0.1:{server.port}/catalog?{urlencode(query)}"


def _lake(tmp_path: Path, uri: str) -> LakeSettings:
    return LakeSettings("lake", uri, f"file://{tmp_path}/warehouse", "shop")


def test_spark_comes_in_with_certificate_and_root(
    session: Any, guarded: EmbeddedPostgres, authority: Authority, client: dict[str, str], tmp_path: Path
) -> None:
    query = {"sslmode": "verify-full", "sslrootcert": str(authority.root), **client}
    lake = _lake(tmp_path, _uri(guarded, **query, channel_binding="require"))
    assert KEY_PASSWORD not in lake.place + repr(lake)
    lab = Lab.on(session, lake)
    lab.init({ITEMS: [{"id": "1", "v": "a"}]})
    lab.sync(insert(ITEMS, id="2", v="b"))
    assert len(lab.rows("items")) == 2
    key = Path(lake.spark_properties()["jdbc.sslkey"])
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.parent.stat().st_mode & 0o777 == 0o700


def test_spark_does_not_trust_another_root(
    session: Any, guarded: EmbeddedPostgres, client: dict[str, str], tmp_path: Path
) -> None:
    """`require` with a root is `verify-ca` for libpq, and so for Java."""
    other = Authority(tmp_path / "other", "another CA").root
    query = {"sslmode": "require", "sslrootcert": str(other), **client}
    lake = _lake(tmp_path, _uri(guarded, **query))
    own = Lab.on(session, lake).session
    with pytest.raises(Exception, match=r"certif|SSL|PKIX|Failed to connect"):
        own.sql("SHOW NAMESPACES IN lake").collect()


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ({"sslcrl": "/x.crl"}, "sslcrl"),
        ({"ssl_min_protocol_version": "TLSv1.3"}, "ssl_min_protocol_version"),
        ({"require_auth": "scram-sha-256"}, "require_auth"),
        ({"service": "lake"}, "service"),
        ({"passfile": "/x"}, "passfile"),
        ({"sslmode": "required"}, "sslmode=required"),
        ({"sslmode": "require", "sslcert": "/no/such.crt", "sslkey": "/no/such.key"}, "cannot be read"),
        ({"sslmode": "require", "sslcert": "/etc/hostname"}, "without sslkey"),
        ({"host": "/run/postgresql"}, "socket file"),
    ],
)
def test_what_java_cannot_do_is_refused_by_name(query: dict[str, str], named: str) -> None:
    url = make_url(f"postgresql+psycopg://u:s3cret@h/db?{urlencode(query)}")
    with pytest.raises(LakeError, match=named) as refused:
        jdbc_properties(url)
    assert "s3cret" not in str(refused.value)


def test_what_java_can_do_is_carried_over(monkeypatch: pytest.MonkeyPatch) -> None:
    url = make_url(
        "postgresql://u:p@h:1/a%20b?sslmode=require&sslrootcert=/etc/hostname&channel_binding=require"
        "&options=-c%20search_path%3Dx&application_name=me&connect_timeout=3&target_session_attrs=read-write"
    )
    found = jdbc_properties(url)
    assert found.pop("jdbc.socketTimeout")
    assert found == {
        "uri": "jdbc:postgresql://h:1/a%20b", "jdbc.user": "u", "jdbc.password": "p",
        "jdbc.sslmode": "verify-ca", "jdbc.sslrootcert": "/etc/hostname", "jdbc.channelBinding": "require",
        "jdbc.options": "-c search_path=x", "jdbc.ApplicationName": "me", "jdbc.connectTimeout": "3",
        "jdbc.targetServerType": "primary", "jdbc.tcpKeepAlive": "true",
    }  # fmt: skip
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    found = jdbc_properties(make_url("postgresql://h/db?sslrootcert=system"))
    assert found["jdbc.sslmode"] == "verify-full"
    assert found["jdbc.sslfactory"] == "org.postgresql.ssl.DefaultJavaSSLFactory"


@pytest.mark.parametrize(
    ("dsn", "uri", "told"),
    [
        ("postgresql://u@db.example/x", "sqlite:////c.db", ["source.dsn"]),
        ("host=10.0.0.1 dbname=x", "postgresql://u:p@10.0.0.2/c", ["source.dsn", "lake.uri"]),
        ("host=localhost dbname=x", "postgresql+psycopg://u:p@127.0.0.1/c", []),
        ("host=/run/pg dbname=x", "postgresql://u:p@db/c?sslmode=verify-full", []),
        ("host=db dbname=x sslmode=prefer", "http://lake.example/api", ["lake.uri"]),
        ("host=db,localhost sslrootcert=system", "https://lake.example/api", []),
    ],
)
def test_a_connection_to_another_machine_without_sslmode_is_told(
    tmp_path: Path, dsn: str, uri: str, told: list[str]
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        f"name: p\nsource: {{dsn: '{dsn}', publications: [p], slot: s}}\n"
        f"lake: {{catalog: lake, uri: '{uri}', warehouse: 'file://{tmp_path}/w', namespace: n}}\n"
    )
    found = unencrypted_connections(load_pipeline(file))
    assert [line.split(" ")[0] for line in found] == told
