"""What a real server refuses, by SQLSTATE: the class of the error, what it says, and a way out."""

from __future__ import annotations

from unittest import mock

import psycopg
import pytest

from slotlake.decoder.errors import SourceError, SourceUnavailableError
from slotlake.decoder.server.source import connect, source_errors, source_session
from tests.conftest import Database

RAISED = "DO $$ BEGIN RAISE EXCEPTION 'kein Platz mehr' USING ERRCODE = '{}'; END $$"
# What runs, which class, what it says, what its way out names.
REFUSED = [
    ("SET statement_timeout = 50; SELECT pg_sleep(9)", True, "cancelled the statement", "statement_timeout"),
    (
        "SET default_transaction_read_only = on; CREATE TABLE x ()",
        False,
        "is read-only",
        "default_transaction_read_only",
    ),
    (
        "SET ROLE pg_monitor; SELECT * FROM t",
        False,
        "lacks a privilege: permission denied for table t",
        "GRANT",
    ),
    ("SELECT * FROM nowhere", False, "no such table, column, schema", "dropped or renamed"),
    ("SELECT * FROM no.where_at_all", False, "no such table, column, schema", "USAGE"),
    (
        "SET temp_file_limit = '1MB'; SET work_mem = '64kB'; " + RAISED.format("53400"),
        True,
        "a limit",
        "raise",
    ),
    (RAISED.format("53100"), True, "a disk of the server is full", "enlarge"),
    (RAISED.format("53200"), True, "out of memory", "source.copy_workers"),
    (RAISED.format("58030"), True, "cannot read or write its files", "disks"),
    (RAISED.format("XX001"), False, "the server failed", "REINDEX"),
    (RAISED.format("54000"), False, "larger than the server can send", "tables.<name>.columns"),
    (RAISED.format("P0001"), False, "PostgreSQL refused", "SQLSTATE P0001"),
    # As a server says it that is no primary any more, or was set up otherwise (logical.c, slot.c, 14 to 19).
    *(
        (f"DO $$ BEGIN RAISE EXCEPTION '{words}' USING ERRCODE = '{state}'; END $$", later, said, way_out)
        for words, state, later, said, way_out in [
            ("recovery is in progress", "55000", True, "is a standby now", "target_session_attrs"),
            (
                "logical decoding cannot be used while in recovery",
                "55000",
                False,
                "perhaps the primary until a failover",
                "target_session_attrs",
            ),
            (
                'logical decoding on standby requires "effective_wal_level" >= "logical" on the primary',
                "55000",
                False,
                "the standby.s primary lacks",
                "a logical slot on the primary",
            ),
            (
                "replication slots can only be used if wal_level >= replica",
                "55000",
                False,
                "wal_level is too low",
                "wal_level = 'logical'",
            ),
            (
                'replication slots can only be used if "max_replication_slots" > 0',
                "55000",
                False,
                "allows no replication slots",
                "max_replication_slots = 10",
            ),
            (
                'library "wal2json" may not be used as an output plugin',
                "42501",
                False,
                "does not let this output plugin",
                "output_plugin_libraries",
            ),
        ]
    ),
]


@pytest.mark.parametrize(("statement", "later", "said", "way_out"), REFUSED)
def test_a_refusal_is_told_by_its_sqlstate(
    database: Database, statement: str, later: bool, said: str, way_out: str
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with (
        connect(database.dsn) as connection,
        pytest.raises(SourceError, match=said) as caught,
        source_errors(database.dsn, "copying public.t"),
    ):
        for each in statement.split("; ", 1) if statement.startswith("SET") else [statement]:
            connection.execute(each.encode())
    error = caught.value
    assert isinstance(error, SourceUnavailableError) == error.retryable == later
    assert f"dbname={database.name}" in error.where
    assert way_out in error.way_out
    assert ("run the same command again" in error.way_out) == later


def test_a_session_that_is_ended(database: Database) -> None:
    with connect(database.dsn) as connection:
        database.execute(f"SELECT pg_terminate_backend({connection.info.backend_pid})")
        with pytest.raises(SourceUnavailableError) as caught, source_errors(database.dsn):
            connection.execute("SELECT 1")
    assert "then run the same command again" in caught.value.way_out


def test_a_table_that_is_locked(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with psycopg.connect(database.dsn) as other, connect(database.dsn) as connection:
        other.execute("LOCK TABLE t")
        with pytest.raises(SourceUnavailableError, match="locked") as caught, source_errors(database.dsn):
            connection.execute("SELECT * FROM t FOR UPDATE NOWAIT")
    assert "pg_locks" in caught.value.way_out


def test_what_was_done_is_told(database: Database) -> None:
    with (
        connect(database.dsn) as connection,
        pytest.raises(SourceError) as caught,
        source_errors(database.dsn, "copying public.t"),
    ):
        connection.execute("SELECT * FROM nowhere")
    assert "while copying public.t" in caught.value.what


def test_a_server_that_is_too_old_is_refused_by_its_version(database: Database) -> None:
    version = mock.PropertyMock(return_value=130014)
    patched = mock.patch.object(psycopg.ConnectionInfo, "server_version", version)
    said = r"PostgreSQL 13\.14; slotlake reads 14 and later"
    with patched, pytest.raises(SourceError, match=said) as caught:
        connect(database.dsn)
    assert "upgrade" in caught.value.way_out
    assert not caught.value.retryable


def test_no_chain_leads_to_what_holds_the_password(database: Database) -> None:
    with pytest.raises(SourceError) as caught, source_session(database.dsn, "looking") as connection:
        connection.execute("SELECT 1/0")
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    assert connection.closed


def test_a_session_that_ends_by_another_error_keeps_nothing(database: Database) -> None:
    database.execute("CREATE TABLE t (a int)")
    with pytest.raises(KeyError), source_session(database.dsn) as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO t VALUES (1)")
        raise KeyError
    assert connection.closed
    assert database.execute("SELECT * FROM t") == []
