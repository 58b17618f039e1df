"""Decoding on a standby (PostgreSQL 16 on): slot, pull, snapshot, confirmation; what is the primary's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from slotlake.decoder.catalog.publications import create_publication
from slotlake.decoder.errors import SlotError, SourceError
from slotlake.decoder.server.source import SourceSettings, connect
from slotlake.decoder.slots.confirm import confirm
from slotlake.decoder.slots.slot import create_slot, drop_slot, inspect_slot
from slotlake.decoder.stream.pull import pull
from slotlake.infra.local.postgres import EmbeddedPostgres, temporary_postgres
from tests.conftest import Database
from tests.decoder.servers.standby import replayed_to, standby_of
from tests.decoder.sources import replayed, through_sql
from tests.meanwhile import repeatedly

CONF = {"shared_buffers": "16MB", "logical_decoding_work_mem": "64kB", "max_prepared_transactions": "5"}


@pytest.fixture(scope="module", params=[18, 16])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[EmbeddedPostgres, EmbeddedPostgres]]:
    with temporary_postgres(version=request.param, conf=CONF) as primary, standby_of(primary) as standby:
        yield primary, standby


def snapshots_logged(primary: Database) -> AbstractContextManager[None]:
    """A slot on a standby starts from what the primary logs of its running transactions."""
    return repeatedly(lambda: primary.execute("SELECT pg_log_standby_snapshot()"), 0.1)


def follow(primary: Database, standby: EmbeddedPostgres) -> None:
    replayed_to(standby, primary.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0])


def insert(primary: Database, first: int, last: int) -> None:
    primary.execute(f"INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series({first}, {last}) i")


@pytest.mark.parametrize("bulk", [False, True])
def test_a_standby_serves_slot_snapshot_pull_and_confirmation(
    pair: tuple[EmbeddedPostgres, EmbeddedPostgres],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bulk: bool,
) -> None:
    if bulk:
        through_sql(monkeypatch, 64 << 10)
        monkeypatch.setattr(
            "slotlake.decoder.stream.pull.BulkError", KeyError
        )  # no other way is taken instead
    server, standby = pair
    primary = Database(server, "postgres")
    primary.execute("DROP TABLE IF EXISTS t; DROP PUBLICATION IF EXISTS p")
    primary.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    insert(primary, 1, 10)
    source = SourceSettings(standby.dsn(), ("p",), "on_standby")
    with snapshots_logged(primary), create_slot(source) as made, connect(source.dsn) as reader:
        start = made.lsn
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute(f"SET TRANSACTION SNAPSHOT '{made.snapshot}'".encode())
        assert reader.execute("SELECT count(*) FROM t").fetchone() == (10,)
    insert(primary, 11, 1000)
    primary.execute("UPDATE t SET a = 'y' WHERE id % 3 = 0")
    follow(primary, standby)
    first = pull(source, "test", tmp_path, start=start)
    assert first.transactions == 2
    confirm(source, first.end_lsn)
    primary.execute("DELETE FROM t WHERE id % 7 = 0")
    primary.execute("SELECT pg_log_standby_snapshot()")
    follow(primary, standby)
    second = pull(source, "test", tmp_path, start=first.end_lsn)
    rows = {str(n): (str(n), "x" * 200) for n in range(1, 11)}
    held = primary.execute("SELECT id::text, a FROM t")
    assert replayed([first, second], rows) == {row[0]: row for row in held}
    confirm(source, second.end_lsn)
    with connect(source.dsn) as connection:
        state = inspect_slot(connection, source.slot)
    assert state is not None
    assert state.confirmed_flush_lsn == second.end_lsn
    assert state.restart_lsn is not None
    assert state.restart_lsn > start
    assert pull(source, "test", tmp_path, start=second.end_lsn).transactions == 0
    assert drop_slot(source)


def test_an_open_transaction_of_the_primary_is_streamed(
    pair: tuple[EmbeddedPostgres, EmbeddedPostgres], tmp_path: Path
) -> None:
    server, standby = pair
    primary = Database(server, "postgres")
    primary.execute("CREATE TABLE o (id int PRIMARY KEY, a text); CREATE PUBLICATION po FOR TABLE o")
    source = SourceSettings(standby.dsn(), ("po",), "open_there")
    with snapshots_logged(primary), create_slot(source) as made:
        start = made.lsn
    with primary.connect() as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO o SELECT i, repeat('x', 200) FROM generate_series(1, 2000) i")
        primary.execute("INSERT INTO o VALUES (-1, 'alone')")
        follow(primary, standby)
        before = pull(source, "test", tmp_path, start=start)
        assert (before.transactions, before.changes) == (1, 1)
        writer.execute("COMMIT")
    follow(primary, standby)
    after = pull(source, "test", tmp_path, start=before.end_lsn)
    assert (after.transactions, after.changes) == (1, 2000)
    assert drop_slot(source)


def test_what_only_the_primary_can_do_is_said(pair: tuple[EmbeddedPostgres, EmbeddedPostgres]) -> None:
    _, standby = pair
    source = SourceSettings(standby.dsn(), ("p",), "waits")
    with pytest.raises(SourceError, match="standby") as caught, connect(source.dsn) as connection:
        create_publication(connection, "q", [("public", "t")])
    assert "primary" in caught.value.way_out
    begun = time.monotonic()
    with pytest.raises(SlotError, match=r"waited 0\.5 s") as slot_wait_error:
        create_slot(source, wait_seconds=0.5)
    assert time.monotonic() - begun < 5
    assert "pg_log_standby_snapshot()" in slot_wait_error.value.way_out
    with connect(source.dsn) as connection:
        assert inspect_slot(connection, source.slot) is None


def test_a_slot_whose_rows_were_vacuumed_away_is_told_apart(tmp_path: Path) -> None:
    with temporary_postgres(conf={**CONF, "autovacuum": "off"}) as server:
        primary = Database(server, "postgres")
        primary.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
        with standby_of(server, feedback=False) as standby:
            source = SourceSettings(standby.dsn(), ("p",), "s")
            with snapshots_logged(primary), create_slot(source) as made:
                start = made.lsn
            for statement in ("CREATE TABLE gone (id int)", "DROP TABLE gone", "VACUUM pg_class"):
                primary.execute(statement)
            follow(primary, standby)
            with pytest.raises(SlotError, match="standby has invalidated the slot") as caught:
                pull(source, "test", tmp_path, start=start)
            assert "hot_standby_feedback" in caught.value.way_out


def test_a_standby_before_16_is_refused() -> None:
    with temporary_postgres(version=15, conf=CONF) as server:
        server.stop()
        (server.data / "standby.signal").touch()
        server.start()
        with pytest.raises(SourceError, match="a version that has no logical decoding") as caught:
            create_slot(SourceSettings(server.dsn(), ("p",), "s"))
        assert "a standby of PostgreSQL 16 or later" in caught.value.way_out
