"""The digest that is asked for while a batch is on its way: it misses nothing that the batch could show."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slotlake.decoder.catalog import remembered_fingerprints
from slotlake.decoder.catalog.digests import Digest, described_digest
from slotlake.decoder.catalog.remembered_fingerprints import AskedAhead, RememberedFingerprints
from slotlake.decoder.server.position import settled_position
from slotlake.decoder.server.source import connect
from slotlake.decoder.server.waiting import WatchedConnection
from tests.conftest import Database

pytestmark = pytest.mark.server
PUBLICATIONS = ["p"]


@pytest.fixture
def table(database: Database) -> int:
    database.execute("CREATE TABLE one (id int PRIMARY KEY, t text); CREATE PUBLICATION p FOR TABLE one")
    return int(database.execute("SELECT 'one'::regclass::oid")[0][0])


@pytest.fixture
def connection(database: Database) -> Iterator[WatchedConnection]:
    with connect(database.dsn) as connection:
        yield connection


def _asked(database: Database, connection: WatchedConnection, table: int) -> AskedAhead:
    ahead = AskedAhead(database.dsn, f"{{{table}}}", PUBLICATIONS, settled_position(connection))
    ahead._thread.join()
    return ahead


def _answer(ahead: AskedAhead, connection: WatchedConnection, table: int) -> Digest | None:
    return ahead.digest(connection, f"{{{table}}}", PUBLICATIONS, ahead.position)


def test_the_answer_is_that_of_the_question_asked_now(
    database: Database, connection: WatchedConnection, table: int
) -> None:
    ahead = _asked(database, connection, table)
    now = described_digest(connection, f"{{{table}}}", PUBLICATIONS)
    assert _answer(ahead, connection, table) == now
    database.execute("ALTER TABLE one ADD u int")
    assert _answer(_asked(database, connection, table), connection, table) not in {None, now}


def test_an_answer_to_something_else_does_not_count(
    database: Database, connection: WatchedConnection, table: int
) -> None:
    ahead = _asked(database, connection, table)
    asked, end = f"{{{table}}}", ahead.position
    assert ahead.digest(connection, asked, PUBLICATIONS, end + 1) is None
    assert ahead.digest(connection, asked, ["q"], end) is None
    assert ahead.digest(connection, f"{{{table},1}}", PUBLICATIONS, end) is None


def test_a_transaction_that_ran_before_the_question_must_run_after_it(
    database: Database, connection: WatchedConnection, table: int
) -> None:
    """Its commit may have been in the WAL already, and nobody saw it yet."""
    with connect(database.dsn) as writer:
        writer.execute("BEGIN; ALTER TABLE one ALTER t SET DEFAULT 'x'")
        ahead = _asked(database, connection, table)
        assert _answer(ahead, connection, table) is not None
        writer.execute("COMMIT")
    assert _answer(ahead, connection, table) is None


def test_a_commit_that_waits_for_a_standby_is_not_missed(
    database: Database, connection: WatchedConnection, table: int
) -> None:
    """Such a commit is in the WAL, so in a batch, while no other session sees it."""
    database.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    database.execute("SELECT pg_reload_conf()")
    try:
        with connect(database.dsn) as writer:
            pid = writer.info.backend_pid
            writer.pgconn.send_query(b"SET synchronous_commit = on; ALTER TABLE one ADD u int")
            waiting = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'SyncRep'"
            while not database.execute(waiting)[0][0]:
                pass
            ahead = _asked(database, connection, table)
            unseen = described_digest(connection, f"{{{table}}}", PUBLICATIONS)
            assert _answer(ahead, connection, table) == unseen  # as it would be asked now
            database.execute("ALTER SYSTEM RESET synchronous_standby_names")
            database.execute("SELECT pg_reload_conf()")
            while database.execute(waiting)[0][0]:
                pass
            while writer.pgconn.get_result() is not None:
                pass
    finally:
        database.execute("ALTER SYSTEM RESET synchronous_standby_names")
        database.execute("SELECT pg_reload_conf()")
    assert _answer(ahead, connection, table) is None
    assert described_digest(connection, f"{{{table}}}", PUBLICATIONS) != unseen


def test_a_question_that_fails_is_asked_again(connection: WatchedConnection, table: int) -> None:
    ahead = AskedAhead("host=127.0.0.1 port=1 connect_timeout=2", f"{{{table}}}", PUBLICATIONS, 1)
    assert ahead.digest(connection, f"{{{table}}}", PUBLICATIONS, 1) is None


def test_fingerprints_are_as_old_as_the_batch_at_most(
    database: Database, connection: WatchedConnection, table: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered_fingerprints, "AHEAD_MIN", 1)
    asked_now: list[str] = []

    def counted(*arguments: object) -> Digest:
        asked_now.append("digest")
        return described_digest(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(remembered_fingerprints, "described_digest", counted)
    remembered = RememberedFingerprints()

    def columns(batch_end: int | None) -> list[str]:
        asked_now.clear()
        found = remembered.fingerprints(connection, [table], PUBLICATIONS, batch_end)
        return list(found[table].numbers)

    def asked() -> int:
        position = settled_position(connection)
        remembered.ask_ahead(database.dsn, position)
        if remembered._ahead is not None:
            remembered._ahead._thread.join()
        return position

    assert columns(asked()) == ["id", "t"]  # nothing was remembered, so nothing was asked ahead
    assert columns(asked()) == ["id", "t"]
    assert not asked_now
    database.execute("ALTER TABLE one ADD u int")
    assert columns(asked()) == ["id", "t", "u"]
    end = asked()
    database.execute("ALTER TABLE one ADD v int")
    assert columns(end) == ["id", "t", "u"]  # the batch ends before
    assert columns(end) == ["id", "t", "u", "v"]  # an answer counts once
    end = asked()
    database.execute("ALTER TABLE one ADD w int")
    assert columns(settled_position(connection)) == ["id", "t", "u", "v", "w"]
    asked()
    database.execute("ALTER TABLE one ADD x int")
    asked()  # this asks again
    assert columns(None) == ["id", "t", "u", "v", "w", "x"]
