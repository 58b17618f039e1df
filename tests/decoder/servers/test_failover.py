"""Slots that outlive a promotion: a failover slot of 17, and one made on the standby itself (16)."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg
import pytest

from slotlake.decoder.errors import SlotError, SourceError
from slotlake.decoder.server.source import SourceSettings, connect
from slotlake.decoder.server.timeline import HistoryError, Origin, require_history
from slotlake.decoder.slots.confirm import confirm
from slotlake.decoder.slots.slot import create_slot, inspect_slot
from slotlake.decoder.stream.pull import pull
from slotlake.infra.local.postgres import EmbeddedPostgres, temporary_postgres
from tests.conftest import Database
from tests.decoder.servers.standby import replayed_to, standby_of
from tests.decoder.servers.test_standby import CONF, follow, snapshots_logged
from tests.decoder.sources import replayed


def made(server: EmbeddedPostgres) -> Database:
    database = Database(server, "postgres")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    return database


def promoted(standby: EmbeddedPostgres) -> Database:
    with psycopg.connect(standby.dsn(), autocommit=True) as connection:
        assert connection.execute("SELECT pg_promote(true, 60)").fetchone() == (True,)
    return Database(standby, "postgres")


def rows(database: Database) -> dict[str, tuple[str, ...]]:
    return {row[0]: row for row in database.execute("SELECT id::text, a FROM t")}


def test_a_failover_slot_of_17(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(temporary_postgres(version=17, conf=CONF))
        primary = made(server)
        plain = SourceSettings(server.dsn(), ("p",), "kept", failover=False)
        with create_slot(plain) as snapshot, connect(server.dsn()) as connection:
            start = snapshot.lsn
            state = inspect_slot(connection, "kept")
            assert state is not None
            assert not state.failover
        standby = stack.enter_context(standby_of(server, keeps_slots=True))
        primary.execute("INSERT INTO t VALUES (1, 'a')")
        # Asked for by name, a slot that is there already is made so.
        named = SourceSettings(server.dsn(), ("p",), "kept", failover=True)
        batches = [pull(named, "x", tmp_path, start=start)]
        there = SourceSettings(standby.dsn(), ("p",), "kept")
        give_up = time.monotonic() + 150  # the standby's worker sleeps up to 30 s between two looks
        state = None
        while state is None or state.temporary:
            assert time.monotonic() < give_up, standby.log.read_text()
            # A copy is complete when the primary's slot has moved beyond where the standby began.
            primary.execute("SELECT pg_log_standby_snapshot()")
            batches.append(pull(named, "x", tmp_path, start=batches[-1].end_lsn))
            confirm(named, batches[-1].end_lsn)
            with connect(standby.dsn()) as connection:
                state = inspect_slot(connection, "kept")
            time.sleep(0.1)
        assert state.synced
        assert state.failover
        with pytest.raises(SlotError, match="is a standby, and its slot is a copy"):
            pull(there, "x", tmp_path, start=batches[-1].end_lsn)
        with pytest.raises(SourceError, match="a standby, which cannot create a slot with failover"):
            create_slot(SourceSettings(standby.dsn(), ("p",), "other", failover=True))
        primary.execute("UPDATE t SET a = 'b'; INSERT INTO t VALUES (2, 'c')")
        lsn = batches[-1].end_lsn
        origin = Origin(str(batches[0].manifest["system_identifier"]), 1)
        follow(primary, standby)
        server.stop("immediate")
        after = promoted(standby)
        after.execute("INSERT INTO t VALUES (3, 'd')")
        joined = require_history(standby.dsn(), origin, lsn)
        assert joined.server.timeline == 2
        assert joined.history[1] > lsn
        second = pull(there, "x", tmp_path, start=lsn)
        assert second.manifest["timeline"] == 2
        assert replayed([*batches, second], {}) == rows(after)
        confirm(there, second.end_lsn)
        for other, said in (
            (Origin("1", 1), "another PostgreSQL cluster"),
            (Origin(origin.system_identifier, 7), "does not continue timeline 7"),
        ):
            with pytest.raises(HistoryError, match=said):
                require_history(standby.dsn(), other, lsn)
        with pytest.raises(HistoryError, match="1 bytes of WAL that were lost"):
            require_history(standby.dsn(), origin, joined.history[1] + 1)


def test_a_slot_made_on_a_standby_outlives_its_promotion(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(temporary_postgres(version=16, conf=CONF))
        primary = made(server)
        standby = stack.enter_context(standby_of(server))
        source = SourceSettings(standby.dsn(), ("p",), "on_the_standby")
        with snapshots_logged(primary), create_slot(source) as snapshot:
            start = snapshot.lsn
        primary.execute("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 50) i")
        follow(primary, standby)
        first = pull(source, "x", tmp_path, start=start)
        with suppress(psycopg.OperationalError), primary.connect() as writer:
            writer.execute("BEGIN; INSERT INTO t VALUES (100, 'open when the primary fails')")
            writer.execute("SELECT txid_current()")
            primary.execute("DELETE FROM t WHERE id % 3 = 0")
            replayed_to(standby, primary.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0])
            server.stop("immediate")
        after = promoted(standby)
        after.execute("INSERT INTO t VALUES (200, 'on the new timeline')")
        second = pull(source, "x", tmp_path, start=first.end_lsn)
        assert [first.manifest["timeline"], second.manifest["timeline"]] == [1, 2]
        assert replayed([first, second], {}) == rows(after)
        confirm(source, second.end_lsn)
