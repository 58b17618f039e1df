"""Whatever is set for a role or a database, every session has its own settings, those that stream too."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slotlake.decoder.server.source import SourceSettings, connect, connect_replication
from slotlake.decoder.slots.slot import create_slot
from slotlake.decoder.slots.visible import Reader
from slotlake.decoder.stream.pull import pull
from slotlake.decoder.stream.receive import Stream
from slotlake.infra.local.postgres import Version
from tests.conftest import Database

pytestmark = pytest.mark.server
TIMES = {
    "statement_timeout": "300",
    "lock_timeout": "300",
    "idle_in_transaction_session_timeout": "300",
    "idle_session_timeout": "300",
    "transaction_timeout": "300",
}
MEANINGS = {
    "search_path": "hidden, pg_catalog",
    "lc_monetary": "'POSIX'",
    "standard_conforming_strings": "off",
    "DateStyle": "'SQL, DMY'",
    "IntervalStyle": "iso_8601",
    "bytea_output": "escape",
    "extra_float_digits": "-7",
    "TimeZone": "'Asia/Tokyo'",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "row_security": "off",
    "client_encoding": "LATIN1",
    "quote_all_identifiers": "on",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "session_replication_role": "replica",
    "client_min_messages": "error",
}
WANTED = {
    "search_path": '"$user",public',
    "lc_monetary": "C",
    "standard_conforming_strings": "on",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "TimeZone": "UTC",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "client_encoding": "UTF8",
    "statement_timeout": "0",
    "transaction_timeout": "0",
    "idle_session_timeout": "0",
    "client_min_messages": "warning",
}


def make_hostile(database: Database) -> None:
    """Set all of it, some for the database and some for the role there; some of it only the latter."""
    with database.connect() as connection:
        known = {name for (name,) in connection.execute("SELECT lower(name) FROM pg_settings").fetchall()}
        for i, (name, value) in enumerate({**TIMES, **MEANINGS}.items()):
            fixed = name == "standard_conforming_strings" and database.server.version >= 19  # always on
            if name.lower() in known and not fixed:
                role = f"ROLE slotlake IN DATABASE {database.name}"
                owner = role if i % 2 else f"DATABASE {database.name}"
                connection.execute(f"ALTER {owner} SET {name} = {value}".encode())


@pytest.mark.parametrize("version", [14, 17, 18])
def test_every_session_has_its_own_settings(
    database_on: Callable[[Version], Database], version: Version
) -> None:
    database = database_on(version)
    make_hostile(database)
    for opened in (connect, connect_replication):
        with opened(database.dsn) as session:
            for name, value in WANTED.items():
                if name != "transaction_timeout" or version >= 17:
                    assert session.execute(f"SHOW {name}".encode()).fetchone() == (value,), name


def test_what_takes_long_is_not_ended(database: Database, tmp_path: Path) -> None:
    """A slot's snapshot, a reader's own, and a stream, all open for longer than the times that are set."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    make_hostile(database)
    source = SourceSettings(database.dsn, ("p",), f"settings_{database.name}")
    reader = Reader.open(source)
    assert reader is not None
    with create_slot(source) as made, connect(source.dsn) as session:
        with Stream(source, made.lsn) as stream:
            time.sleep(0.6)
            session.execute("BEGIN; INSERT INTO public.t VALUES (1); SELECT pg_sleep(0.6)")
            session.execute("COMMIT")
            stream.drain()
        for snapshot in (made.snapshot, reader.snapshot):
            session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            session.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
            assert session.execute("SELECT count(*) FROM public.t").fetchone() == (0,)
            session.execute("COMMIT")
    reader.close()
    assert pull(source, "shop", tmp_path / "log", start=made.lsn).changes == 1
