"""A prepared transaction that changed nothing: its PREPARE comes without BEGIN PREPARE, or not at all.

18.4 sends the PREPARE and the outcome, 16.14 the outcome alone, 15.19, 17.11 and 19 RC 1 nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.errors import ChangeLogError
from slotlake.decoder.plugins.pgoutput import PgoutputReader
from slotlake.decoder.protocol.messages import BeginPrepare, Prepare
from slotlake.decoder.protocol.reader import StreamReader
from slotlake.decoder.server.source import SourceSettings
from slotlake.decoder.slots.confirm import confirm
from slotlake.decoder.slots.slot import create_slot
from slotlake.decoder.stream.pull import pull
from slotlake.decoder.stream.receive import Stream
from slotlake.infra.local.postgres import Version
from tests.conftest import Database
from tests.decoder.reference import Transaction, reference_transactions
from tests.decoder.sources import replayed

EMPTY = "SELECT * FROM t FOR UPDATE"
LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
NOTHING = (
    "SELECT * FROM t FOR SHARE",
    "INSERT INTO not_published VALUES (1)",
    "DO $$ BEGIN INSERT INTO t VALUES (-1, 'undone'); RAISE 'x'; EXCEPTION WHEN OTHERS THEN END $$",
    "LOCK TABLE not_published IN ACCESS SHARE MODE; SELECT txid_current()",
)


@pytest.mark.parametrize(("version", "streaming"), [(17, "on"), (18, "off"), (18, "parallel")])
def test_both_readers_pass_over_it(
    database_on: Callable[[Version], Database],
    version: Version,
    streaming: Literal["off", "on", "parallel"],
    tmp_path: Path,
) -> None:
    database = database_on(version)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    database.execute("INSERT INTO t VALUES (0, 'before')")
    source = SourceSettings(
        database.dsn, ("p",), f"slot_{database.name}", two_phase=True, streaming=streaming
    )
    with create_slot(source) as made:
        start = made.lsn
    for number, outcome in enumerate(("COMMIT", "ROLLBACK"), start=1):
        _prepare(database, f"{outcome} {database.name}", EMPTY)
        _prepare(database, f"with {number} {database.name}", f"INSERT INTO t VALUES ({number}, 'prepared')")
        database.execute(f"{outcome} PREPARED '{outcome} {database.name}'")
        database.execute(f"{outcome} PREPARED 'with {number} {database.name}'")
        database.execute(f"INSERT INTO t VALUES ({10 + number}, 'plain')")
    stream = _received(source, start)
    reader = StreamReader(streaming=streaming, two_phase=True)
    read = [type(reader.read(payload)) for _, payload in stream]
    prepared = 4 if database.server.version == 18 else 2  # some releases of others send nothing of it
    assert read.count(Prepare) == prepared
    assert read.count(BeginPrepare) == 2
    done = list(reference_transactions(stream, streaming=streaming, two_phase=True))
    assert sum(len(each.changes) for each in done if isinstance(each, Transaction)) == 3
    plugin = PgoutputReader(streaming=streaming, two_phase=True)
    events = [event.callback for lsn, payload in stream for event in plugin.read(payload, lsn)]
    assert events.count("begin_prepare") == events.count("prepare") == prepared
    batch = pull(source, "x", tmp_path, start=start)
    rows = replayed([batch], {"0": ("0", "before")})
    assert sorted(rows) == sorted(str(row[0]) for row in database.execute("SELECT id FROM t"))


@pytest.mark.parametrize("outcome", ["COMMIT", "ROLLBACK"])
def test_its_outcome_comes_in_another_session(database: Database, tmp_path: Path, outcome: str) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    database.execute("INSERT INTO t VALUES (0, 'before')")
    source = SourceSettings(database.dsn, ("p",), f"slot_{database.name}", two_phase=True)
    with create_slot(source) as made:
        start = made.lsn
    _prepare(database, f"empty {database.name}", EMPTY)
    batches = [pull(source, "x", tmp_path, start=start)]
    for confirmed in (False, True):
        if confirmed:
            confirm(source, batches[-1].end_lsn)
        database.execute(f"INSERT INTO t VALUES ({1 + confirmed}, 'meanwhile')")
        batches.append(pull(source, "x", tmp_path, start=batches[-1].end_lsn))
    database.execute(f"{outcome} PREPARED 'empty {database.name}'")
    database.execute("INSERT INTO t VALUES (3, 'after')")
    batches.append(pull(source, "x", tmp_path, start=batches[-1].end_lsn))
    assert sorted(replayed(batches, {"0": ("0", "before")})) == ["0", "1", "2", "3"]
    confirm(source, batches[-1].end_lsn)
    assert pull(source, "x", tmp_path, start=batches[-1].end_lsn).changes == 0


@pytest.mark.parametrize("version", [15, 16, 17] if LONG else [16])
@pytest.mark.parametrize("streaming", ["off", "on"])
def test_its_outcome_comes_alone(
    database_on: Callable[[Version], Database],
    version: Version,
    streaming: Literal["off", "on"],
    tmp_path: Path,
) -> None:
    """In one session, in a later one, after a crash; what had changes and was lost is told from it."""
    database = database_on(version)
    name = database.name
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    database.execute("INSERT INTO t VALUES (0, 'before'); CREATE TABLE not_published (a int)")
    source = SourceSettings(database.dsn, ("p",), f"slot_{name}", two_phase=True, streaming=streaming)
    with create_slot(source) as made:
        start = made.lsn
    batches: list[Batch] = []

    def pulled() -> int:
        batches.append(pull(source, "x", tmp_path, start=batches[-1].end_lsn if batches else start))
        return batches[-1].changes

    for how in ("COMMIT", "ROLLBACK"):
        for number, statement in enumerate(NOTHING):
            _prepare(database, f"{how} {number} {name}", statement)
            _prepare(database, f"later {how} {number} {name}", statement)
            database.execute(f"{how} PREPARED '{how} {number} {name}'")
    _prepare(database, f"kept {name}", "INSERT INTO t SELECT g, 'kept' FROM generate_series(10, 1000) g")
    assert pulled() == 0
    confirm(source, batches[-1].end_lsn)
    database.execute("INSERT INTO t VALUES (1, 'meanwhile')")
    database.server.restart("immediate")
    for how in ("COMMIT", "ROLLBACK"):
        for number in range(len(NOTHING)):
            database.execute(f"{how} PREPARED 'later {how} {number} {name}'")
    assert pulled() == 1
    database.execute(f"COMMIT PREPARED 'kept {name}'")
    kept = max((tmp_path / "prepared").iterdir(), key=lambda path: path.stat().st_size)
    away = kept.rename(tmp_path / "away")
    with pytest.raises(ChangeLogError, match="the file with its changes is missing"):
        pulled()
    away.rename(kept)
    assert pulled() == 991
    assert replayed(batches, {"0": ("0", "before")}).keys() == {
        str(row[0]) for row in database.execute("SELECT id FROM t")
    }
    confirm(source, batches[-1].end_lsn)


def _prepare(database: Database, gid: str, statement: str) -> None:
    with database.connect() as connection:
        for each in ("BEGIN", statement, f"PREPARE TRANSACTION '{gid}'"):
            connection.execute(each.encode())


def _received(source: SourceSettings, start: int) -> list[tuple[int, bytes]]:
    """What comes until nothing more does."""
    found: list[tuple[int, bytes]] = []
    with Stream(source, start) as stream:
        quiet = time.monotonic() + 1.0
        while time.monotonic() < quiet:
            frames, at = stream.drain(), 0
            for length in frames.lengths.tolist():
                frame, at = frames.data[at : at + length].tobytes(), at + length
                if frame[:1] == b"w":
                    found.append((int.from_bytes(frame[1:9], "big"), frame[25:]))
                    quiet = time.monotonic() + 1.0
            stream.rest(0.1)
    return found
