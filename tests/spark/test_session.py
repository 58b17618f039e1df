"""A Connect server gives what a session in this process gives; what is missing is said clearly."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator

from slotlake.decoder.errors import LakeError, SetupError
from slotlake.infra.local.postgres import EmbeddedPostgres
from slotlake.spark.copy.owner import is_initialised
from slotlake.spark.lake import LakeSettings
from slotlake.spark.publish.publication import lake_position
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.read.query import query
from slotlake.spark.session import open_session
from tests.spark.lake_lab import PIPELINE, UNCHANGED, Lab, delete, insert, relation, truncate, update

ITEMS = relation("items", ["id"], id="int4", v="text", n="numeric(10,2)")
LOG = relation("log", [], v="int4")


def live(lab: Lab) -> None:
    """A life of two tables, the same on every kind of session and catalog."""
    lab.init(
        {ITEMS: [{"id": str(i), "v": f"v{i}", "n": "NaN" if i == 3 else "1.00"} for i in range(5)], LOG: []}
    )
    lab.sync(
        update(ITEMS, {"id": "1"}, id="10", v=UNCHANGED, n="2.00"),
        delete(ITEMS, id="2"),
        update(ITEMS, id="3", v="new", n=UNCHANGED),
        insert(LOG, v="1"),
    )
    batch = lab.batch(truncate(LOG), insert(LOG, v="2"), insert(ITEMS, id="7", v=None, n=None))
    lab.apply(batch)
    lab.apply(batch)
    lab.publish(batch)
    assert lab.publish(batch).already
    assert lab.rows("items") == [
        ("0", "v0", "1.00"),
        ("10", "v1", "2.00"),
        ("3", "new", "NaN"),
        ("4", "v4", "1.00"),
        ("7", None, None),
    ]
    assert lab.rows("log") == [("2",)]
    old = query(lab.session, lab.lake, "SELECT id, v FROM public.items WHERE id > 2 ORDER BY id", at=0x1100)
    assert old.rows == [("3", "new"), ("4", "v4"), ("10", "v1")]
    assert query(lab.session, lab.lake, "SELECT count(*) FROM log").rows == [("1",)]


def test_over_connect(connect: str, lake: LakeSettings) -> None:
    session = open_session(lake, remote=connect)
    try:
        live(Lab(session, lake))
    finally:
        session.stop()


def test_collected_garbage_does_not_end_what_others_use(connect: str, lake: LakeSettings) -> None:
    """Whatever thread collects it may hold a lock for which the threads wait that would end."""
    left: Any = open_session(lake, remote=connect)
    stopped, used = (open_session(lake, remote=connect) for _ in range(2))
    stopped.stop()
    assert used.sql("SELECT 1").collect() == [(1,)]
    pool = ExecutePlanResponseReattachableIterator._release_thread_pool_instance
    assert pool is not None
    channel = left.client._channel
    del left, stopped
    gc.collect()
    assert ExecutePlanResponseReattachableIterator._release_thread_pool_instance is pool
    assert not pool._shutdown
    assert used.sql("SELECT 2").collect() == [(2,)]
    used.stop()
    channel.close()


def test_a_postgresql_catalog(session: object, pg: EmbeddedPostgres, tmp_path: Path) -> None:
    with psycopg.connect(pg.dsn(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE catalog")
        admin.execute("CREATE ROLE lakehand LOGIN PASSWORD 's3cret word'")
        admin.execute("ALTER DATABASE catalog OWNER TO lakehand")
    uri = f"postgresql+psycopg://lakehand:s3cret%20word@{_tcp(pg)}/catalog"
    lake = LakeSettings("lake", uri, f"file://{tmp_path}/warehouse", "shop")
    assert "s3cret" not in repr(lake) + lake.place
    live(Lab.on(session, lake))
    assert lake_position(lake) == 0x1200


def test_compiled_code_has_room(session: Any) -> None:
    """A process that applies batches for hours compiles more than Java keeps room for by itself."""
    pools = session._jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
    room = [pool.getUsage().getMax() for pool in pools if pool.getName().startswith("Code")]
    assert sum(room) >= 200 << 20


def _tcp(pg: EmbeddedPostgres) -> str:
    with psycopg.connect(pg.dsn()) as connection:
        row = connection.execute("SHOW port").fetchone()
    assert row is not None
    return f"127.0.0.1:{row[0]}"


def test_a_server_that_does_not_answer() -> None:
    with pytest.raises(SetupError, match="does not answer"):
        open_session(remote="sc://127.0.0.1:1")


@pytest.mark.parametrize("token", [None, "wrong"])
def test_a_server_that_refuses(connect: str, monkeypatch: pytest.MonkeyPatch, token: str | None) -> None:
    if token is None:
        monkeypatch.delenv("SPARK_CONNECT_AUTHENTICATE_TOKEN")
    else:
        monkeypatch.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", token)
    with pytest.raises(SetupError, match="refuses this client") as caught:
        open_session(remote=connect)
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "warehouse", "what"),
    [
        ("mysql://user:s3cret@catalog.example/api", "/w", "does not support such a catalog"),
        ("sqlite:///relative.db", "/w", "must be an absolute path"),
        ("nonsense", "/w", "does not support such a catalog"),
        ("sqlite:////c.db", "hdfs://name/w", "cannot use such a warehouse"),
        ("sqlite:////c.db", "relative/w", "must be an absolute path"),
    ],
)
def test_a_lake_of_a_later_version(session: object, uri: str, warehouse: str, what: str) -> None:
    with pytest.raises(LakeError, match=what) as caught:
        Lab.on(session, LakeSettings("lake", uri, warehouse, "shop"))
    assert "s3cret" not in str(caught.value)
    assert caught.value.way_out


def test_a_catalog_that_cannot_be_reached(pg: EmbeddedPostgres, tmp_path: Path) -> None:
    for uri, what in (
        (f"postgresql+psycopg://postgres:s3cret@{_tcp(pg)}/nowhere", "cannot be reached"),
        ("postgresql+psycopg://postgres:s3cret@127.0.0.1:1/nowhere", "cannot be reached"),
        (
            f"sqlite:///{tmp_path}/no/such/folder/catalog.db",
            "cannot be reached: unable to open database file",
        ),
    ):
        with pytest.raises(LakeError, match=what) as caught:
            is_initialised(LakeSettings("lake", uri, f"file://{tmp_path}", "shop"), PIPELINE)
        assert "s3cret" not in str(caught.value)
    (tmp_path / "garbage.db").write_text("this is no database" * 100)
    with pytest.raises(LakeError, match="cannot be used: file is not a database"):
        ReadPoint.latest(
            LakeSettings("lake", f"sqlite:///{tmp_path}/garbage.db", f"file://{tmp_path}", "shop")
        )
