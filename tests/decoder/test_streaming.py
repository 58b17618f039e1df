"""Transactions in progress and prepared ones: the same history through several slots gives the same batch.

The oracle is the server: what it sends with streaming and two-phase off.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.errors import ChangeLogError, ProtocolError, SlotlakeError, SourceError, StreamingError
from slotlake.decoder.server.source import SourceSettings
from slotlake.decoder.slots.confirm import confirm
from slotlake.decoder.slots.slot import create_slot
from slotlake.decoder.stream.receive import Stream
from slotlake.decoder.types.table import column_type, to_text
from slotlake.infra.opened.standing import PullSettings, StandingStream
from tests.conftest import Database
from tests.decoder.sources import insert_position, pulled

MODES: dict[str, dict[str, Any]] = {
    "plain": {"streaming": "off"},
    "on": {"streaming": "on"},
    "parallel": {"streaming": "parallel"},
    "binary": {"streaming": "parallel", "binary": True},
}


def contents(batch: Batch) -> list[tuple[Any, ...]]:
    """Every change with its transaction, as text, in order."""
    transactions = batch.transaction_table().to_pylist()
    found: list[tuple[Any, ...]] = []
    for relation in batch.relations:
        table = batch.relation_table(relation)
        rows = table.to_pylist()
        texts = {
            f"{side}{i}": to_text(
                table[f"{side}{i}"],
                table[f"x{side}{i}"] if f"x{side}{i}" in table.column_names else None,
                column_type(column.type_oid, column.typmod),
            ).to_pylist()
            for i, column in enumerate(relation.columns)
            for side in "no"
            if f"{side}{i}" in table.column_names
        }
        for number, row in enumerate(rows):
            transaction = transactions[row["txn"]]
            values = [(name, column[number]) for name, column in texts.items() if column[number] is not None]
            unchanged = [name for name in row if name.startswith("u") and row[name]]
            about = (transaction["commit_lsn"], transaction["xid"], transaction["origin"])
            named = (relation.table, [column.name for column in relation.columns])
            found.append(
                (row["seq"], *about, *named, chr(row["op"]), row["old"], row["lsn"], values, unchanged)
            )
    messages = batch.message_table()
    for row in messages.to_pylist() if messages is not None else []:
        commit_lsn = transactions[row["txn"]]["commit_lsn"] if row["txn"] is not None else None
        found.append(
            (row["seq"], commit_lsn, row["transactional"], row["lsn"], row["prefix"], row["content"])
        )
    return sorted(found, key=lambda change: change[0])


class Twins:
    """One slot per mode, all of one history."""

    def __init__(self, database: Database, directory: Path, modes: dict[str, dict[str, Any]]) -> None:
        self.database, self.directory = database, directory
        self.sources = {
            name: SourceSettings(database.dsn, ("p",), f"{name}_{database.name}", messages=True, **more)
            for name, more in modes.items()
        }
        self.starts = {}
        for name, source in self.sources.items():
            with create_slot(source) as made:
                self.starts[name] = made.lsn

    def pull(self, name: str, **more: Any) -> Batch:
        batch = pulled(self.sources[name], self.directory / name, self.starts[name], **more)
        self.starts[name] = batch.end_lsn
        return batch

    def confirm(self, name: str) -> None:
        confirm(self.sources[name], self.starts[name])

    def same(self, **more: Any) -> list[tuple[Any, ...]]:
        """Pull all; what they hold, which must be the same."""
        held = {name: contents(self.pull(name, **more)) for name in self.sources}
        first = held.pop(next(iter(self.sources)))
        for name, other in held.items():
            assert other == first, name
        return first


def fill(session: psycopg.Connection[Any], table: str, first: int, count: int) -> None:
    """Enough for a block or more."""
    numbers = f"generate_series({first}, {first + count - 1}) g"
    session.execute(f"INSERT INTO {table} (id, v) SELECT g, repeat('x', 100) || g FROM {numbers}")


def test_interleaved_transactions_with_subtransactions(
    database: Database, sessions: list[psycopg.Connection[Any]], tmp_path: Path
) -> None:
    twins = Twins(database, tmp_path, MODES)
    one, two, three, four = sessions
    fill(one, "a", 1, 2000)
    fill(two, "b", 1, 2000)
    one.execute("SAVEPOINT s1")
    fill(one, "a", 10_000, 1500)
    one.execute("SAVEPOINT s2")
    fill(one, "b", 20_000, 1500)
    fill(three, "a", 50_000, 1500)
    three.execute("SELECT pg_logical_emit_message(true, 'in', 'a')")
    database.execute("SELECT pg_logical_emit_message(false, 'loose', 'b')")
    one.execute("ROLLBACK TO s2")
    fill(one, "b", 21_000, 1500)
    one.execute("ROLLBACK TO s1")
    one.execute("UPDATE a SET v = v || 'u', id = -id WHERE id <= 100")
    database.execute("INSERT INTO a VALUES (900000, 'small')")
    two.commit()
    three.rollback()
    one.execute("SAVEPOINT s3")
    fill(one, "a", 30_000, 1500)
    one.execute("RELEASE s3")
    one.execute("DELETE FROM a WHERE id BETWEEN 200 AND 300")
    one.commit()
    fill(four, "b", 60_000, 3000)
    held = twins.same()
    assert len(held) == 2000 + 2000 + 100 + 1 + 1500 + 101 + 1
    four.commit()
    assert len(twins.same()) == 3000


def test_a_schema_change_inside_a_streamed_transaction(
    database: Database, sessions: list[psycopg.Connection[Any]], tmp_path: Path
) -> None:
    twins = Twins(database, tmp_path, MODES)
    one, two, *_ = sessions
    fill(one, "a", 1, 1500)
    fill(one, "a", 3000, 1500)
    one.execute("ALTER TABLE a ADD COLUMN other text")
    one.execute("INSERT INTO a SELECT g, repeat('z', 100), 'o' FROM generate_series(8000, 10000) g")
    fill(two, "b", 1, 1500)
    one.commit()
    two.execute("ALTER TABLE b DROP COLUMN n")
    two.execute("INSERT INTO b SELECT g, repeat('z', 100) FROM generate_series(8000, 9500) g")
    two.rollback()
    database.execute("INSERT INTO a VALUES (0, 'v', 'o'); INSERT INTO b VALUES (0, 'v', 1)")
    held = twins.same()
    widths = [len(change[5]) for change in held if change[4] == "a"]
    assert widths == [2] * 3000 + [3] * 2002
    assert [len(change[5]) for change in held if change[4] == "b"] == [3]


def test_a_server_that_fails_at_streaming_is_read_without(
    database: Database, sessions: list[psycopg.Connection[Any]], tmp_path: Path
) -> None:
    """After a rolled-back ALTER TABLE PostgreSQL 18 loses the table inside the transaction in progress."""
    twins = Twins(database, tmp_path, MODES)
    one = sessions[0]
    fill(one, "a", 1, 1500)
    one.execute("SAVEPOINT s1")
    one.execute("ALTER TABLE a ADD COLUMN extra int")
    one.execute("INSERT INTO a SELECT g, repeat('y', 100), g FROM generate_series(5000, 7000) g")
    one.execute("ROLLBACK TO s1")
    fill(one, "a", 3000, 1500)
    one.commit()
    held = twins.same()
    assert [len(change[5]) for change in held] == [2] * 3000


def test_a_rollback_of_what_the_server_never_sent(
    database: Database, sessions: list[psycopg.Connection[Any]], tmp_path: Path
) -> None:
    """PostgreSQL 18 tells it of subtransactions of a transaction that was rolled back before it was read."""
    twins = Twins(database, tmp_path, MODES)
    one = sessions[0]
    fill(one, "a", 1, 1)
    one.execute("SAVEPOINT s1")
    fill(one, "a", 1000, 3000)
    one.execute("ROLLBACK TO s1")
    fill(one, "a", 1000, 3000)
    one.rollback()
    fill(one, "b", 1, 3000)
    one.commit()
    assert len(twins.same()) == 3000


LOST = 'the server failed: could not map filenumber "base/5/16408" to relation OID'


@pytest.mark.parametrize("error", [StreamingError(LOST), ProtocolError("no block came before it")])
def test_transactions_in_progress_that_cannot_be_read(
    database: Database,
    sessions: list[psycopg.Connection[Any]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: SlotlakeError,
) -> None:
    """The failure of PostgreSQL 18 is played, in the middle of a stream (docs/adr/0007)."""
    twins = Twins(database, tmp_path, MODES)
    one = sessions[0]
    for part in range(3):
        fill(one, "a", part * 10_000, 1000)
        one.execute("SAVEPOINT s1")
        one.execute("TRUNCATE a")
        fill(one, "a", part * 10_000 + 5000, 1000)
        one.execute("ROLLBACK TO s1")
    fill(one, "a", 50_000, 100)
    one.commit()
    drained = Stream.drain

    def failing(self: Stream) -> Any:
        frames = drained(self)
        assert self._options is not None
        if self._options.streaming != "off" and len(frames.data):
            raise error
        return frames

    monkeypatch.setattr(Stream, "drain", failing)
    assert len(twins.same()) == 3100
    lines = [r.getMessage() for r in caplog.records if "each is read when it has ended" in r.getMessage()]
    assert len(lines) == len(MODES) - 1
    database.execute("INSERT INTO a VALUES (-1, 'next')")
    said: list[str] = []
    settings = PullSettings(twins.sources["on"], "test", tmp_path / "on", None, 1 << 20)
    standing = StandingStream(settings, said.append)
    batch = standing.batch(twins.starts["on"], None)
    standing.end()
    assert batch.changes == 1
    assert len([line for line in said if "each is read when it has ended" in line]) == 1


def test_what_the_server_cannot_decode_at_all(
    database: Database,
    sessions: list[psycopg.Connection[Any]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """PostgreSQL 18 loses the table of a TRUNCATE that was prepared and rolled back, after a vacuum."""
    twins = Twins(database, tmp_path, {"only": {"two_phase": True}})
    one = sessions[0]
    for statement in ("SAVEPOINT s1", "TRUNCATE a", "INSERT INTO a VALUES (1, 'x')", "RELEASE s1"):
        one.execute(statement)
    one.execute("PREPARE TRANSACTION 'gone'")
    one.commit()
    database.execute("ROLLBACK PREPARED 'gone'")
    database.execute("VACUUM pg_class")
    with pytest.raises(SourceError, match="the server failed") as error:
        twins.pull("only")
    assert "two_phase: false" in error.value.way_out
    assert "recover" in error.value.way_out
    assert "each is read when it has ended" in caplog.text
    assert "in binary" not in caplog.text
    assert not list((tmp_path / "only").glob("*-*"))


def test_prepared_transactions_across_batches(
    database: Database, sessions: list[psycopg.Connection[Any]], tmp_path: Path
) -> None:
    modes: dict[str, dict[str, Any]] = {"plain": {"streaming": "off"}}
    for name in ("off", "on", "parallel"):
        modes[f"two_{name}"] = {"streaming": name, "two_phase": True}
    twins = Twins(database, tmp_path, modes)
    one, two, three, _ = sessions
    database.execute("INSERT INTO a VALUES (-1, 'describes a'); INSERT INTO b VALUES (-1, 'b', 1)")
    one.execute("INSERT INTO a VALUES (1, 'small')")
    one.execute("PREPARE TRANSACTION 'small'")
    fill(two, "b", 1, 3000)
    two.execute("SAVEPOINT s")
    fill(two, "b", 9000, 2000)
    two.execute("ROLLBACK TO s")
    two.execute("PREPARE TRANSACTION 'large one'")
    fill(three, "a", 5000, 2000)
    three.execute("PREPARE TRANSACTION 'gone'")
    for session in (one, two, three):
        session.commit()
    assert len(twins.same()) == 2
    for name in twins.sources:
        twins.confirm(name)
    database.execute("INSERT INTO a VALUES (-2, 'between')")
    twins.same()
    for name in twins.sources:
        twins.confirm(name)
    database.execute("COMMIT PREPARED 'small'")
    assert len(twins.same()) == 1
    database.execute("ROLLBACK PREPARED 'gone'")
    database.execute("COMMIT PREPARED 'large one'")
    held = twins.same()
    assert len(held) == 3000
    for name in twins.sources:
        twins.confirm(name)
    database.execute("INSERT INTO b VALUES (-5, 'last', 1)")
    assert len(twins.same()) == 1
    for name in modes:
        assert not list((tmp_path / name / "prepared").glob("*")), name


def test_memory_has_one_limit(
    database: Database,
    sessions: list[psycopg.Connection[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With next to none of it everything goes to disk, and comes back the same."""
    monkeypatch.setattr("slotlake.decoder.stream.puller.CHUNK_BYTES", 20_000)
    monkeypatch.setattr("slotlake.decoder.assembly.assembler.CHUNK_BYTES", 20_000)
    monkeypatch.setattr("slotlake.decoder.assembly.spool.PIECE_BYTES", 3_000)
    twins = Twins(database, tmp_path, MODES)
    one, two, three, _ = sessions
    for first in (1, 3000, 6000):
        fill(one, "a", first, 1200)
        fill(two, "b", first, 800)
        two.execute("SAVEPOINT s")
        fill(two, "b", first + 100_000, 1200)
        two.execute("ROLLBACK TO s" if first == 3000 else "RELEASE s")
    fill(three, "a", 100_000, 1500)
    two.commit()
    one.commit()
    held = twins.same(memory_bytes=40_000)
    assert len(held) == 3600 + 2400 + 2400
    for name in MODES:
        assert [path.name for path in (tmp_path / name).iterdir() if path.name.startswith(".")] == []


CHILD = """
import sys
from pathlib import Path
from slotlake.decoder.stream.pull import pull
from slotlake.decoder.server.source import SourceSettings
source = SourceSettings(sys.argv[1], ("p",), sys.argv[2], streaming="on", two_phase=True, messages=True)
pull(source, "test", Path(sys.argv[3]), start=int(sys.argv[4]))
"""


@pytest.mark.parametrize("failpoint", ["pull.mid", "pull.prepared", "pull.renamed"])
def test_killed_while_a_transaction_is_prepared(
    database: Database, sessions: list[psycopg.Connection[Any]], tmp_path: Path, failpoint: str
) -> None:
    modes: dict[str, dict[str, Any]] = {
        "plain": {"streaming": "off"},
        "two_on": {"streaming": "on", "two_phase": True},
    }
    twins = Twins(database, tmp_path, modes)
    one, *_ = sessions
    fill(one, "a", 1, 3000)
    one.execute("PREPARE TRANSACTION 'crashed'")
    one.commit()
    database.execute("INSERT INTO b VALUES (1, 'beside', 1)")
    source = twins.sources["two_on"]
    arguments = [source.dsn, source.slot, str(tmp_path / "two_on"), str(twins.starts["two_on"])]
    died = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments],
        env=os.environ | {"SLOTLAKE_FAILPOINT": failpoint},
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert died.returncode == -signal.SIGKILL
    assert len(twins.same()) == 1
    for name in modes:
        twins.confirm(name)
    database.execute("COMMIT PREPARED 'crashed'")
    assert len(twins.same()) == 3000


def test_a_prepared_transaction_that_was_removed_is_missed(
    database: Database, sessions: list[psycopg.Connection[Any]], tmp_path: Path
) -> None:
    twins = Twins(database, tmp_path, {"two": {"streaming": "off", "two_phase": True}})
    sessions[0].execute("INSERT INTO a VALUES (1, 'x')")
    sessions[0].execute("PREPARE TRANSACTION 'lost'")
    sessions[0].commit()
    twins.pull("two")
    twins.confirm("two")
    (file,) = (tmp_path / "two" / "prepared").iterdir()
    kept = file.read_bytes()
    file.write_bytes(kept[: len(kept) // 2])
    database.execute("COMMIT PREPARED 'lost'")
    with pytest.raises(ChangeLogError, match="cannot be read"):
        twins.pull("two")
    file.unlink()
    with pytest.raises(ChangeLogError, match="the file with its changes is missing"):
        twins.pull("two")
    file.write_bytes(kept)
    assert twins.pull("two").changes == 1


PEAK = """
import resource, sys
from pathlib import Path
from slotlake.decoder.stream.pull import pull
from slotlake.decoder.server.source import SourceSettings
more = {"streaming": "parallel", "two_phase": True}
source = SourceSettings(sys.argv[1], ("p",), sys.argv[2], **more)
first = pull(source, "test", Path(sys.argv[3]), start=int(sys.argv[4]), until=int(sys.argv[5]))
idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
whole = pull(source, "test", Path(sys.argv[3]), start=first.end_lsn, memory_bytes=4 << 20)
print(whole.changes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - idle)
"""


def test_memory_does_not_grow_with_a_transaction(
    database: Database, sessions: list[psycopg.Connection[Any]], tmp_path: Path
) -> None:
    """Two transactions of 60 MB, interleaved, one of them prepared (10 M rows each: docs/benchmarks.md)."""
    twins = Twins(database, tmp_path, {"t": {"streaming": "parallel", "two_phase": True}})
    one, two, *_ = sessions
    fill(one, "a", 1, 10_000)
    one.commit()
    middle = insert_position(database)
    for first in range(1_000_000, 1_400_000, 100_000):
        fill(one, "a", first, 100_000)
        fill(two, "b", first, 100_000)
    one.commit()
    two.execute("PREPARE TRANSACTION 'large'")
    two.commit()
    source = twins.sources["t"]
    told = [source.dsn, source.slot, str(tmp_path), str(twins.starts["t"]), str(middle)]
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *told],
        cwd=Path(__file__).parents[2],
        check=True,
        capture_output=True,
        text=True,
    )
    changes, grown_kb = map(int, done.stdout.split())
    assert changes == 400_000
    assert grown_kb < 210_000, grown_kb  # 260,000 with all of it in memory
