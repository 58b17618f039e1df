"""Connections that freeze before the stream has begun: noticed, said clearly, not confused with slow work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from slotlake.decoder.errors import SourceUnavailableError
from slotlake.decoder.server.source import SourceSettings, connect, identify
from slotlake.decoder.slots.confirm import confirm
from slotlake.decoder.slots.slot import create_slot
from slotlake.decoder.stream.pull import pull
from slotlake.decoder.stream.receive import Stream
from slotlake.infra.local.postgres import Version
from tests.conftest import Database
from tests.decoder.servers.proxy import Proxy

SILENT = "the server has not answered for"
# What a pull says before the server sends a change, and who then waits for the answer.
STEPS = [
    b"IDENTIFY_SYSTEM",
    b"SHOW wal_level",
    b"pg_replication_slots",
    b"pg_publication",
    b"pg_current_wal_insert_lsn",
    b"wal_sender_timeout",
    b"START_REPLICATION",
]


@pytest.fixture
def database(database_on: Callable[[Version], Database]) -> Database:
    return database_on(18)


@pytest.fixture
def source(database: Database, monkeypatch: pytest.MonkeyPatch) -> SourceSettings:
    """A slot behind which there is something to read."""
    monkeypatch.setattr("slotlake.decoder.server.silence.LIMIT_SECONDS", 0.5)
    monkeypatch.setattr("slotlake.decoder.server.waiting.ASK_SECONDS", 1.0)
    monkeypatch.setattr("slotlake.decoder.server.waiting._LATE_SECONDS", 0.1)
    database.execute(f"ALTER DATABASE {database.name} SET wal_sender_timeout = '500ms'")
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    settings = SourceSettings(f"{database.dsn} connect_timeout=2", ("p",), f"slot_{database.name}")
    create_slot(settings).close()
    database.execute("INSERT INTO t VALUES (1)")
    return settings  # the slot goes with the database, and so does a sender that has not noticed its loss


def through(proxy: Proxy, source: SourceSettings) -> SourceSettings:
    return replace(source, dsn=f"{proxy.dsn} connect_timeout=2")


def start_of(database: Database, source: SourceSettings) -> int:
    query = "SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = %s"
    return int(str(database.execute(query, (source.slot,))[0][0]))


@pytest.mark.parametrize("step", STEPS, ids=[step.decode() for step in STEPS])
def test_a_session_that_freezes_before_the_stream_begins_is_noticed(
    database: Database, source: SourceSettings, step: bytes, tmp_path: Path
) -> None:
    with Proxy(database) as proxy:
        proxy.become(freeze_at=step, freeze_all=False)
        begun = time.monotonic()
        with pytest.raises(SourceUnavailableError, match=SILENT) as caught:
            pull(through(proxy, source), "test", tmp_path / "log", start=start_of(database, source))
        assert time.monotonic() - begun < 10
    assert caught.value.retryable
    assert "check the network" in caught.value.way_out
    assert list((tmp_path / "log").glob("*")) == []
    assert pull(source, "test", tmp_path / "log", start=start_of(database, source)).changes == 1


@pytest.mark.parametrize("step", [b"IDENTIFY_SYSTEM", b"pg_current_wal_insert_lsn"])
def test_a_network_that_freezes_altogether_is_noticed_too(
    database: Database, source: SourceSettings, step: bytes, tmp_path: Path
) -> None:
    with Proxy(database) as proxy:
        proxy.become(freeze_at=step)
        begun = time.monotonic()
        with pytest.raises(SourceUnavailableError, match=SILENT):
            pull(through(proxy, source), "test", tmp_path, start=start_of(database, source))
        assert time.monotonic() - begun < 15


def test_a_server_that_never_answers_a_connection_is_noticed(
    database: Database, source: SourceSettings
) -> None:
    with Proxy(database) as proxy:
        proxy.become(swallow_after=0)
        with pytest.raises(SourceUnavailableError, match="the source cannot be reached"):
            identify(through(proxy, source).dsn)


def test_confirming_over_a_frozen_connection_ends(database: Database, source: SourceSettings) -> None:
    with Proxy(database) as proxy:
        proxy.become(freeze_at=b"pg_replication_slot_advance", freeze_all=False)
        with pytest.raises(SourceUnavailableError, match=SILENT):
            confirm(through(proxy, source), start_of(database, source) + 8)


def test_a_statement_that_works_in_silence_is_waited_for(source: SourceSettings) -> None:
    with connect(source.dsn) as connection:
        assert connection.execute("SELECT 7 FROM pg_sleep(2)").fetchone() == (7,)


def test_a_statement_that_waits_for_a_lock_is_waited_for(database: Database, source: SourceSettings) -> None:
    with database.connect() as other, connect(source.dsn) as connection:
        other.execute("BEGIN; LOCK TABLE t")
        letting_go = threading.Timer(1.5, other.execute, args=("COMMIT",))
        letting_go.start()
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (1,)
        letting_go.join()


def test_a_server_that_refuses_to_be_asked_is_no_silent_one(
    database: Database, source: SourceSettings
) -> None:
    with connect(source.dsn) as connection, psycopg.connect(database.server.dsn(), autocommit=True) as admin:
        allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
        admin.execute(allow.format(sql.Identifier(database.name), sql.SQL("false")))
        try:
            assert connection.execute("SELECT 7 FROM pg_sleep(1)").fetchone() == (7,)
        finally:
            admin.execute(allow.format(sql.Identifier(database.name), sql.SQL("true")))


@pytest.mark.parametrize(
    "step",
    ["receive._sender_timeout", "receive.CopyReader", "receive.negotiate", "receive._shape_socket"],
)
def test_a_connection_that_is_lost_between_two_steps_is_one_clear_error(
    database: Database, source: SourceSettings, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libpq closes the socket as soon as it knows; whatever is asked of it then fails in its own way."""
    start = start_of(database, source)
    with monkeypatch.context() as patch:
        patch.setattr(f"slotlake.decoder.stream.{step}", _lost)
        with pytest.raises(SourceUnavailableError, match="the connection is lost"):
            Stream(source, start)
    with Stream(source, start) as stream:
        patch = monkeypatch
        patch.setattr("slotlake.decoder.stream.receive.readable", _lost)
        with pytest.raises(SourceUnavailableError, match="the connection is lost"):
            for _ in range(100):
                stream.drain()
                stream.rest(0.1)


def _lost(*_: object) -> None:
    raise psycopg.OperationalError("the connection is lost")
