"""Streamed and prepared transactions on live servers: by pgoutput, and as far as test_decoding shows them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from slotlake.decoder.errors import ConsumerError, ProtocolError
from slotlake.decoder.plugins.consumer import FullConsumer
from slotlake.decoder.plugins.live import read_slot
from slotlake.decoder.plugins.model import Change, Transaction
from slotlake.decoder.server.source import SourceSettings
from slotlake.infra.local.postgres import EmbeddedPostgres, temporary_postgres
from tests.conftest import Database
from tests.decoder.plugins.collecting import Collecting, told
from tests.decoder.sources import slotted

pytestmark = pytest.mark.server
ROWS = 400
SETUP = """
CREATE TABLE t (id int PRIMARY KEY, a text);
CREATE PUBLICATION p FOR TABLE t;
"""


class Everything(FullConsumer):
    """Both families; keeps (callback, xid, subxid or row)."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("stream_") or name in FAMILY:
            return lambda *arguments: self._note(name, *arguments)
        raise AttributeError(name)

    def _note(self, name: str, transaction: Transaction, *rest: Any) -> None:
        shown = tuple(part.kind if isinstance(part, Change) else part for part in rest)
        self.calls.append((name, transaction.xid, transaction.gid, *shown))

    def begin(self, transaction: Transaction, /) -> None:
        self._note("begin", transaction)

    def change(self, transaction: Transaction, change: Change, /) -> None:
        self._note("change", transaction, change)

    def commit(self, transaction: Transaction, /) -> None:
        self._note("commit", transaction)


FAMILY = ("begin_prepare", "prepare", "commit_prepared", "rollback_prepared")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    conf = {"logical_decoding_work_mem": "64kB", "max_prepared_transactions": "10"}
    with temporary_postgres(version=18, conf=conf) as running:
        yield running


@pytest.fixture(scope="module")
def source(server: EmbeddedPostgres) -> SourceSettings:
    """A history with large, aborted, prepared transactions; read by every test of it."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(SETUP)
        connection.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput', false, true)")
        connection.execute(_rows(0, 10))
        with connection.transaction():
            connection.execute(_rows(1000, ROWS))
            with connection.transaction(force_rollback=True):
                connection.execute(_rows(2000, ROWS))
            with connection.transaction():
                connection.execute(_rows(3000, ROWS))
        with connection.transaction(force_rollback=True):
            connection.execute(_rows(4000, 3 * ROWS))
        for gid, start, outcome in (("it's", 5000, "COMMIT"), ("no", 6000, "ROLLBACK"), ("open", 7000, "")):
            with connection.transaction():
                connection.execute(_rows(start, 3))
                connection.execute(f"PREPARE TRANSACTION '{gid.replace(chr(39), chr(39) * 2)}'")
            if outcome:
                connection.execute(_rows(start + 100, 1))
                connection.execute(f"{outcome} PREPARED '{gid.replace(chr(39), chr(39) * 2)}'")
    return SourceSettings(server.dsn(), ("p",), "s", messages=True)


def _rows(start: int, count: int) -> str:
    return f"INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series({start}, {start + count - 1}) i"


def _with(source: SourceSettings, **more: Any) -> SourceSettings:
    return SourceSettings(source.dsn, source.publications, source.slot, messages=True, **more)


def ids(collecting: Collecting) -> list[list[int]]:
    """Per transaction the ids inserted."""
    transactions: list[list[int]] = []
    for entry in told(collecting.seen):
        if entry["callback"] == "begin":
            transactions.append([])
        elif entry["callback"] == "change":
            transactions[-1].append(int(entry["new"]["id"]))
    return transactions


WHOLE = [
    list(range(10)),
    [*range(1000, 1000 + ROWS), *range(3000, 3000 + ROWS)],
    [5100], [5000, 5001, 5002], [6100],
]  # fmt: skip


def test_whole_transactions_in_commit_order(source: SourceSettings) -> None:
    collecting = Collecting()
    read_slot(source, collecting)
    assert ids(collecting) == WHOLE


def test_blocks_and_prepared_transactions(source: SourceSettings) -> None:
    consumer = Everything()
    read_slot(_with(source, streaming="parallel", two_phase=True), consumer)
    names = [call[0] for call in consumer.calls]
    assert names.count("stream_start") == names.count("stream_stop") >= 2
    assert names.count("stream_commit") == 1
    assert names.count("stream_change") >= 2 * ROWS
    aborted = [call for call in consumer.calls if call[0] == "stream_abort"]
    assert any(call[1] != call[3] for call in aborted), "of a subtransaction"
    prepared = [call[::2] for call in consumer.calls if "prepare" in call[0]]
    assert prepared == [
        ("begin_prepare", "it's"), ("prepare", "it's"), ("commit_prepared", "it's"),
        ("begin_prepare", "no"), ("prepare", "no"), ("rollback_prepared", "no"),
        ("begin_prepare", "open"), ("prepare", "open"),
    ]  # fmt: skip


def test_the_same_put_together_again(source: SourceSettings, tmp_path: Any) -> None:
    """A recording of blocks, shown to a consumer that takes whole transactions only."""
    from slotlake.decoder.plugins.live import read_file

    recording = tmp_path / "raw"
    read_slot(_with(source, streaming="parallel", two_phase=True), Everything(), record=recording)
    collecting = Collecting()
    read_file(recording, collecting)
    assert ids(collecting) == WHOLE


def test_what_the_consumer_cannot_take_is_refused(source: SourceSettings) -> None:
    with pytest.raises(ConsumerError, match="have streaming, but the consumer lacks"):
        read_slot(_with(source, streaming="on"), Collecting())
    with pytest.raises(ConsumerError, match="have two_phase, but the consumer lacks"):
        read_slot(_with(source, two_phase=True), Collecting())


@pytest.fixture(scope="module")
def text_server() -> Iterator[EmbeddedPostgres]:
    conf = {"logical_decoding_work_mem": "64kB", "max_prepared_transactions": "10"}
    with temporary_postgres(version=18, contrib=True, conf=conf) as running:
        yield running


@pytest.fixture(scope="module")
def text_source(text_server: EmbeddedPostgres) -> SourceSettings:
    with psycopg.connect(text_server.dsn(), autocommit=True) as connection:
        connection.execute(SETUP)
        connection.execute("SELECT pg_create_logical_replication_slot('s', 'test_decoding', false, true)")
        with connection.transaction():
            connection.execute(_rows(1000, ROWS))
            with connection.transaction(force_rollback=True):
                connection.execute(_rows(2000, ROWS))
        for gid, start, outcome in (("it''s", 5000, "COMMIT"), ("no", 6000, "ROLLBACK")):
            with connection.transaction():
                connection.execute(_rows(start, 2))
                connection.execute(f"PREPARE TRANSACTION '{gid}'")
            connection.execute(f"{outcome} PREPARED '{gid}'")
        with connection.transaction():
            connection.execute(_rows(8000, 2 * ROWS))
            connection.execute("SELECT pg_logical_emit_message(true, 'p', 'text')")
            connection.execute("PREPARE TRANSACTION 'large'")
    return SourceSettings(text_server.dsn(), (), "s", plugin="test_decoding")


def test_prepared_transactions_in_text(text_source: SourceSettings) -> None:
    consumer = Everything()
    read_slot(text_source, consumer)
    shown = [call for call in consumer.calls if call[0] != "change"]
    assert [call[0] for call in shown][:2] == ["begin", "commit"]
    assert [call[::2] for call in shown[2:]] == [
        ("begin_prepare", "it's"), ("prepare", "it's"), ("commit_prepared", "it's"),
        ("begin_prepare", "no"), ("prepare", "no"), ("rollback_prepared", "no"),
        ("begin_prepare", "large"), ("prepare", "large"),
    ]  # fmt: skip
    collecting = Collecting()
    read_slot(text_source, collecting)
    assert ids(collecting) == [list(range(1000, 1000 + ROWS)), [5000, 5001]]


def test_streamed_blocks_in_text(text_source: SourceSettings) -> None:
    """The plugin shows that something changed, not what."""
    consumer = Everything()
    read_slot(text_source, consumer, options={"stream-changes": "1"})
    names = {call[0] for call in consumer.calls}
    assert names >= {"stream_start", "stream_change", "stream_stop", "stream_commit", "stream_prepare"}
    assert all(call[3] is None for call in consumer.calls if call[0] == "stream_change")
    with pytest.raises(ProtocolError, match="does not show the changes of a streamed transaction"):
        read_slot(text_source, Collecting(), options={"stream-changes": "1"})


def test_binary_values_become_the_same_text(database: Database) -> None:
    database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok');"
        "CREATE TABLE b (id int PRIMARY KEY, n numeric, t timestamptz, m mood, a text[], f float8);"
        "CREATE PUBLICATION p FOR TABLE b"
    )
    source, _ = slotted(database)
    database.execute("INSERT INTO b VALUES (1, 1.50, now(), 'ok', '{a,NULL,\"b c\"}', 'NaN')")
    database.execute("UPDATE b SET id = 2")
    shown = []
    for binary in (False, True):
        collecting = Collecting()
        read_slot(replace(source, binary=binary), collecting)
        shown.append(told(collecting.seen))
    assert len(shown[0]) == 6
    assert shown[0] == shown[1]
