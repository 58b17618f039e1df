"""Every way in which a source can refuse: one clear error, and no password in it."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from slotlake.decoder.changelog.batches import batches
from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.errors import (
    ChangeLogError,
    SlotBusyError,
    SlotError,
    SlotlakeError,
    SourceError,
    SourceUnavailableError,
)
from slotlake.decoder.server.source import SourceSettings, connect, connect_replication, identify, redact
from slotlake.decoder.slots.confirm import confirm
from slotlake.decoder.slots.slot import check_slot, create_slot, drop_slot
from slotlake.decoder.stream.framing import Bounds, Framing
from slotlake.decoder.stream.pull import pull
from slotlake.decoder.stream.receive import Stream
from slotlake.infra.local.postgres import EmbeddedPostgres, temporary_postgres
from tests.conftest import Database
from tests.decoder.sources import confirmed_flush, pulled, settings, slotted

PASSWORD = "s3cr3t-Pa55"


def refused(kind: type[SlotlakeError], match: str, call: object, *arguments: object) -> SlotlakeError:
    """Call it; the error has what, where and a way out, and no password anywhere, nor in a traceback."""
    with pytest.raises(kind, match=match) as caught:
        call(*arguments)  # type: ignore[operator]
    error = caught.value
    shown = str(error) + "".join(traceback.format_exception(error))
    assert PASSWORD not in shown
    assert error.where, "what, where, way out"
    assert error.way_out, "what, where, way out"
    return error


def dsn(**parts: Any) -> str:
    return psycopg.conninfo.make_conninfo("", **{"password": PASSWORD, "connect_timeout": 3, **parts})


def test_unreachable_host() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused
        place = dsn(host="127.0.0.1", port=taken.getsockname()[1], user="u", dbname="d")
        error = refused(SourceUnavailableError, "cannot be reached", identify, place)
    assert error.retryable
    assert "host=127.0.0.1" in error.where


def test_unknown_host() -> None:
    refused(SourceUnavailableError, "cannot be resolved", connect, dsn(host="db.invalid", user="u"))


def test_no_socket() -> None:
    refused(SourceUnavailableError, "cannot be reached", connect, dsn(host="/nonexistent", user="u"))


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://u:{PASSWORD}/x@host/db",
        f"postgresql://u:p@{PASSWORD}@host/db",
        f"postgresql://u:{PASSWORD}%zz@host/db",
        f"host=h password={PASSWORD} nonsense",
        f"host=h password={PASSWORD} nonsense=1",
        "",
    ],
)
def test_an_unreadable_dsn_is_not_shown(text: str) -> None:
    assert PASSWORD not in redact(text)
    if text:
        refused(SourceError, "not a connection string", connect, text)


def test_wrong_password(pg: EmbeddedPostgres) -> None:
    place = dsn(host="127.0.0.1", port=pg.port, user="slotlake", dbname="postgres")
    error = refused(SourceError, "does not accept", connect, place)
    assert not error.retryable


def test_no_password(pg: EmbeddedPostgres) -> None:
    place = dsn(host="127.0.0.1", port=pg.port, user="slotlake", dbname="postgres", passfile="/dev/null")
    refused(SourceError, "does not accept", connect, place.replace(f"password={PASSWORD}", ""))


def test_no_such_database(pg: EmbeddedPostgres) -> None:
    refused(SourceError, "no such database", connect, pg.dsn("nowhere"))


def test_server_without_tls(pg: EmbeddedPostgres) -> None:
    refused(SourceError, "TLS", connect, pg.dsn() + " sslmode=require")


@contextmanager
def role(database: Database, attributes: str) -> Iterator[str]:
    """A login role; its dsn."""
    name = f"role_{database.name}"
    database.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}' {attributes}")
    parts = psycopg.conninfo.conninfo_to_dict(database.dsn)
    try:
        yield psycopg.conninfo.make_conninfo("", **{**parts, "user": name, "password": PASSWORD})
    finally:
        database.execute(f"DROP OWNED BY {name}")
        database.execute(f"DROP ROLE {name}")


def test_role_without_replication(database: Database) -> None:
    with role(database, "") as place:
        error = refused(SourceError, "may not use replication", identify, place)
    assert "ALTER ROLE" in error.way_out


def test_role_that_may_replicate_and_nothing_else_can_pull(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    with role(database, "REPLICATION") as place:
        source = SourceSettings(place, ("p",), f"slot_{database.name}")
        with create_slot(source) as made:
            start = made.lsn
        database.execute("INSERT INTO t VALUES (1)")
        batch = pulled(source, tmp_path, start)
        confirm(source, batch.end_lsn)
        assert batch.changes == 1
        drop_slot(source)


def test_no_pg_hba_entry() -> None:
    with temporary_postgres() as server:
        (server.data / "pg_hba.conf").write_text("host all postgres 127.0.0.1/32 scram-sha-256\n")
        server.restart()
        refused(SourceError, "pg_hba.conf has no entry", connect_replication, server.dsn())


def _senders_ended(server: EmbeddedPostgres) -> None:
    """Wait for the server's side of closed replication connections: each holds a place until it has ended."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'"
        give_up = time.monotonic() + 30
        while connection.execute(query).fetchone() != (0,):
            assert time.monotonic() < give_up, "a replication connection was left open"
            time.sleep(0.02)


def test_wal_level_and_exhausted_limits() -> None:
    with temporary_postgres(conf={"wal_level": "replica", "max_wal_senders": "1"}) as server:
        if server.version < 19:  # later ones turn logical decoding on when it is needed
            refused(SourceError, "wal_level is 'replica'", identify, server.dsn())
            _senders_ended(server)
            source = SourceSettings(server.dsn(), ("p",), "s")
            refused(SourceError, "wal_level is not 'logical'", create_slot, source)
        _senders_ended(server)
        with connect_replication(server.dsn()):
            error = refused(SourceUnavailableError, "WAL senders are in use", identify, server.dsn())
            assert "max_wal_senders" in error.way_out
    limits = {"max_replication_slots": "1", "max_connections": "4", "superuser_reserved_connections": "0"}
    with temporary_postgres(conf={**limits, "max_wal_senders": "2"}) as server:
        source = SourceSettings(server.dsn(), ("p",), "s")
        create_slot(source).close()
        refused(
            SourceError, "no free replication slot", create_slot, SourceSettings(server.dsn(), ("p",), "s2")
        )
        held = [connect(server.dsn()) for _ in range(4)]
        refused(SourceUnavailableError, "no free connection", connect, server.dsn())
        for connection in held:
            connection.close()


def test_slot_missing(database: Database, tmp_path: Path) -> None:
    error = refused(SlotError, "does not exist", lambda: pulled(settings(database), tmp_path, 1))
    assert "slotlake recover" in error.way_out
    refused(SlotError, "does not exist", confirm, settings(database), 1)


def test_slot_of_another_plugin(database: Database, tmp_path: Path) -> None:
    source = settings(database)
    database.execute("SELECT pg_create_physical_replication_slot(%s)", (source.slot,))
    try:
        refused(SlotError, "physical", lambda: pulled(source, tmp_path, 1))
    finally:
        database.execute("SELECT pg_drop_replication_slot(%s)", (source.slot,))


def test_slot_of_another_database(pg: EmbeddedPostgres, database: Database, tmp_path: Path) -> None:
    source, start = slotted(database)
    other = SourceSettings(pg.dsn(), source.publications, source.slot)
    error = refused(SlotError, "belongs to database", lambda: pulled(other, tmp_path, start))
    assert database.name in str(error)


def test_slot_in_use(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotlake.decoder.stream.receive.START_RETRY_SECONDS", 0.3)
    database.execute("CREATE PUBLICATION p")
    source, start = slotted(database)
    with Stream(source, start):
        with connect(source.dsn) as connection:
            call = lambda: check_slot(connection, source, position=start, wait_seconds=0.3)  # noqa: E731
            error = refused(SlotBusyError, r"in use by pid \d+ \(user slotlake, application slotlake", call)
            assert error.retryable
        refused(SlotBusyError, "in use", Stream, source, start)
    assert pulled(source, tmp_path, start).start_lsn == start, "free again once the reader has ended"


def test_slot_ahead_of_the_lake(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    source, start = slotted(database)
    database.execute("INSERT INTO t VALUES (1)")
    batch = pulled(source, tmp_path / "one", start)
    confirm(source, batch.end_lsn)
    refused(SlotError, "does not send the changes", lambda: pulled(source, tmp_path / "two", start))


def test_slot_name_taken_or_impossible(database: Database) -> None:
    source, _ = slotted(database)
    refused(SlotError, "exists already", create_slot, source)
    refused(SlotError, "cannot be the name", create_slot, SourceSettings(database.dsn, ("p",), 'a"b'))


def test_slot_lost_between_pulls(tmp_path: Path) -> None:
    conf = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with temporary_postgres(conf=conf) as server, psycopg.connect(server.dsn(), autocommit=True) as admin:
        source = SourceSettings(server.dsn(), ("p",), "s")
        admin.execute("CREATE TABLE t (a text); CREATE PUBLICATION p FOR TABLE t")
        with create_slot(source) as made:
            start = made.lsn
        for _ in range(4):
            admin.execute("INSERT INTO t SELECT repeat(md5(i::text), 30) FROM generate_series(1, 20000) i")
            admin.execute("SELECT pg_switch_wal()")
            admin.execute("CHECKPOINT")
        error = refused(SlotError, "has invalidated the slot", lambda: pulled(source, tmp_path, start))
        assert "max_slot_wal_keep_size" in error.way_out
        assert list(tmp_path.iterdir()) == []


def test_publication_missing_in_the_stream(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source, start = slotted(database)
    database.execute("INSERT INTO t VALUES (1)")
    refused(SourceError, "has no publication 'p'", lambda: pulled(source, tmp_path, start))
    # Made too late: at that point of the WAL it did not exist, and the server may leave the change out.
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    refused(SourceError, "did not exist at this place in the WAL", lambda: pulled(source, tmp_path, start))
    assert list(tmp_path.iterdir()) == []


def fill(database: Database, rows: int) -> tuple[SourceSettings, int]:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    source, start = slotted(database)
    database.execute(f"INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, {rows}) i")
    return source, start


def test_connection_cut_and_walsender_ended_in_mid_stream(database: Database, tmp_path: Path) -> None:
    source, start = fill(database, 200_000)
    source = replace(source, bulk=False)  # tests/decoder/test_bulk.py cuts the other way
    done = threading.Event()

    def cut() -> None:
        while not done.is_set():
            query = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s"
            database.execute(query + " AND active_pid IS NOT NULL", (source.slot,))
            time.sleep(0.02)

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        error = refused(
            SlotlakeError, "was lost|ended the replication stream", lambda: pulled(source, tmp_path, start)
        )
    finally:
        done.set()
        cutter.join()
    assert error.retryable
    assert list(tmp_path.iterdir()) == []
    assert confirmed_flush(source) == start
    assert pulled(source, tmp_path, start).changes == 200_000


def test_server_shut_down_in_mid_stream(tmp_path: Path) -> None:
    with temporary_postgres() as server:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
        source = SourceSettings(server.dsn(), ("p",), "s")
        with create_slot(source) as made:
            start = made.lsn
        for mode in ("fast", "immediate"):
            with Stream(source, start) as stream, pytest.raises(SourceUnavailableError):
                stopping = threading.Thread(target=server.stop, args=(mode,))
                stopping.start()
                framing, buffer = Framing(Bounds(start, 1 << 60)), MessageBuffer()
                for _ in range(200):
                    frames = stream.drain()
                    framing.take(frames.data, frames.lengths, buffer)
                    stream.report(framing.received_lsn, now=framing.asked_for_reply())
                    stream.rest(0.05)
            stopping.join()
            refused(SourceUnavailableError, "cannot be reached", lambda: pulled(source, tmp_path, start))
            server.start()


def test_full_disk_while_a_batch_is_written(database: Database, tmp_path: Path) -> None:
    """On a real small file system when root can mount one, else by the process's file size limit."""
    source, start = fill(database, 100_000)
    with small_disk() as place:
        log = place / "changelog"
        error = refused(
            ChangeLogError, "cannot be written: (No space|File too large)", lambda: pulled(source, log, start)
        )
        assert "free space on the disk" in error.way_out
        assert list(log.iterdir()) == [], "nothing half-written"
        assert confirmed_flush(source) == start
    batch = pulled(source, tmp_path, start)
    assert batch.changes == 100_000


@contextmanager
def small_disk() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="slotlake-small-"))
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)]
    mounted = (
        shutil.which("mount") and subprocess.run(command, check=False, capture_output=True).returncode == 0
    )
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        if not mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (512 << 10, before[1]))
        yield place
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
        if mounted:
            subprocess.run(["umount", str(place)], check=True)
        shutil.rmtree(place)


def test_unwritable_change_log(database: Database, tmp_path: Path) -> None:
    source, start = fill(database, 10)
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    refused(ChangeLogError, "cannot be written", lambda: pulled(source, blocked / "log", start))


def test_a_batch_of_another_server_or_slot(database: Database, tmp_path: Path) -> None:
    source, start = fill(database, 10)
    batch = pulled(source, tmp_path, start)
    manifest = batch.path / "manifest.json"
    told = manifest.read_text()
    manifest.write_text(told.replace(batch.manifest["system_identifier"], "1"))
    refused(ChangeLogError, "another server", lambda: pulled(source, tmp_path, start))
    manifest.write_text(told.replace(source.slot, "other"))
    refused(ChangeLogError, "from slot 'other'", lambda: pulled(source, tmp_path, start))
    manifest.write_text("{")
    refused(ChangeLogError, "is damaged", lambda: pulled(source, tmp_path, start))
    assert len(batches(tmp_path)) == 1


def test_no_password_in_a_process_title(database: Database, tmp_path: Path) -> None:
    """Nothing is started by a pull, and this process's own command line is untouched."""
    source, start = fill(database, 10)
    pull(source, "test", tmp_path, start=start)
    assert database.server.password not in Path(f"/proc/{os.getpid()}/cmdline").read_text()
