"""Sessions at the source that go on within a block."""

from __future__ import annotations

import threading

import pytest

from slotlake.decoder.errors import SourceError
from slotlake.decoder.server.reuse import sessions_go_on
from slotlake.decoder.server.source import identify, source_session
from tests.conftest import Database


def backend(database: Database) -> int:
    with source_session(database.dsn) as connection:
        return connection.info.backend_pid


def test_a_session_goes_on_within_its_block_and_thread_only(database: Database) -> None:
    assert backend(database) != backend(database)
    with sessions_go_on():
        first = backend(database)
        with sessions_go_on():
            assert backend(database) == first
        assert backend(database) == first
        with source_session(database.dsn), source_session(database.dsn) as second:
            assert second.info.backend_pid != first
        others: list[int] = []
        thread = threading.Thread(target=lambda: others.append(backend(database)))
        thread.start()
        thread.join()
        assert others != [first]
        assert identify(database.dsn).database == identify(database.dsn).database == database.name
        with source_session(database.dsn) as session:
            pass
        assert not session.closed
    assert session.closed


@pytest.mark.parametrize("statement", ["SELECT 1 / 0", "BEGIN", "SET client_encoding = 'LATIN1'"])
def test_a_session_that_is_not_as_it_was_ends(database: Database, statement: str) -> None:
    with sessions_go_on():
        try:
            with source_session(database.dsn) as session:
                session.execute(statement.encode())
        except SourceError as error:
            assert "division by zero" in str(error)
        assert session.closed
        with source_session(database.dsn) as other:
            assert other.execute("SELECT 1").fetchone() == (1,)


def test_a_session_that_the_server_has_ended_is_an_error_once(database: Database) -> None:
    with sessions_go_on():
        database.execute(f"SELECT pg_terminate_backend({backend(database)}, 5000)")
        with pytest.raises(SourceError) as ended:
            backend_by_question(database)
        assert ended.value.retryable
        assert backend_by_question(database) > 0


def backend_by_question(database: Database) -> int:
    with source_session(database.dsn) as connection:
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])


def test_a_session_goes_on_without_prepared_statements(database: Database) -> None:
    """A replication session takes none, and others would fail once after a change of a table's columns."""
    database.execute("CREATE TABLE t (a int)")
    with sessions_go_on():
        for _ in range(8):
            assert identify(database.dsn).database == database.name
            with source_session(database.dsn) as session:
                assert session.execute("TABLE t").fetchall() == []
        database.execute("ALTER TABLE t ADD b int")
        with source_session(database.dsn) as session:
            assert session.execute("TABLE t").fetchall() == []


def test_a_replication_session_takes_the_same_question_many_times(database: Database) -> None:
    with source_session(database.dsn, replication=True) as session:
        assert {session.execute("SHOW wal_level").fetchone() for _ in range(8)} == {("logical",)}
