"""A server that is busy with what nobody has published: nothing to write, and no WAL that piles up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import psycopg
import pytest

from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.server.source import SourceSettings, connect
from slotlake.decoder.slots.confirm import confirm
from slotlake.decoder.slots.slot import SlotState, create_slot, inspect_slot
from slotlake.decoder.stream.pull import PullProgress, pull
from slotlake.infra.local.postgres import Version
from tests.conftest import SERVER_VERSIONS, Database, fresh_database

_LOAD_TRANSACTIONS = 60
_EMPTY_BYTES = 21 + 26  # Begin and Commit
_LOAD = "INSERT INTO silent SELECT i, repeat(md5(i::text), 20) FROM generate_series(1, 40) i"


def busy(database: Database) -> None:
    """Some MB of WAL in small transactions, and what a server logs now and then by itself."""
    with database.connect(options="-c synchronous_commit=off") as connection:
        for _ in range(_LOAD_TRANSACTIONS):
            connection.execute(_LOAD)
        connection.execute("CHECKPOINT")
        connection.execute("SELECT txid_current()")


def pulled(
    source: SourceSettings, directory: Path, start: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[Batch, int]:
    """The batch, and how many bytes of messages it took."""
    monkeypatch.setattr("slotlake.decoder.stream.puller._PROGRESS_SECONDS", 0.0)
    seen: list[PullProgress] = []
    batch = pull(source, "test", directory, start=start, progress=seen.append)
    return batch, seen[-1].received_bytes


def state_of(source: SourceSettings) -> SlotState:
    with connect(source.dsn) as connection:
        state = inspect_slot(connection, source.slot)
    assert state is not None
    return state


@pytest.mark.parametrize(
    ("version", "place"),
    [*((version, "this database") for version in SERVER_VERSIONS), (14, "another"), (18, "another")],
)
def test_wal_of_others_is_let_go(
    database_on: Callable[[Version], Database],
    version: Version,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database = database_on(version)
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    source = SourceSettings(database.dsn, ("p",), f"slot_{database.name}")
    with create_slot(source) as made:
        start = made.lsn
    with ExitStack() as stack:
        other = stack.enter_context(fresh_database(database.server)) if place == "another" else database
        other.execute("CREATE TABLE silent (n int, filler text)")
        busy(other)
    batch, received = pulled(source, tmp_path, start, monkeypatch)
    assert (batch.transactions, batch.changes) == (0, 0)
    assert batch.transaction_table().num_rows == 0
    grown = batch.end_lsn - start
    assert grown > 1 << 20
    # Before 15 pgoutput sends begin and commit of transactions that are empty to it.
    assert received == (0 if version >= 15 or place == "another" else _EMPTY_BYTES * (_LOAD_TRANSACTIONS + 1))
    confirm(source, batch.end_lsn)
    state = state_of(source)
    assert state.confirmed_flush_lsn == batch.end_lsn
    assert state.restart_lsn is not None
    end = batch.end_lsn
    if state.restart_lsn - start <= grown * 0.9:
        # The server had noted an earlier place to go on from, and notes no other until that one is confirmed.
        database.execute("CHECKPOINT")
        database.execute("SELECT txid_current()")
        end = pulled(source, tmp_path, end, monkeypatch)[0].end_lsn
        confirm(source, end)
        state = state_of(source)
    assert state.restart_lsn is not None
    assert state.restart_lsn - start > grown * 0.9, "the WAL before the last checkpoint is let go"
    database.execute("INSERT INTO t VALUES (1)")
    assert pull(source, "test", tmp_path, start=end).transactions == 1


@pytest.mark.parametrize("streaming", ["off", None])
def test_what_a_large_transaction_did_elsewhere_is_not_sent(
    database_on: Callable[[Version], Database],
    streaming: Literal["off"] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Larger than the memory for decoding, and with one row that counts."""
    database = database_on(18)
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    database.execute("CREATE TABLE silent (n int, filler text)")
    source = SourceSettings(database.dsn, ("p",), f"slot_{database.name}", streaming=streaming)
    with create_slot(source) as made:
        start = made.lsn
    with psycopg.connect(database.dsn) as connection:
        for _ in range(20):
            connection.execute(_LOAD)
        connection.execute("INSERT INTO t VALUES (1)")
    with psycopg.connect(database.dsn) as connection:
        for _ in range(20):
            connection.execute(_LOAD)
    batch, received = pulled(source, tmp_path, start, monkeypatch)
    assert (batch.transactions, batch.changes) == (1, 1)
    assert received < (200 if streaming == "off" else 2000)
