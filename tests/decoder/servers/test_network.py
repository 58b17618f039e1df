"""Networks that fail and servers that go away: a clear error, nothing left over, nothing twice or missing."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.errors import SlotBusyError, SlotlakeError, SourceUnavailableError
from slotlake.decoder.server.silence import Silence, Verdict, limit_seconds
from slotlake.decoder.server.source import SourceSettings, connect
from slotlake.decoder.slots.confirm import confirm
from slotlake.decoder.slots.slot import create_slot
from slotlake.decoder.stream.pull import pull
from slotlake.decoder.stream.receive import Stream
from slotlake.infra.local.postgres import Version, temporary_postgres
from tests.conftest import Database, fresh_database, seed_of_the_run
from tests.decoder.servers.proxy import Fault, Proxy
from tests.decoder.sources import replayed, through_sql
from tests.meanwhile import repeatedly

ROWS = 300
_TRANSACTIONS = 40


@pytest.fixture
def database(database_on: Callable[[Version], Database]) -> Database:
    return database_on(18)


def filled(database: Database, transactions: int = _TRANSACTIONS) -> tuple[SourceSettings, int]:
    """A slot, and behind it transactions of which every fifth is streamed in pieces while in progress."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b int); CREATE PUBLICATION p FOR TABLE t")
    source = SourceSettings(database.dsn, ("p",), f"slot_{database.name}")
    with create_slot(source) as made:
        start = made.lsn
    with database.connect() as connection:
        for i in range(transactions):
            work(connection, i)
    return source, start


def work(connection: psycopg.Connection[tuple[object, ...]], i: int) -> None:
    """One transaction; its keys are its own."""
    rows = ROWS * 4 if i % 5 == 0 else 20
    with connection.transaction():
        connection.execute(
            "INSERT INTO t SELECT %s + n, repeat('x', 100), n FROM generate_series(1, %s) n",
            (i * 10000, rows),
        )
        connection.execute("UPDATE t SET a = 'changed' WHERE b %% 3 = 0 AND id > %s", (i * 10000,))


def truth(database: Database, source: SourceSettings, start: int, directory: Path) -> Batch:
    """Everything in one pull, straight from the server."""
    return pull(replace(source, dsn=database.dsn), "test", directory, start=start)


def commits(*batches: Batch) -> list[tuple[int, int]]:
    """(xid, commit LSN) of all transactions, in the order of the batches."""
    rows = [row for batch in batches for row in batch.transaction_table().to_pylist()]
    return [(row["xid"], row["commit_lsn"]) for row in rows]


@pytest.mark.parametrize(
    "fault",
    [Fault(piece=11), Fault(piece=1500, pause_seconds=0.002), Fault(piece=333, pause_seconds=0.001)],
    ids=["in splinters", "slow", "both"],
)
def test_splinters_and_delays_change_nothing(database: Database, tmp_path: Path, fault: Fault) -> None:
    source, start = filled(database, 6)
    expected = truth(database, source, start, tmp_path / "truth")
    with Proxy(database, fault) as proxy:
        batch = pull(replace(source, dsn=proxy.dsn), "test", tmp_path / "log", start=start)
    assert commits(batch) == commits(expected)
    assert replayed([batch]) == replayed([expected])


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_cut_anywhere_leaves_nothing_and_the_next_pull_has_all(
    database: Database, tmp_path: Path, reset: bool
) -> None:
    source, start = filled(database)
    expected = truth(database, source, start, tmp_path / "truth")
    log = tmp_path / "log"
    with Proxy(database) as proxy:
        through = replace(source, dsn=proxy.dsn)
        pull(through, "test", tmp_path / "whole", start=start)
        whole = proxy.passed
        chance = random.Random(reset)
        places = [0, 1, 100, *(chance.randrange(whole) for _ in range(7)), whole - 200]
        for place in places:
            proxy.become(cut_after=place, reset=reset)
            with pytest.raises(SlotlakeError) as caught:
                pull(through, "test", log, start=start)
            assert caught.value.retryable, (place, str(caught.value))
            assert list(log.glob("*")) == [], place
        proxy.become()
        batch = pull(through, "test", log, start=start)
    assert commits(batch) == commits(expected)
    assert replayed([batch]) == replayed([expected])


def test_a_network_that_swallows_everything_is_noticed(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotlake.decoder.server.silence.LIMIT_SECONDS", 1.0)
    database.execute(f"ALTER DATABASE {database.name} SET wal_sender_timeout = '900ms'")
    source, start = filled(database)
    with Proxy(database) as proxy:
        through = replace(source, dsn=proxy.dsn)
        pull(through, "test", tmp_path / "whole", start=start)
        proxy.become(swallow_after=proxy.passed // 2)
        begun = time.monotonic()
        # The look at the slot, behind START_REPLICATION, may meet it before the stream does.
        noticed = r"has not answered for 1(\.\d)? s, not even to a request|connection timeout expired"
        with pytest.raises(SourceUnavailableError, match=noticed):
            pull(through, "test", tmp_path / "log", start=start)
        assert time.monotonic() - begun < 16
    assert list((tmp_path / "log").glob("*")) == []


@pytest.mark.fast
def test_silence_is_asked_about_once_and_then_believed() -> None:
    watch = Silence(60.0)
    looks = [(5, 0.0), (0, 100.0), (0, 129.0), (0, 130.0), (0, 140.0), (0, 159.0), (0, 160.0)]
    wait, ask, lost = Verdict.WAIT, Verdict.ASK, Verdict.LOST
    assert [watch.looked(*look) for look in looks] == [wait, wait, wait, ask, wait, wait, lost]
    assert watch.looked(1, 161.0) is wait
    assert [watch.looked(0, t) for t in (200.0, 231.0)] == [wait, ask]
    assert [limit_seconds(t) for t in (0.0, 1.0, 60.0, 300.0)] == [600.0, 60.0, 60.0, 300.0]


def test_an_idle_server_that_is_asked_answers(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotlake.decoder.server.silence.LIMIT_SECONDS", 0.6)
    database.execute(f"ALTER DATABASE {database.name} SET wal_sender_timeout = '600ms'")
    database.execute("CREATE PUBLICATION p")
    source = SourceSettings(database.dsn, ("p",), f"slot_{database.name}")
    with create_slot(source) as made:
        start = made.lsn
    until = time.monotonic() + 1.5
    with Stream(source, start) as stream:
        while time.monotonic() < until:
            stream.drain()
            stream.report(start)
            stream.rest(0.05)


def test_another_reader_is_named_and_waited_for(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, start = filled(database)
    with Stream(source, start):
        monkeypatch.setattr("slotlake.decoder.slots.slot.BUSY_WAIT_SECONDS", 0.2)
        monkeypatch.setattr("slotlake.decoder.stream.receive.START_RETRY_SECONDS", 0.2)
        with pytest.raises(SlotBusyError, match=r"in use by pid \d+") as caught:
            pull(source, "test", tmp_path / "log", start=start)
        assert caught.value.retryable
        assert "pg_terminate_backend" in caught.value.way_out
    expected = truth(database, source, start, tmp_path / "truth")
    monkeypatch.undo()
    with Stream(source, start) as other:
        ending = threading.Timer(0.5, other.close)
        ending.start()
        batch = pull(source, "test", tmp_path / "log", start=start)
        ending.join()
    assert commits(batch) == commits(expected)


def terminate(database: Database, slot: str) -> None:
    database.execute(
        "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s",
        (slot,),
    )


@pytest.mark.parametrize("bulk", [False, True])
def test_nothing_is_twice_or_missing_whatever_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bulk: bool
) -> None:
    """Batch after batch, some confirmed, while the network and the server fail at random."""
    if bulk:
        through_sql(monkeypatch, 256 << 10)
    seed = seed_of_the_run()
    steps = int(os.environ.get("SLOTLAKE_FAULTS", "6"))
    print(f"SLOTLAKE_SEED={seed} gives this run again")
    chance = random.Random(seed)
    conf = {"logical_decoding_work_mem": "64kB", "shared_buffers": "16MB", "max_prepared_transactions": "5"}
    with temporary_postgres(conf=conf) as server, fresh_database(server) as database:
        source, start = filled(database)
        witness = replace(source, slot=f"{source.slot}_w")
        with create_slot(witness) as made:
            later = made.lsn
        expected = truth(database, source, start, tmp_path / "truth")
        with Proxy(database) as proxy:
            through = replace(source, dsn=proxy.dsn)
            run = Unlucky(database, through, proxy, chance, tmp_path / "log", start)
            for step in range(steps):
                with database.connect() as connection:
                    work(connection, 100 + step)
                run.step()
            run.rest()
        seen = commits(*run.batches)
        rest = pull(witness, "test", tmp_path / "rest", start=later)
        assert seen == commits(expected) + commits(rest), run.history
        assert len(set(seen)) == len(seen) == _TRANSACTIONS + steps
        held = {str(row[0]): row for row in database.execute("SELECT id::text, a, b::text FROM t")}
        assert replayed(run.batches) == held


class Unlucky:
    """A pipeline's pulls and confirmations, and the faults it meets."""

    def __init__(
        self,
        database: Database,
        source: SourceSettings,
        proxy: Proxy,
        chance: random.Random,
        log: Path,
        at: int,
    ) -> None:
        self._database, self._source, self._proxy, self._chance = database, source, proxy, chance
        self._log = log
        self.position = at
        self.batches: list[Batch] = []
        self.history: list[str] = []
        self.failures = 0

    def step(self) -> None:
        faults = [self._cut, self._cut, self._terminate, self._restart, self._crash, self._nothing]
        fault = self._chance.choice(faults)
        self.history.append(fault.__name__)
        fault()
        if self._chance.random() < 0.5:
            self._settled(lambda: confirm(self._source, self.position))

    def rest(self) -> None:
        """What is left, undisturbed."""
        self._proxy.become()
        while True:
            batch = self._pull()
            if batch.empty or not batch.transactions:
                break

    def _pull(self) -> Batch:
        size = self._chance.choice([1000, 100_000, None])
        batch = pull(self._source, "test", self._log, start=self.position, max_bytes=size)
        self.position = batch.end_lsn
        if not batch.empty:
            self.batches.append(batch)
        return batch

    def _settled(self, action: Callable[[], object]) -> None:
        """Do it; a failure must be one that passes by itself, and leave no trace."""
        try:
            action()
        except SlotlakeError as error:
            assert error.retryable, str(error)
            self.failures += 1
            self.history.append(type(error).__name__)
        assert not list(self._log.glob(".incoming-*")), self.history

    def _nothing(self) -> None:
        self._proxy.become()
        self._pull()

    def _cut(self) -> None:
        self._proxy.become(cut_after=self._chance.randrange(20_000), reset=self._chance.random() < 0.5)
        self._settled(self._pull)
        self._proxy.become()

    def _terminate(self) -> None:
        with repeatedly(lambda: terminate(self._database, self._source.slot), 0.01):
            self._settled(self._pull)

    def _restart(self) -> None:
        self._gone("fast")

    def _crash(self) -> None:
        self._gone("immediate")

    def _gone(self, mode: str) -> None:
        self._proxy.become(pause_seconds=0.005, piece=500)
        stopping = threading.Timer(self._chance.random() * 0.3, self._database.server.stop, args=(mode,))
        stopping.start()
        self._settled(self._pull)
        stopping.join()
        self._database.server.start()
        self._proxy.become()
        with connect(self._source.dsn):
            pass
