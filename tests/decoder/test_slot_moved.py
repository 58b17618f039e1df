"""A slot that is moved, or a server that changes, between the look at the slot and the reading of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.errors import SlotError, SourceUnavailableError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.plugins import live
from slotlake.decoder.server.source import SourceSettings, connect, connect_replication
from slotlake.decoder.slots import confirm
from slotlake.decoder.slots import position as slot_held
from slotlake.decoder.slots.slot import check_slot, drop_slot
from slotlake.decoder.stream import bulk, preflight, receive
from slotlake.infra.local.postgres import Version
from slotlake.infra.opened import standing
from tests.conftest import Database
from tests.decoder.sources import insert_position, pulled, slotted, through_sql

PLACES = {"stream": preflight, "sql": preflight, "standing": preflight, "decode": live}


class _Noted:
    """A consumer that keeps nothing."""

    def begin(self, transaction: Any) -> None: ...
    def change(self, transaction: Any, change: Any) -> None: ...
    def commit(self, transaction: Any) -> None: ...


def prepared(database: Database) -> tuple[SourceSettings, int]:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    source, start = slotted(database)
    database.execute("INSERT INTO t SELECT i, 'lost' FROM generate_series(1, 100) i")
    return source, start


def moving(monkeypatch: pytest.MonkeyPatch, module: Any, move: Callable[[], Any]) -> None:
    """Right behind the module's look at the slot, once."""
    left = [move]

    def looked(*given: Any, **named: Any) -> Any:
        state = check_slot(*given, **named)
        if left:
            left.pop()()
        return state

    monkeypatch.setattr(module, "check_slot", looked)


def read(kind: str, source: SourceSettings, folder: Path, start: int) -> None:
    if kind == "standing":
        given = standing.PullSettings(source, "test", folder, None, 1 << 20)
        stream = standing.StandingStream(given)
        try:
            stream.batch(start, None)
        finally:
            stream.end()
    elif kind == "decode":
        live.read_slot(source, _Noted())
    else:
        pulled(source, folder, start)


@pytest.mark.parametrize("how", ["advanced", "read", "made again"])
@pytest.mark.parametrize("kind", PLACES)
def test_no_batch_has_a_gap(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, how: str
) -> None:
    source, start = prepared(database)
    if kind == "sql":
        through_sql(monkeypatch, 1 << 20)

    def move() -> None:
        at, name = format_lsn(insert_position(database)), source.slot
        if how == "advanced":
            database.execute("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", [name, at])
        elif how == "read":
            options = "'proto_version', '1', 'publication_names', 'p'"
            database.execute(
                f"SELECT count(*) FROM pg_logical_slot_get_binary_changes('{name}', NULL, NULL, {options})"
            )
        else:
            drop_slot(source)
            database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
        database.execute("INSERT INTO t VALUES (101, 'kept')")

    moving(monkeypatch, PLACES[kind], move)
    with pytest.raises(SlotError, match="does not send the changes in between") as caught:
        read(kind, source, tmp_path, start)
    assert "slotlake recover" in caught.value.way_out
    assert list(tmp_path.iterdir()) == []
    if kind != "decode":  # which begins where the slot stands now
        with pytest.raises(SlotError, match="does not send the changes in between"):
            read(kind, source, tmp_path, start)


def test_a_slot_that_moved_a_little_still_serves(database: Database, tmp_path: Path) -> None:
    """What it has let go of is in the lake."""
    source, start = prepared(database)
    first = pulled(source, tmp_path, start)
    database.execute("INSERT INTO t VALUES (101, 'kept')")
    confirm.confirm(source, first.end_lsn)
    assert pulled(source, tmp_path, first.end_lsn).changes == 1


def test_a_slot_moved_while_it_is_confirmed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = prepared(database)
    at = insert_position(database)

    def move() -> None:
        database.execute("INSERT INTO t VALUES (101, 'kept')")
        further = format_lsn(insert_position(database))
        database.execute("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", [source.slot, further])

    moving(monkeypatch, confirm, move)
    with pytest.raises(SlotError, match="does not send the changes in between"):
        confirm.confirm(source, at)


@pytest.mark.parametrize("through", ["stream", "sql"])
def test_another_server_answers_the_next_connection(
    database: Database,
    database_on: Callable[[Version], Database],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    through: str,
) -> None:
    """As behind an address that moves on in a failover: one with the same slot, and another history."""
    source, start = prepared(database)
    other = database_on(18)
    other.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    other.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [source.slot])
    other.execute("INSERT INTO t VALUES (1, 'of another history')")
    if through == "sql":
        through_sql(monkeypatch, 1 << 20)
        monkeypatch.setattr(bulk, "connect", lambda _: connect(other.dsn))
        monkeypatch.setattr(
            bulk, "check_confirmed", lambda *_: None
        )  # its positions may be before, or behind
    else:
        monkeypatch.setattr(receive, "connect_replication", lambda _: connect_replication(other.dsn))
    with pytest.raises(SourceUnavailableError, match="has taken over during"):
        pulled(source, tmp_path, start)
    assert list(tmp_path.iterdir()) == []


def test_the_slot_is_looked_at_where_it_is_read(
    database: Database,
    database_on: Callable[[Version], Database],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, start = prepared(database)
    other = database_on(18)
    other.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [source.slot])
    monkeypatch.setattr(slot_held, "connect", lambda _: connect(other.dsn))
    with pytest.raises(SourceUnavailableError, match="lead to different servers"):
        pulled(source, tmp_path, start)
