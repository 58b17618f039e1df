"""A primary fails and its standby takes over: the lake goes on without a gap, or says what it has lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import SlotError, SourceUnavailableError
from slotlake.decoder.server.source import connect as connect_source
from slotlake.decoder.server.timeline import HistoryError, switch_points
from slotlake.decoder.slots.slot import check_slot, inspect_slot
from slotlake.infra.local.postgres import EmbeddedPostgres, temporary_postgres
from slotlake.infra.source.history import lake_origin
from tests.conftest import Database
from tests.decoder.servers.standby import SLOT, replayed_to, standby_of
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = pytest.mark.timeout(900)

CONF = {"shared_buffers": "16MB", "max_prepared_transactions": "5", "max_connections": "40"}
TABLES = ["accounts", "plain"]


def until(true: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + 60
    while not true():
        assert time.monotonic() < give_up, what
        time.sleep(0.05)


def leads_to(*servers: EmbeddedPostgres) -> str:
    """A dsn that leads to whichever of the servers takes writes."""
    first, ports = servers[0], ",".join(str(server.port) for server in servers)
    hosts = ",".join("127.0.0.1" for _ in servers)
    return first.dsn().replace(
        f"host=127.0.0.1 port={first.port}", f"host={hosts} port={ports} target_session_attrs=read-write"
    )


def with_dsn(file: Path, dsn: str) -> Path:
    lines = file.read_text().splitlines()
    file.write_text(
        "\n".join(f'  dsn: "{dsn}"' if line.startswith("  dsn:") else line for line in lines) + "\n"
    )
    return file


def fed(primary: EmbeddedPostgres, folder: Path, source: str = "") -> tuple[Database, Path]:
    """Two tables on a primary, and a pipeline file that follows whoever takes over."""
    database = Database(primary, "postgres")
    database.execute(
        "CREATE TABLE accounts (id int PRIMARY KEY, v text); CREATE TABLE plain (n int);"
        "ALTER TABLE plain REPLICA IDENTITY FULL;"
        "INSERT INTO accounts SELECT g, 'v' || g FROM generate_series(1, 300) g; INSERT INTO plain VALUES (1)"
    )
    return database, pipeline_file(folder, database, TABLES, source=source)


def write(database: Database, first: int, rows: int = 20) -> None:
    database.execute(
        f"INSERT INTO accounts SELECT g, 'new' FROM generate_series({first}, {first + rows - 1}) g;"
        f"UPDATE accounts SET v = 'at {first}' WHERE id % 7 = 0; DELETE FROM accounts WHERE id = {first};"
        f"INSERT INTO plain VALUES ({first}), ({first})"
    )


def slot_kept(standby: EmbeddedPostgres, pipeline: Pipeline) -> bool:
    """Has the standby a copy of the slot that outlives a promotion?"""
    with psycopg.connect(standby.dsn(), autocommit=True) as connection:
        state = inspect_slot(connection, pipeline.source.slot)
    return state is not None and state.synced and not state.temporary


def _slot_kept_in_time(primary: Database, standby: EmbeddedPostgres, pipeline: Pipeline) -> bool:
    """Has it, once the primary slot has moved on? That takes running transactions in the WAL, decoded."""
    primary.execute("SELECT pg_log_standby_snapshot()")
    pipeline.sync()
    return slot_kept(standby, pipeline)


def synchronized(primary: Database, names: str) -> None:
    primary.execute(f"ALTER SYSTEM SET synchronized_standby_slots = '{names}'")
    primary.execute("SELECT pg_reload_conf()")
    until(lambda: primary.execute("SHOW synchronized_standby_slots") == [(names,)], "the setting")


def promote(standby: EmbeddedPostgres) -> Database:
    with psycopg.connect(standby.dsn(), autocommit=True) as connection:
        assert connection.execute("SELECT pg_promote(true, 60)").fetchone() == (True,)
    return Database(standby, "postgres")


def test_a_promoted_standby_takes_over_and_then_one_that_lacks_changes(
    connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        primary = stack.enter_context(temporary_postgres(version=18, conf=CONF))
        database, file = fed(primary, tmp_path, source="two_phase: true")
        standby = stack.enter_context(standby_of(primary, keeps_slots=True))
        with_dsn(file, leads_to(primary, standby))
        with Pipeline.open(file, remote=connect) as pipeline:
            pipeline.init()
            slot = pipeline.status().slot
            assert slot is not None
            assert slot["failover"]
            assert not slot["synced"]
            synchronized(database, SLOT)
            write(database, 1000)
            pipeline.sync()
            until(lambda: _slot_kept_in_time(database, standby, pipeline), "the standby's copy of the slot")
            _nobody_reads_the_copy(standby, pipeline)
            _held_back_by_a_standby_that_is_down(database, standby, pipeline, monkeypatch)
            # Pending while the primary fails: prepared transactions that the lake knows, one of a batch that
            # is pulled but not applied; and changes that are on both servers but not in any batch.
            database.execute("BEGIN; INSERT INTO accounts VALUES (7001, 'p'); PREPARE TRANSACTION 'known'")
            database.execute("BEGIN; INSERT INTO accounts VALUES (7002, 'p'); PREPARE TRANSACTION 'undone'")
            pipeline.sync()
            write(database, 2000)
            database.execute("BEGIN; INSERT INTO plain VALUES (7003); PREPARE TRANSACTION 'in the batch'")
            pulled = pipeline.pull()
            write(database, 3000)
            replayed_to(standby, database.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0])
            primary.stop("immediate")
            with pytest.raises(SourceUnavailableError):  # a standby takes no writes
                pipeline.sync()
            database = promote(standby)
            write(database, 4000)
            synchronized(database, "")  # the copied settings name a slot of the old primary
            for end in ("COMMIT PREPARED 'known'", "ROLLBACK PREPARED 'undone'"):
                database.execute(end)
            pipeline.sync()
            assert_equal(database, pipeline, TABLES)
            database.execute("COMMIT PREPARED 'in the batch'")
            pipeline.sync()
            assert_equal(database, pipeline, TABLES)
            assert pipeline.verify().equal
            assert (tmp_path / ".slotlake/shop/changelog" / str(pulled.batch)).is_dir()
            origin = lake_origin(pipeline.lake)
            assert origin is not None
            assert origin.timeline == 2
            _what_the_new_primary_lacks(stack, standby, database, pipeline, file, connect)


def _nobody_reads_the_copy(standby: EmbeddedPostgres, pipeline: Pipeline) -> None:
    with connect_source(standby.dsn()) as connection, pytest.raises(SlotError, match="is a standby") as told:
        check_slot(connection, pipeline.source)
    assert told.value.retryable
    assert "target_session_attrs=read-write" in told.value.way_out


def _held_back_by_a_standby_that_is_down(
    database: Database, standby: EmbeddedPostgres, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read that the standby has not; the server's own wait would have no end."""
    monkeypatch.setattr("slotlake.decoder.slots.failover.STANDBY_WAIT_SECONDS", 0.5)
    standby.stop("fast")
    write(database, 1500)
    with pytest.raises(SourceUnavailableError, match=f"{SLOT} .*no standby is connected"):
        pipeline.sync()
    standby.start()
    monkeypatch.setattr("slotlake.decoder.slots.failover.STANDBY_WAIT_SECONDS", 30.0)
    pipeline.sync()
    assert_equal(database, pipeline, TABLES)


def _what_the_new_primary_lacks(
    stack: ExitStack,
    primary: EmbeddedPostgres,
    database: Database,
    pipeline: Pipeline,
    file: Path,
    remote: str,
) -> None:
    """Without synchronized_standby_slots the lake can be ahead of the server that takes over."""
    second = stack.enter_context(standby_of(primary, keeps_slots=True))
    second.stop("fast")
    write(database, 5000)
    lost = pipeline.sync()
    write(database, 6000)
    batch = pipeline.pull()
    primary.stop("immediate")
    second.start()
    database = promote(second)
    with Pipeline.open(with_dsn(file, leads_to(primary, second)), remote=remote) as moved:
        for again in (moved.sync, moved.pull, moved.verify):
            with pytest.raises(HistoryError, match=f"the lake is at {lost.lsn} of timeline 2") as told:
                again()
            assert "slotlake recover" in told.value.way_out
            assert not told.value.retryable
            assert told.value.exit_code == 3
        write(database, 8000)
        assert batch.batch is not None, "one that is of the dead timeline must not be taken for the source's"
        assert moved.recover(carry_out=True).carried_out
        assert moved.verify().equal
        assert_equal(database, moved, TABLES)


def test_a_timelines_history_is_read() -> None:
    text = '1\t0/3000158\tno recovery target specified\n\n 2\tA/FF\tat restore point "x"\n# 9 0/1\n'
    assert switch_points(text) == {1: 0x3000158, 2: 0xA000000FF}
