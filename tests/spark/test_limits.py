"""Nothing is waited for without end: a REST catalog, the catalog's PostgreSQL, Spark."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import LakeError
from slotlake.infra.local.spark_connect import LocalSparkConnect
from slotlake.spark import jdbc as catalog_jdbc
from slotlake.spark import session as sessions
from slotlake.spark.catalog.base import Loaded, UnansweredError, load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.catalog.rest import session as catalog_rest
from slotlake.spark.catalog.sql import catalog as catalog_sql
from slotlake.spark.lake import LakeSettings
from slotlake.spark.merge.during_statements import StatementTooLongError
from slotlake.spark.merge.run import run
from slotlake.spark.names import LakeName
from tests.catalogs import postgres_uri
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.spark.lake_lab import Lab, insert, relation

pytestmark = pytest.mark.server
ITEMS = relation("items", ["id"], id="int8", v="text")


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_rest_catalog_that_never_answers(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_rest, "ANSWER_SECONDS", 1)
    lake = LakeSettings("lake", f"http://127.0.0.1:{silent}", "/w", "shop")
    began = time.monotonic()
    with pytest.raises(UnansweredError, match="has not answered for 1 s"), open_catalog(lake):
        pass
    assert time.monotonic() - began < 10
    assert lake.spark_properties()["rest.client.socket-timeout-ms"]


def test_a_postgresql_catalog_that_never_answers(silent: int) -> None:
    lake = LakeSettings("lake", f"postgresql://u:s3cret@127.0.0.1:{silent}/c?connect_timeout=2", "/w", "shop")
    began = time.monotonic()
    with pytest.raises(UnansweredError, match="cannot be reached") as caught, open_catalog(lake):
        pass
    assert time.monotonic() - began < 15
    assert "s3cret" not in str(caught.value)


def test_a_catalog_server_that_freezes(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It acknowledges what it gets, and says nothing."""
    monkeypatch.setattr(catalog_sql, "SILENT_SECONDS", 1.0)
    lake = LakeSettings("lake", postgres_uri(database), f"file://{tmp_path}/w", "shop")
    with open_catalog(lake) as catalog:
        catalog.make_namespace("shop")
        [(pid,)] = database.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        os.kill(pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            assert catalog.pointers() == {}  # the pool's ping is given up, and another session begun
            assert time.monotonic() - began < 10
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_pointer_that_someone_else_has_locked(
    session: Any, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_sql, "LOCK_SECONDS", 1)
    monkeypatch.setattr(catalog_jdbc, "SILENT_SECONDS", 2)
    lake = LakeSettings("lake", postgres_uri(database), f"file://{tmp_path}/w", "shop")
    lab = Lab.on(session, lake)
    lab.init({ITEMS: [{"id": "1", "v": "a"}]})
    batch = lab.batch(insert(ITEMS, id="2", v="b"))
    with psycopg.connect(database.dsn) as other:
        other.execute("SELECT * FROM iceberg_tables FOR UPDATE")
        with open_catalog(lake) as catalog, pytest.raises(UnansweredError, match="locked by someone else"):
            table = load_one(catalog, LakeName("shop", "items"))
            catalog.move([catalog.prepared(table, table.metadata)])
        began = time.monotonic()
        with pytest.raises(LakeError):
            statement = "ALTER TABLE lake.shop.items SET TBLPROPERTIES ('a' = 'b')"
            run(lab.session, Loaded(LakeName("shop", "items"), "", {}), statement)
        assert time.monotonic() - began < 60
    lab.apply(batch)
    lab.publish(batch)
    assert len(lab.rows("items")) == 2


def test_a_spark_statement_that_takes_for_ever(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "STATEMENT_SECONDS_MAX", 2.0)
    endless = "SELECT sum(hash(a.id, b.id)) FROM range(10000000000) a CROSS JOIN range(10000) b"
    began = time.monotonic()
    with pytest.raises(StatementTooLongError, match="took longer than"):
        run(lab.session, Loaded(LakeName("shop", "items"), "", {}), endless)
    assert time.monotonic() - began < 60
    assert lab.session.sql("SELECT 1").collect() == [(1,)]


def _away_for_a_while(database: Database, pipeline: Pipeline, server: LocalSparkConnect) -> None:
    """A client gives a server up after two minutes."""
    address = server.remote
    server.stop()
    database.execute("INSERT INTO items VALUES (3, 'c')")
    with pytest.raises(Exception, match="does not answer"):
        pipeline.sync()
    server.start()
    assert server.remote == address
    pipeline.sync()
    assert_equal(database, pipeline, ["items"])


@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_a_connect_server_that_is_started_anew_between_two_syncs(
    database: Database, spark_runtime: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, v text); INSERT INTO items VALUES (1, 'a')")
    file = pipeline_file(tmp_path, database, ["items"])
    with LocalSparkConnect(tmp_path / "spark", spark_runtime, cores=2, dies_with_parent=True) as server:
        for name, value in server.client_environment().items():
            if "TOKEN" in name:
                monkeypatch.setenv(name, value)
        with Pipeline.open(file, remote=server.remote) as pipeline:
            pipeline.init()
            database.execute("INSERT INTO items VALUES (2, 'b')")
            pipeline.sync()
            _away_for_a_while(database, pipeline, server)
            server.stop()
            server.start()
            database.execute("UPDATE items SET v = 'd' WHERE id = 1")
            pipeline.sync()
            assert_equal(database, pipeline, ["items"])
            rows = database.execute("SELECT count(*)::text FROM items")
            assert pipeline.query("SELECT count(*) FROM items").rows == rows
