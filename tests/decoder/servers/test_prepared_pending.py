"""Prepared transactions that are pending while a slot is made, a batch pulled, and the server crashes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from slotlake.decoder.errors import SlotError
from slotlake.decoder.server.source import SourceSettings, connect
from slotlake.decoder.slots.confirm import confirm
from slotlake.decoder.slots.slot import create_slot, inspect_slot
from slotlake.decoder.stream.pull import pull
from slotlake.infra.local.postgres import Version
from tests.conftest import SERVER_VERSIONS, Database
from tests.decoder.sources import replayed

LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))  # on every version, not on the oldest and the newest only


@pytest.mark.parametrize("version", SERVER_VERSIONS if LONG else (14, 18))
def test_pending_from_before_the_slot_to_after_a_crash(
    database_on: Callable[[Version], Database], version: Version, tmp_path: Path
) -> None:
    database = database_on(version)
    gid = f"first of {database.name}"
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    source = SourceSettings(database.dsn, ("p",), f"slot_{database.name}", two_phase=version >= 15)
    _prepare(database, gid, 1)
    with pytest.raises(SlotError, match=f"prepared transaction '{gid}'") as told:
        create_slot(source, wait_seconds=0.5)
    assert told.value.retryable
    assert "ROLLBACK PREPARED 'gid'" in told.value.way_out
    with connect(database.dsn) as connection:
        assert inspect_slot(connection, source.slot) is None

    ended = threading.Timer(0.5, lambda: database.execute(f"COMMIT PREPARED '{gid}'"))
    ended.start()
    with create_slot(source, wait_seconds=30) as made, connect(database.dsn) as reader:
        start = made.lsn
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute(f"SET TRANSACTION SNAPSHOT '{made.snapshot}'".encode())
        copied = {str(row[0]): (str(row[0]), str(row[1])) for row in reader.execute("SELECT id, a FROM t")}
    ended.join()
    assert list(copied) == ["1"]

    for number, name in ((2, "kept"), (3, "undone"), (4, "kept before the crash")):
        _prepare(database, f"{name} {database.name}", number)
    batches = [pull(source, "x", tmp_path, start=start)]
    confirm(source, batches[-1].end_lsn)  # from here on a two-phase slot does not send their changes again
    database.server.restart("immediate")
    database.execute(f"COMMIT PREPARED 'kept before the crash {database.name}'")
    batches.append(pull(source, "x", tmp_path, start=batches[-1].end_lsn))
    database.server.restart("immediate")  # pulled, not confirmed
    assert database.execute("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()") == [
        (2,)
    ]
    database.execute(f"COMMIT PREPARED 'kept {database.name}'")
    database.execute(f"ROLLBACK PREPARED 'undone {database.name}'")
    batches.append(pull(source, "x", tmp_path, start=batches[-1].end_lsn))
    held = {row[0]: row for row in database.execute("SELECT id::text, a FROM t")}
    assert sorted(held) == ["1", "2", "4"]
    assert replayed(batches, copied) == held
    confirm(source, batches[-1].end_lsn)
    with connect(database.dsn) as connection:
        state = inspect_slot(connection, source.slot)
    assert state is not None
    assert state.confirmed_flush_lsn == batches[-1].end_lsn


def _prepare(database: Database, gid: str, number: int) -> None:
    database.execute(f"BEGIN; INSERT INTO t VALUES ({number}, 'prepared'); PREPARE TRANSACTION '{gid}'")
