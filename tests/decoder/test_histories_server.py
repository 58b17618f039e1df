"""The server as its own oracle: whatever is asked of it, one history has one meaning.

Sessions work side by side while slots with every choice of protocol, streaming and two-phase read along.
What protocol 1 sends, whole transactions in commit order, is what the streamed and prepared pieces of the
others must come to, position by position.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from slotlake.decoder.protocol.messages import Insert
from slotlake.infra.local.postgres import EmbeddedPostgres, temporary_postgres
from tests.conftest import Database, drop_database, seed_of_the_run
from tests.decoder.assembling import assembled, scratch
from tests.decoder.comparing import comparable
from tests.decoder.live import IMMEDIATE, SMALL, VARIANTS, History, LiveSlot, live_slots, meaning_of
from tests.decoder.reference import Result, Transaction, reference_transactions
from tests.decoder.sessions import random_history
from tests.vectors.histories import HISTORIES, SETUP

PUBLISHED = """
    b INSERT INTO t1 VALUES (-1, 'x')
    a BEGIN
    a INSERT INTO t1 SELECT i, repeat('x', 500) FROM generate_series(1, 300) i
    a INSERT INTO t2 SELECT i, repeat('x', 500), i FROM generate_series(1, 300) i
    b ALTER PUBLICATION p DROP TABLES IN SCHEMA public
    b ALTER PUBLICATION p ADD TABLE t1 (id), t2 (id, more)
    b INSERT INTO t1 VALUES (-2, 'x')
    b INSERT INTO t2 VALUES (-3, 'x', 1)
    a COMMIT
    b INSERT INTO t1 VALUES (-4, 'x')
    b INSERT INTO t2 VALUES (-5, 'x', 1)
"""


VERSIONS = [int(v) for v in os.environ.get("SLOTLAKE_HISTORY_VERSIONS", "18,16").split(",")]


@pytest.fixture(scope="module", params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedPostgres]:
    settings = {"max_prepared_transactions": "20", "max_wal_senders": "20", "max_replication_slots": "20"}
    with temporary_postgres(version=request.param, conf=settings) as running:
        yield running


@pytest.fixture
def database(server: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[Database]:
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        name = f"h{abs(hash(request.node.name)) % 10**8}"
        admin.execute(f"CREATE DATABASE {name}")
    made = Database(server, name)
    made.execute(SETUP)
    yield made
    for (gid,) in made.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", [name]):
        made.execute(f"ROLLBACK PREPARED '{gid}'")
    drop_database(server, name)


def meaning(slot: LiveSlot) -> list[Result]:
    """What a slot's stream comes to, without what the options themselves make different."""
    return comparable(reference_transactions(slot.stream, **meaning_of(slot.options)))


def hold_equal(slots: dict[str, LiveSlot]) -> list[Result]:
    """The reference and the assembler make of every slot's stream what protocol 1 was sent."""
    oracle = meaning(slots["1"])
    for name, slot in slots.items():
        assert meaning(slot) == oracle, name
        options = meaning_of(slot.options)
        with scratch() as folder:
            plain = assembled(slot.stream, options=options, folder=Path(folder))
        assert comparable(reference_transactions(plain, binary=options["binary"])) == oracle, name
    return oracle


def run(database: Database, slots: dict[str, LiveSlot], statements: str) -> None:
    history = History(database, slots)
    try:
        history.run_all(statements)
    finally:
        history.close()


@pytest.mark.parametrize("name", HISTORIES)
def test_every_way_of_asking_gives_the_same_transactions(database: Database, name: str) -> None:
    kinds, statements = HISTORIES[name]
    with live_slots(database, VARIANTS) as slots:
        run(database, slots, statements)
        assert hold_equal(slots)
    seen = {payload[:1].decode() for slot in slots.values() for _, payload in slot.stream}
    assert set(kinds) <= seen


@pytest.mark.parametrize("immediate", [False, True])
def test_what_is_published_may_change_while_a_transaction_is_streamed(
    database: Database, immediate: bool
) -> None:
    """What of a's rows is sent is the server's decision; what of b's is not, nor how to read them."""
    with live_slots(database, VARIANTS, IMMEDIATE if immediate else SMALL) as slots:
        run(database, slots, PUBLISHED)
        for slot in slots.values():
            of_a = [t for t in meaning(slot) if isinstance(t, Transaction) and len(t.changes) == 600]
            of_b = [t for t in meaning(slot) if isinstance(t, Transaction) and len(t.changes) == 1]
            assert len(of_a) == 1
            rows = [c.message.new for t in of_b for c in t.changes if isinstance(c.message, Insert)]
            assert rows == [("-1", "x"), ("-2",), ("-3", "1.00"), ("-4",), ("-5", "1.00")]
            names = [[c.name for c in t.changes[0].relations[0].columns] for t in of_b]
            assert names == [["id", "note"], ["id"], ["id", "more"], ["id"], ["id", "more"]]
        assert b"S" in {payload[:1] for _, payload in slots["4-parallel"].stream}


@pytest.mark.parametrize("number", range(int(os.environ.get("SLOTLAKE_HISTORIES", "2"))))
def test_random_sessions_give_the_same_transactions(database: Database, number: int) -> None:
    seed = seed_of_the_run()
    print(f"SLOTLAKE_SEED={seed} gives history {number} again")
    with live_slots(database, VARIANTS) as slots:
        history = History(database, slots)
        done: list[str] = []
        try:
            for session, statement in random_history(random.Random(seed + number), steps=60):
                done.append(f"{session} {statement}")
                history.run(session, statement)
            results = hold_equal(slots)
        except BaseException:
            print("\n".join(done))
            raise
        finally:
            history.close()
    assert any(isinstance(result, Transaction) for result in results)
