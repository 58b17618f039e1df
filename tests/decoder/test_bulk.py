"""A backlog read through SQL (`decoder.stream.bulk`): the same batch as from the stream, whatever it has."""

from __future__ import annotations

import struct
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from slotlake.decoder.errors import ProtocolError, SourceError, SourceUnavailableError
from slotlake.decoder.server.source import SourceSettings, connect
from slotlake.decoder.slots.confirm import confirm
from slotlake.decoder.slots.slot import inspect_slot
from slotlake.decoder.stream import bulk, puller
from slotlake.decoder.stream.bulk import BulkStream
from slotlake.decoder.stream.bulk_rows import CopiedRows
from slotlake.decoder.stream.copy_data import Frames
from tests.conftest import Database
from tests.decoder.sources import confirmed_flush, insert_position, pulled, replayed, slotted, through_sql
from tests.decoder.test_streaming import Twins, fill

MODES: dict[str, dict[str, Any]] = {
    "streamed": {"bulk": False},
    "whole": {"streaming": "off"},
    "parallel": {"streaming": "parallel"},
    "on": {"streaming": "on", "binary": True},
}


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Everything is read through SQL, in windows of 64 kB; the windows asked for."""
    asked: list[tuple[int, int]] = []
    original = BulkStream._next_window

    def noted(self: BulkStream) -> None:
        original(self)
        asked.append((self._position, self._window_end))

    through_sql(monkeypatch, 64 << 10)
    monkeypatch.setattr(BulkStream, "_next_window", noted)
    return asked


def slots_of(database: Database) -> list[str]:
    query = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    return [str(row[0]) for row in database.execute(query)]


def test_transactions_of_all_kinds_over_many_windows(
    database: Database,
    sessions: list[psycopg.Connection[Any]],
    tmp_path: Path,
    windows: list[tuple[int, int]],
) -> None:
    twins = Twins(database, tmp_path, MODES)
    one, two, three, four = sessions
    fill(one, "a", 1, 2000)
    fill(two, "b", 1, 2000)
    one.execute("SAVEPOINT s1")
    fill(one, "a", 10_000, 1500)
    one.execute("ROLLBACK TO s1")
    database.execute("SELECT pg_logical_emit_message(false, 'loose', 'b')")
    fill(three, "a", 50_000, 1500)
    one.execute("SELECT pg_logical_emit_message(true, 'in', 'a')")
    for i in range(300):
        database.execute(f"INSERT INTO b VALUES ({100_000 + i}, 'small')")
    fill(four, "b", 70_000, 1500)
    four.rollback()
    two.commit()
    one.execute("UPDATE a SET v = v || 'u', id = -id WHERE id <= 100")
    one.execute("TRUNCATE b")
    one.commit()
    first = twins.same()
    assert len(first) > 3000
    assert len(windows) > 10
    three.commit()  # begun before the first batch's end
    fill(one, "b", 1, 500)
    one.commit()
    assert len(twins.same()) == 2000


def test_the_slot_stays_where_it_stands(database: Database, tmp_path: Path, windows: list[Any]) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    source, start = slotted(database)
    held: dict[Any, tuple[Any, ...]] = {}
    at = start
    for i in range(3):  # nothing is ever confirmed: the copy is moved on instead
        database.execute(f"INSERT INTO t SELECT i, 'x' FROM generate_series({i * 9000}, {i * 9000 + 8999}) i")
        database.execute("UPDATE t SET a = 'y' WHERE id % 100 = 0")
        batch = pulled(source, tmp_path, at)
        assert batch.start_lsn == at
        held, at = replayed([batch], held), batch.end_lsn
        assert confirmed_flush(source) == start
        assert slots_of(database) == [source.slot]
    assert held == {(row[0]): row for row in database.execute("SELECT id::text, a FROM t")}
    assert len(windows) > 6


def test_an_early_end_is_at_a_commit(database: Database, tmp_path: Path, windows: list[Any]) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    source, start = slotted(database)
    for i in range(40):
        database.execute(f"INSERT INTO t SELECT i, 'x' FROM generate_series({i * 500}, {i * 500 + 499}) i")
    first = pulled(source, tmp_path, start, max_bytes=100_000)
    assert 500 <= first.changes < 20_000
    assert first.changes % 500 == 0
    assert slots_of(database) == [source.slot]
    second = pulled(source, tmp_path, first.end_lsn)
    assert first.changes + second.changes == 20_000
    assert len(replayed([first, second])) == 20_000


def test_a_server_without_a_free_slot_is_streamed_from(
    database: Database, tmp_path: Path, windows: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    source, start = slotted(database)
    database.execute("INSERT INTO t SELECT generate_series(1, 5000)")
    with ExitStack() as stack:
        taken = [stack.enter_context(psycopg.connect(database.dsn, autocommit=True)) for _ in range(70)]
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            for i, each in enumerate(taken):
                each.execute("SELECT pg_create_physical_replication_slot(%s, true, true)", [f"full_{i}"])
        assert pulled(source, tmp_path, start).changes == 5000
    assert windows == []
    assert "over a replication connection: the server has no free replication slot" in caplog.text


def test_what_fills_whole_windows_is_streamed(
    database: Database,
    tmp_path: Path,
    windows: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(bulk, "_NEARLY_EMPTY", 16)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    source, start = slotted(database)
    database.execute("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 20000) i")
    assert pulled(source, tmp_path, start).changes == 20_000
    assert len(windows) == 1
    assert "a transaction has more WAL than the window" in caplog.text


def test_a_batch_ends_early_when_too_much_would_be_decoded_again(
    database: Database, tmp_path: Path, windows: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "AGAIN_BYTES_MAX", 300 << 10)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    source, start = slotted(database)
    for i in range(60):
        database.execute(f"INSERT INTO t SELECT i, 'x' FROM generate_series({i * 200}, {i * 200 + 199}) i")
    until = insert_position(database)
    batches, at = [], start
    while at < until:
        batches.append(pulled(source, tmp_path, at, until=until))
        assert batches[-1].end_lsn > at
        at = batches[-1].end_lsn
    assert at == until
    assert len(batches) > 2
    assert sum(batch.changes for batch in batches) == len(replayed(batches)) == 12_000


def window_sizes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """WAL of each window, and what came out of it."""
    found: list[tuple[int, int]] = []
    original = BulkStream._end_window

    def noted(self: BulkStream) -> Any:
        found.append((self._window_end - self._window_start, self._window_sent))
        return original(self)

    monkeypatch.setattr(BulkStream, "_end_window", noted)
    return found


def test_what_comes_out_of_a_window_bounds_the_next(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text that TOAST has compressed comes out eighty times as large as its WAL."""
    monkeypatch.setattr(bulk, "BULK_MIN_BYTES", 0)
    monkeypatch.setattr(bulk, "FIRST_BYTES", 64 << 10)
    monkeypatch.setattr(bulk, "SPOOL_BYTES", 8 << 20)
    found = window_sizes(monkeypatch)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    source, start = slotted(database)
    with database.connect() as session:
        for i in range(400):
            session.execute("INSERT INTO t VALUES (%s, repeat('x', 200000))", [i])
    assert pulled(source, tmp_path, start).changes == 400
    sent = [out for _, out in found]
    assert sum(sent) > 80_000_000
    assert max(sent) < 3 * (8 << 20), found  # the first few, and a first one four times as long
    assert len(found) < 30


def test_windows_grow_where_little_comes_out(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "FIRST_BYTES", 256 << 10)
    found = window_sizes(monkeypatch)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    source, start = slotted(database)
    with database.connect() as session:
        for i in range(200):
            session.execute(
                "INSERT INTO t SELECT i, md5(i::text) FROM generate_series(%s::int, %s) i",
                [i * 500, i * 500 + 499],
            )
    assert pulled(source, tmp_path, start).changes == 100_000
    assert [wal for wal, _ in found[:3]] == [256 << 10, 1 << 20, 4 << 20]


@pytest.mark.parametrize("why", ["its own limit", "a full disk"])
def test_a_server_without_room_is_streamed_from(
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    why: str,
) -> None:
    """A single transaction, however large, comes out of one window."""
    monkeypatch.setattr(bulk, "SPOOL_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(bulk, "_SETTINGS", bulk._SETTINGS.replace("64MB", "64kB"))
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    source, start = slotted(database)
    database.execute("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 40000) i")
    if why == "a full disk":

        def full(*_: Any) -> psycopg.Error:
            error = psycopg.errors.DiskFull("could not write to file: No space left on device")
            error.sqlstate = "53100"
            return error

        monkeypatch.setattr(bulk, "_server_error", full)
    assert pulled(source, tmp_path, start).changes == 40_000
    assert "a backlog cannot be read through SQL" in caplog.text
    assert (
        "temporary file size exceeds" if why == "its own limit" else "a disk of the server is full"
    ) in caplog.text


def test_a_role_that_may_not_limit_temporary_files(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    role = f"plain_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'; GRANT SELECT ON t TO {role}")
    source, start = slotted(database)
    database.execute("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 40000) i")
    parts = psycopg.conninfo.conninfo_to_dict(source.dsn) | {"user": role, "password": "x"}
    plain = replace(source, dsn=psycopg.conninfo.make_conninfo("", **parts))
    try:
        assert pulled(plain, tmp_path, start).changes == 40_000
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("asked", [True, False])
def test_a_two_phase_slot_is_streamed(
    database: Database, tmp_path: Path, windows: list[Any], asked: bool
) -> None:
    """It sends prepared transactions also to a pipeline that does not ask, and never again."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    source, start = slotted(database, two_phase=True)
    source = replace(source, two_phase=asked)
    with database.connect() as session:
        session.execute("BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'one'")
    first = pulled(source, tmp_path, start)
    confirm(source, first.end_lsn)
    with database.connect() as session:
        session.execute("COMMIT PREPARED 'one'")
    second = pulled(source, tmp_path, first.end_lsn)
    assert (first.changes, second.changes) == (0, 1)
    assert windows == []


def test_a_missing_publication_is_named(database: Database, tmp_path: Path, windows: list[Any]) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source, start = slotted(database)
    database.execute("INSERT INTO t VALUES (1)")
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    with pytest.raises(SourceError, match="did not exist at this place in the WAL"):
        pulled(source, tmp_path, start)
    assert len(windows) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_session_that_is_ended_is_one_clear_error(
    database: Database, tmp_path: Path, windows: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "WINDOW_BYTES", 1 << 30)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    source, start = slotted(database)
    database.execute("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, 300000) i")
    cut = threading.Event()

    def cutting() -> None:
        query = (
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
            "WHERE database = current_database() AND temporary AND active"
        )
        with database.connect() as connection:
            while not cut.is_set():
                if connection.execute(query).fetchall():
                    cut.set()

    cutter = threading.Thread(target=cutting)
    cutter.start()
    try:
        with pytest.raises(SourceUnavailableError, match="was lost while a backlog was read") as caught:
            pulled(source, tmp_path, start)
    finally:
        cut.set()
        cutter.join()
    assert caught.value.retryable
    assert list(tmp_path.iterdir()) == []
    assert pulled(source, tmp_path, start).changes == 300_000
    assert slots_of(database) == [source.slot]


def test_it_is_used_for_a_backlog_only(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    class Noted(BulkStream):
        def __init__(self, source: SourceSettings, options: Any, start: int, until: int) -> None:
            made.append(until - start)
            super().__init__(source, options, start, until)

    monkeypatch.setattr(puller, "BulkStream", Noted)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    source, start = slotted(database)
    database.execute("INSERT INTO t VALUES (0, 'one')")
    first = pulled(source, tmp_path, start)
    assert (first.changes, made) == (1, [])
    database.execute("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 60000) i")
    second = pulled(source, tmp_path, first.end_lsn)
    assert second.changes == 60_000
    assert len(made) == 1
    assert made[0] >= bulk.BULK_MIN_BYTES
    with connect(source.dsn) as connection:
        assert inspect_slot(connection, source.slot) is not None


SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)


def row(lsn: int, message: bytes) -> bytes:
    return struct.pack(">hiQi", 2, 8, lsn, len(message)) + message


def frames(contents: list[bytes]) -> Frames:
    lengths = np.array([len(content) for content in contents], np.int64)
    return Frames(np.frombuffer(b"".join(contents), np.uint8), lengths, ended=False)


def test_rows_become_replication_messages() -> None:
    messages = [b"B" * n for n in (1, 15, 16, 17, 33, 1000)]
    for split in range(1, len(messages) + 2):
        contents = [row(7 + i, message) for i, message in enumerate(messages)] + [b"\xff\xff"]
        contents[0] = SIGNATURE + contents[0]
        rows, found = CopiedRows(), []
        for part in (contents[:split], contents[split:]):
            data, lengths = (
                rows.take(frames(part)) if part else (np.empty(0, np.uint8), np.empty(0, np.int64))
            )
            ends = np.cumsum(lengths)
            found += [data[end - size : end].tobytes() for end, size in zip(ends, lengths, strict=True)]
        rows.end()
        assert found == [struct.pack(">cQQQ", b"w", 7 + i, 0, 0) + m for i, m in enumerate(messages)]


def test_broken_rows_are_refused() -> None:
    good = SIGNATURE + row(1, b"Begin")
    bad = [[good[:end]] for end in range(1, len(good)) if end != len(SIGNATURE)]
    bad += [[good + b"x"], [good, b"\xff\xff", row(2, b"x")], [good, b""], [good, b"\xff\xfe"]]
    bad += [[b"x" * len(good)], [SIGNATURE[:-8] + b"\0\1\0\0" + bytes(4) + row(1, b"")]]
    for i in (18 + 1, 19 + 5, 19 + 17):
        broken = bytearray(good)
        broken[i] ^= 4
        bad.append([bytes(broken)])
    for contents in bad:
        with pytest.raises(ProtocolError):
            CopiedRows().take(frames(contents))
    rows = CopiedRows()
    rows.take(frames([good]))
    with pytest.raises(ProtocolError, match="without the COPY trailer"):
        rows.end()
