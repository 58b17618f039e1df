"""Pulling from a real server: exact bounds, whole batches, nothing confirmed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.changelog.batches import Batch, batches
from slotlake.decoder.errors import ChangeLogError, SourceError, UnsendableError
from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.decoder.plugins.live import read_slot
from slotlake.decoder.server.source import connect
from slotlake.decoder.slots.confirm import confirm
from slotlake.decoder.slots.slot import create_slot, inspect_slot
from slotlake.decoder.stream.pull import PullProgress
from slotlake.decoder.stream.receive import Stream
from slotlake.infra.opened.standing import PullSettings, StandingStream
from tests.conftest import Database
from tests.decoder.sources import (
    confirmed_flush,
    held_by,
    insert_position,
    pulled,
    replayed,
    settings,
    slotted,
    through_sql,
)
from tests.meanwhile import meanwhile

TABLE = """
CREATE TABLE t (id int PRIMARY KEY, a int, b numeric(8,2), c text, d timestamptz, e bool);
CREATE PUBLICATION p FOR TABLE t;
"""
TEXTS = "id::text, a::text, b::text, c, d::text, left(e::text, 1)"


def inserted(first: int, last: int) -> str:
    return (
        "INSERT INTO t SELECT i, i % 7, i * 1.25, 'row ' || i, now(), i % 2 = 0 "
        f"FROM generate_series({first}, {last}) i"
    )


def test_a_batch_holds_what_was_committed(database: Database, tmp_path: Path) -> None:
    database.execute(TABLE)
    source, start = slotted(database)
    database.execute(inserted(1, 1000))
    database.execute("UPDATE t SET a = -a, id = id + 5000 WHERE id % 3 = 0")
    database.execute("DELETE FROM t WHERE id % 5 = 0")
    database.execute("TRUNCATE t")
    database.execute(inserted(2000, 2100))
    batch = pulled(source, tmp_path, start)
    assert (batch.start_lsn, batch.transactions, batch.changes) == (start, 5, 1000 + 333 + 200 + 1 + 101)
    (relation,) = batch.relations
    assert (relation.schema, relation.table, relation.key) == ("public", "t", ("id",))
    assert relation.truncates == 1
    assert replayed([batch]) == held_by(database, "t", TEXTS)
    batch.verify()
    assert confirmed_flush(source) == start, "pull confirms nothing"


def test_batches_follow_each_other_without_gap_or_overlap(database: Database, tmp_path: Path) -> None:
    database.execute(TABLE)
    source, position = slotted(database)
    found = []
    for i in range(8):
        database.execute(inserted(100 * i, 100 * i + 50))
        database.execute(f"UPDATE t SET c = c || '!' WHERE id < {50 * i}")
        batch = pulled(source, tmp_path, position)
        assert batch.start_lsn == position
        position = batch.end_lsn
        if i % 3 == 0:  # confirming now and then changes nothing of what comes
            confirm(source, position)
            assert confirmed_flush(source) == position
        found.append(batch)
    assert replayed(found) == held_by(database, "t", TEXTS)
    assert sum(batch.transactions for batch in found) == 8 + 7


def test_every_end_position_gives_exactly_the_transactions_before_it(
    database: Database, tmp_path: Path
) -> None:
    """Each byte position from a commit record's start to its end, and in page headers, is a valid end."""
    database.execute(TABLE)
    source, start = slotted(database)
    for i in range(6):
        database.execute(inserted(10 * i, 10 * i + 3))
    whole = pulled(source, tmp_path / "whole", start)
    commits = whole.transaction_table().to_pylist()
    third = commits[2]
    header = (third["commit_lsn"] // 8192 + 1) * 8192
    positions = {third["commit_lsn"] + n for n in (-1, 0, 1, 7)} | {third["end_lsn"] + n for n in (-1, 0, 1)}
    positions |= {start + 1, *(header + n for n in (0, 5, 24))} & set(range(start, whole.end_lsn + 1))
    for until in sorted(positions):
        batch = pulled(source, tmp_path / str(until), start, until=until)
        assert batch.end_lsn == until
        expected = [t["commit_lsn"] for t in commits if t["commit_lsn"] < until]
        assert batch.transaction_table()["commit_lsn"].to_pylist() == expected, format_lsn(until)
        rest = pulled(source, tmp_path / str(until), until)
        assert batch.transactions + rest.transactions == len(commits), format_lsn(until)


def test_an_end_inside_a_page_header_does_not_hang(database: Database, tmp_path: Path) -> None:
    database.execute(TABLE)
    source, start = slotted(database)
    position = 0
    with database.connect() as connection:
        for i in range(20_000):  # until the insert position lies just behind a page header
            connection.execute("INSERT INTO t (id) VALUES (%s)", (i,))
            row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
            assert row is not None
            position = parse_lsn(row[0])
            if position % 8192 in (24, 40):
                break
        else:
            pytest.skip("no record ended on a page boundary")
    batch = pulled(source, tmp_path, start, until=position)
    assert batch.end_lsn == position
    assert pulled(source, tmp_path, position).transactions == 0


def test_an_idle_source_gives_an_empty_batch_at_once(database: Database, tmp_path: Path) -> None:
    database.execute(TABLE)
    source, start = slotted(database)
    first = pulled(source, tmp_path, start)
    begun = time.monotonic()
    batch = pulled(source, tmp_path, first.end_lsn)
    assert batch.transactions == 0
    assert batch.relations == ()
    assert time.monotonic() - begun < 5
    if batch.empty:
        assert not batch.path.exists()


def test_a_moved_position_without_transactions_is_a_batch(database: Database, tmp_path: Path) -> None:
    database.execute(TABLE + "CREATE TABLE other (a int)")
    source, start = slotted(database)
    database.execute("INSERT INTO other SELECT generate_series(1, 1000)")
    batch = pulled(source, tmp_path, start)
    assert batch.end_lsn > start
    assert (batch.transactions, batch.changes, batch.relations) == (0, 0, ())
    assert batch.bytes < 2000
    batch.verify()


def test_asynchronous_commits_before_the_call_are_included(database: Database, tmp_path: Path) -> None:
    database.execute(TABLE)
    source, position = slotted(database)
    with database.connect() as connection:
        connection.execute("SET synchronous_commit = off")
        for i in range(5):
            connection.execute(inserted(i, i))
            batch = pulled(source, tmp_path, position)
            assert batch.transactions == 1
            position = batch.end_lsn


def test_an_open_transaction_holds_nothing_up(database: Database, tmp_path: Path) -> None:
    """Its records are not flushed by anyone, and the position lies behind them."""
    database.execute(TABLE)
    source, start = slotted(database)
    with database.connect() as connection:
        connection.autocommit = False
        connection.execute(inserted(1, 100))
        begun = time.monotonic()
        first = pulled(source, tmp_path, start)
        assert time.monotonic() - begun < 5
        assert first.transactions == 0
        database.execute(inserted(200, 201))
        second = pulled(source, tmp_path, first.end_lsn)
        assert second.changes == 2
        connection.commit()
    third = pulled(source, tmp_path, second.end_lsn)
    assert third.changes == 100


def test_a_batch_on_disk_is_used_again(database: Database, tmp_path: Path) -> None:
    database.execute(TABLE)
    source, start = slotted(database)
    database.execute(inserted(1, 10))
    first = pulled(source, tmp_path, start)
    database.execute(inserted(11, 20))
    again = pulled(source, tmp_path, start)
    assert (again.name, again.digest) == (first.name, first.digest)
    longer = pulled(source, tmp_path, start, until=insert_position(database))
    assert longer.changes == 20


def test_a_damaged_batch_is_refused(database: Database, tmp_path: Path) -> None:
    database.execute(TABLE)
    source, start = slotted(database)
    database.execute(inserted(1, 1000))
    batch = pulled(source, tmp_path, start)
    file = batch.path / batch.relations[0].files[0]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(ChangeLogError, match="was changed"):
        pulled(source, tmp_path, start)


def test_a_byte_bound_cuts_at_a_commit(database: Database, tmp_path: Path) -> None:
    database.execute(TABLE)
    source, position = slotted(database)
    for i in range(20):
        database.execute(inserted(100 * i, 100 * i + 99))
    found = []
    for _ in range(30):
        batch = pulled(source, tmp_path, position, max_bytes=20_000)
        position = batch.end_lsn
        if not batch.transactions:
            break
        found.append(batch)
    assert len(found) > 3
    assert all(batch.changes == 100 * batch.transactions for batch in found)
    assert replayed(found) == held_by(database, "t", TEXTS)


def test_a_time_bound_cuts_at_a_commit(database: Database, tmp_path: Path) -> None:
    database.execute(TABLE)
    source, start = slotted(database)
    for i in range(20):
        database.execute(inserted(100 * i, 100 * i + 99))
    batch = pulled(source, tmp_path, start, max_seconds=0)
    assert batch.end_lsn > start
    rest = pulled(source, tmp_path, batch.end_lsn)
    assert replayed([batch, rest]) == held_by(database, "t", TEXTS)


def test_a_transaction_larger_than_a_chunk_goes_to_disk_in_pieces(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotlake.decoder.stream.puller.CHUNK_BYTES", 100_000)
    monkeypatch.setattr("slotlake.decoder.stream.copy_data.DRAIN_BYTES", 100_000)
    database.execute(TABLE)
    source, start = slotted(database)
    database.execute(inserted(1, 20_000))
    database.execute("UPDATE t SET id = id + 100000 WHERE id % 2 = 0")
    told: list[PullProgress] = []
    batch = pulled(source, tmp_path, start, progress=told.append)
    (relation,) = batch.relations
    assert len(relation.files) == 2, "old keys came later, so a second part began"
    table = batch.relation_table(relation)
    assert table["seq"].to_pylist() == list(range(30_000))
    assert table.column_names[:6] == ["seq", "op", "txn", "lsn", "old", "n0"]
    assert replayed([batch]) == held_by(database, "t", TEXTS)


def test_unchanged_toast_is_marked(database: Database, tmp_path: Path) -> None:
    database.execute(TABLE + "ALTER TABLE t ALTER c SET STORAGE EXTERNAL")
    database.execute("INSERT INTO t (id, c) VALUES (1, repeat('x', 10000))")
    source, start = slotted(database)
    before = held_by(database, "t", TEXTS)
    database.execute("UPDATE t SET a = 1")
    batch = pulled(source, tmp_path, start)
    assert batch.relation_table(batch.relations[0])["u3"].to_pylist() == [True]
    assert replayed([batch], before) == held_by(database, "t", TEXTS)


def test_messages_origins_and_schema_changes(database: Database, tmp_path: Path) -> None:
    database.execute(TABLE)
    source, start = slotted(database, messages=True)
    database.execute("SELECT pg_logical_emit_message(true, 'pre', 'within')")
    database.execute("SELECT pg_logical_emit_message(false, 'pre', 'outside')")
    database.execute(inserted(1, 2))
    database.execute("ALTER TABLE t ADD f text; INSERT INTO t (id, f) VALUES (9, 'new')")
    name = f"from_{database.name}"
    database.execute(f"SELECT pg_replication_origin_create('{name}')")
    with database.connect() as connection:
        connection.execute("SELECT pg_replication_origin_session_setup(%s)", [name])
        connection.execute(inserted(50, 50))
    database.execute(f"SELECT pg_replication_origin_drop('{name}')")
    batch = pulled(source, tmp_path, start)
    messages = batch.message_table()
    assert messages is not None
    assert messages["content"].to_pylist() == [b"within", b"outside"]
    assert messages["txn"].to_pylist() == [0, None]
    assert [len(relation.columns) for relation in batch.relations] == [6, 7]
    assert batch.transaction_table()["origin"].to_pylist() == [None, None, None, name]


def test_the_key_under_each_replica_identity(database: Database, tmp_path: Path) -> None:
    database.execute(
        """
        CREATE TABLE by_default (a int, b int, c int, PRIMARY KEY (b, a));
        CREATE TABLE by_full (a int PRIMARY KEY, b int); ALTER TABLE by_full REPLICA IDENTITY FULL;
        CREATE TABLE by_full_keyless (a int, b int); ALTER TABLE by_full_keyless REPLICA IDENTITY FULL;
        CREATE TABLE by_index (a int PRIMARY KEY, b int NOT NULL UNIQUE);
        ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_b_key;
        CREATE TABLE by_nothing (a int PRIMARY KEY, b int); ALTER TABLE by_nothing REPLICA IDENTITY NOTHING;
        CREATE TABLE keyless (a int, b int);
        CREATE PUBLICATION p FOR ALL TABLES
        """
    )
    source, start = slotted(database)
    tables = ("by_default", "by_full", "by_full_keyless", "by_index", "by_nothing", "keyless")
    for table in tables:
        database.execute(f"INSERT INTO {table} (a, b) VALUES (1, 2)")
    keys = {r.table: r.key for r in pulled(source, tmp_path, start).relations}
    expected = [("a", "b"), ("a",), (), ("b",), ("a",), ()]
    assert keys == dict(zip(tables, expected, strict=True))


def test_live_writers_while_pulling(database: Database, tmp_path: Path) -> None:
    """Concurrent transactions, some rolled back, many batches: the replayed log is the table."""
    database.execute(TABLE)
    source, position = slotted(database)

    def write(worker: int, stop: threading.Event) -> None:
        with database.connect() as connection:
            number = 0
            while not stop.is_set():
                number += 1
                key = worker * 100_000 + number
                connection.execute("BEGIN")
                connection.execute(inserted(key, key))
                connection.execute("SAVEPOINT s")
                connection.execute(f"UPDATE t SET a = a + 1 WHERE id IN ({key}, {key - 1})")
                if number % 3 == 0:
                    connection.execute("ROLLBACK TO s")
                connection.execute("ROLLBACK" if number % 5 == 0 else "COMMIT")

    found = []
    with meanwhile(*(partial(write, worker) for worker in range(3))):
        for _ in range(10):
            found.append(pulled(source, tmp_path, position))
            position = found[-1].end_lsn
    found.append(pulled(source, tmp_path, position))
    assert replayed(found) == held_by(database, "t", TEXTS)


def test_a_snapshot_and_its_position_are_one_cut(database: Database, tmp_path: Path) -> None:
    """Pulled exactly up to the temporary slot's position, the log is the table as the snapshot sees it."""
    database.execute(TABLE)
    source, start = slotted(database)

    def write(stop: threading.Event) -> None:
        with database.connect() as connection:
            number = 0
            while not stop.is_set():
                number += 1
                connection.execute(inserted(number, number))

    with meanwhile(write):
        for i in range(3):
            time.sleep(0.2)
            with create_slot(source, temporary=True) as cut, connect(source.dsn) as connection:
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                connection.execute(f"SET TRANSACTION SNAPSHOT '{cut.snapshot}'")
                seen = {row[0]: tuple(row) for row in connection.execute(f"SELECT {TEXTS} FROM t").fetchall()}
            batch = pulled(source, tmp_path / str(i), start, until=cut.lsn)
            assert batch.end_lsn == cut.lsn
            assert replayed([batch]) == seen


def test_wal_does_not_pile_up(database: Database, tmp_path: Path) -> None:
    """restart_lsn follows over many syncs, also when only unpublished tables are written."""
    database.execute(TABLE + "CREATE TABLE other (a text)")
    source, position = slotted(database)
    retained = []
    for i in range(12):
        table = (
            "other SELECT repeat(md5(i::text), 100)"
            if i > 5
            else "t SELECT i, 1, 2, repeat(md5(i::text), 100)"
        )
        database.execute(f"INSERT INTO {table} FROM generate_series({i * 1000}, {i * 1000 + 999}) i")
        database.execute("CHECKPOINT")  # logs the running transactions, from which restart_lsn follows
        batch = pulled(source, tmp_path, position)
        position = batch.end_lsn
        confirm(source, position)
        assert confirmed_flush(source) == position
        with connect(source.dsn) as connection:
            state = inspect_slot(connection, source.slot)
        assert state is not None
        assert state.retained_bytes is not None
        retained.append(state.retained_bytes)
    one_round = 1000 * 100 * 32 // 20
    assert max(retained[2:]) < 40 * one_round
    assert max(retained[8:]) <= max(*retained[2:8], one_round) * 2


def test_the_server_is_behind_the_lake(database: Database, tmp_path: Path) -> None:
    database.execute(TABLE)
    source, start = slotted(database)
    with pytest.raises(SourceError, match="WAL ends at"):
        pulled(source, tmp_path, start + (1 << 40))
    with pytest.raises(SourceError, match="WAL ends at"):
        pulled(source, tmp_path, start, until=start + (1 << 40))
    standing = StandingStream(PullSettings(source, "test", tmp_path, None, 1 << 20))
    with pytest.raises(SourceError, match="WAL ends at"):
        standing.batch(start + (1 << 40), None)


def test_a_standing_stream_takes_a_batch_on_disk_and_removes_nothing_of_its_own(
    database: Database, tmp_path: Path
) -> None:
    """What comes before a pull leaves alone what this very process is reading and writing."""
    database.execute(TABLE)
    source, start = slotted(database)
    standing = StandingStream(PullSettings(source, "test", tmp_path, None, 1 << 20))
    batches: list[Batch] = []
    try:
        for first in (1, 11, 21):
            database.execute(inserted(first, first + 9))
            batches.append(standing.batch(batches[-1].end_lsn if batches else start, None))
        assert standing.connected
        assert [batch.changes for batch in batches] == [10, 10, 10]
        again = standing.batch(start, None)
        assert again.digest == batches[0].digest
    finally:
        standing.end()


CHILD = """
import sys
from pathlib import Path
from slotlake.decoder.stream.pull import pull
from slotlake.decoder.server.source import SourceSettings
pull(SourceSettings(sys.argv[1], ("p",), sys.argv[2]), "test", Path(sys.argv[3]), start=int(sys.argv[4]))
"""


@pytest.mark.parametrize("failpoint", ["pull.mid", "pull.renamed"])
def test_killed_at_a_failpoint(database: Database, tmp_path: Path, failpoint: str) -> None:
    database.execute(TABLE)
    source, start = slotted(database)
    database.execute(inserted(1, 1000))
    arguments = [source.dsn, source.slot, str(tmp_path), str(start)]
    died = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments],
        env=os.environ | {"SLOTLAKE_FAILPOINT": failpoint},
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert died.returncode == -signal.SIGKILL
    assert confirmed_flush(source) == start
    assert len(batches(tmp_path)) == (failpoint == "pull.renamed")
    batch = pulled(source, tmp_path, start)
    assert replayed([batch]) == held_by(database, "t", TEXTS)
    assert [path.name for path in tmp_path.iterdir()] == [batch.name], "no leftovers"


def test_settings_do_not_print_the_password(database: Database) -> None:
    source = settings(database)
    assert "SourceSettings(host=" in repr(source)


class _Messages:
    """A consumer that counts messages."""

    def __init__(self) -> None:
        self.seen = 0

    def begin(self, transaction: Any) -> None: ...
    def change(self, transaction: Any, change: Any) -> None: ...
    def commit(self, transaction: Any) -> None: ...
    def message(self, transaction: Any, message: Any) -> None:
        self.seen += 1


@pytest.mark.parametrize("through", ["stream", "sql", "decode"])
def test_a_message_outside_transactions_is_in_one_batch(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through: str
) -> None:
    """Wherever two batches meet: before, at, or within its record, which spans pages here."""
    if through == "sql":
        through_sql(monkeypatch, 1 << 10)
    database.execute(TABLE)
    source, start = slotted(database, messages=True)
    with database.connect() as connection:
        connection.execute(inserted(1, 3))
        before = insert_position(database)
        row = connection.execute(
            "SELECT pg_logical_emit_message(false, 'pre', repeat('x', 20000))::text"
        ).fetchone()
        assert row is not None
        after = parse_lsn(row[0])
        connection.execute(inserted(10, 13))
    positions = [
        before - 1,
        before,
        before + 1,
        before + 8,
        (before + after) // 2,
        after - 8,
        after - 1,
        after,
        after + 1,
    ]
    found = {}
    for until in positions:
        folder, two = tmp_path / str(until), [_Messages(), _Messages()]
        if through == "decode":
            read_slot(source, two[0], start=start, until=until)
            read_slot(source, two[1], start=until)
            found[until - before] = [each.seen for each in two]
            continue
        batches = [pulled(source, folder, start, until=until), pulled(source, folder, until)]
        tables = [batch.message_table() for batch in batches]
        found[until - before] = [0 if table is None else table.num_rows for table in tables]
    assert {where: sum(counts) for where, counts in found.items()} == dict.fromkeys(found, 1), found


def test_what_the_server_cannot_send_as_text_comes_in_binary(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server's part is played, but in the long form of the tests (below)."""
    drained, asked = Stream.drain, []

    def failing(self: Stream) -> Any:
        assert self._options is not None
        asked.append((self._options.streaming, self._options.binary))
        if not self._options.binary:
            raise UnsendableError("invalid memory alloc request size 1120000003")
        return drained(self)

    monkeypatch.setattr(Stream, "drain", failing)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, b bytea, c text); CREATE PUBLICATION p FOR TABLE t")
    source, start = slotted(database)
    database.execute("INSERT INTO t VALUES (1, 'abc', 'x'), (2, NULL, NULL)")
    batch = pulled(source, tmp_path, start)
    assert batch.changes == 2
    assert replayed([batch]) == held_by(database, "t", "id::text, b::text, c")
    assert "cannot send a batch as text, so it is read in binary" in caplog.text
    database.execute("INSERT INTO t VALUES (3, 'abc', 'x')")
    standing = StandingStream(PullSettings(source, "test", tmp_path, None, 1 << 20))
    assert standing.batch(batch.end_lsn, None).changes == 1


@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_a_bytea_of_more_than_half_a_gigabyte(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, b bytea); CREATE PUBLICATION p FOR TABLE t")
    database.execute("ALTER TABLE t ALTER b SET STORAGE EXTERNAL")
    source, start = slotted(database)
    database.execute(
        "INSERT INTO t SELECT 1, b || b FROM (SELECT decode(repeat('ab', 280000000), 'hex') b) x"
    )
    batch = pulled(source, tmp_path, start)
    assert (batch.changes, batch.transactions) == (1, 1)
    (relation,) = batch.relations
    assert len(batch.relation_table(relation)["n1"][0].as_py()) == 560_000_000
