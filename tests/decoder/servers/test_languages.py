"""A server that speaks German: errors are told by their SQLSTATE and by the catalog, not by English words."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from slotlake.decoder.catalog.publications import source_tables
from slotlake.decoder.errors import SlotBusyError, SlotError, SourceError, SourceUnavailableError
from slotlake.decoder.server.source import SourceSettings, connect, connect_replication
from slotlake.decoder.slots.slot import create_slot
from slotlake.decoder.stream.pull import pull
from slotlake.decoder.stream.receive import Stream
from slotlake.infra.local import postgres
from slotlake.infra.local.postgres import temporary_postgres
from slotlake.infra.local.postgres_binaries import Binaries, server_user
from tests.conftest import Database, fresh_database
from tests.decoder.copied import copy_table

pytestmark = pytest.mark.server
# The embedded servers are built without translations; a system's own PostgreSQL often has them.
_BIN = Path("/usr/lib/postgresql/15/bin")
_GERMAN = Path("/usr/share/locale/de/LC_MESSAGES/postgres-15.mo")


@pytest.fixture(scope="module")
def german(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    if not (_BIN / "postgres").exists() or not _GERMAN.exists() or shutil.which("localedef") is None:
        pytest.skip("the system has no PostgreSQL 15 with German messages, or cannot make a locale")
    folder = (
        server_user().shared_folder() / "locales" if server_user().switch else tmp_path_factory.mktemp("l")
    )
    folder.mkdir(exist_ok=True)
    command = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(folder / "de_DE.UTF-8")]
    if not (folder / "de_DE.UTF-8").exists() and subprocess.run(command, check=False).returncode > 1:
        pytest.skip("the system cannot make the locale de_DE.UTF-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCPATH", str(folder))
        patch.setattr(postgres, "binaries", lambda *a, **k: Binaries(_BIN, 15))
        conf = {"lc_messages": "de_DE.UTF-8", "max_connections": "20", "max_wal_senders": "6"}
        with temporary_postgres(version=15, conf=conf) as server, fresh_database(server) as database:
            with pytest.raises(psycopg.errors.UndefinedTable, match="existiert nicht"):
                database.execute("SELECT * FROM nothing")
            database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
            database.execute("CREATE ROLE plain LOGIN PASSWORD 'x'; CREATE ROLE nobody NOLOGIN")
            yield database


def _settings(german: Database, slot: str = "", **more: Any) -> SourceSettings:
    return SourceSettings(german.dsn, more.pop("publications", ("p",)), slot or f"s_{german.name}", **more)


@pytest.mark.parametrize(
    ("change", "kind", "what"),
    [
        (("password=", "password=wrong"), SourceError, "does not accept the user or the password"),
        (("dbname='", "dbname='no_"), SourceError, "there is no such database"),
        (("user=slotlake", "user=nobody"), SourceError, "does not let this user in|does not accept the user"),
    ],
)
def test_refused_connections(
    german: Database, change: tuple[str, str], kind: type[SourceError], what: str
) -> None:
    with pytest.raises(kind, match=what) as told:
        connect(german.dsn.replace(*change))
    assert not told.value.retryable
    assert "LOCATION" not in str(told.value)
    assert ".c:" not in str(told.value)
    assert "28P01" not in str(told.value)


def test_a_role_that_may_not_replicate(german: Database) -> None:
    dsn = german.dsn.replace("user=slotlake", "user=plain").replace(german.server.password, "x")
    with pytest.raises(SourceError, match="privilege") as told:
        connect_replication(dsn)
    assert "REPLICATION" in told.value.way_out


def test_all_connections_taken(german: Database) -> None:
    held = [german.connect() for _ in range(3)]
    try:
        with pytest.raises(SourceUnavailableError, match=r"no free connection|WAL senders are in use"):
            held += [connect_replication(german.dsn) for _ in range(10)]
    finally:
        for each in held:
            each.close()


def test_a_locked_table(german: Database) -> None:
    with german.connect() as holder, connect(german.dsn) as connection:
        holder.execute("BEGIN; LOCK TABLE t")
        connection.execute("SET lock_timeout = 50")
        with pytest.raises(psycopg.errors.LockNotAvailable) as refused:
            connection.execute("SELECT * FROM t")
    from slotlake.decoder.server.source import explain

    assert "is locked" in explain(refused.value, german.dsn).what


def test_slots_and_publications_that_are_gone(german: Database, tmp_path: Path) -> None:
    source = _settings(german)
    with create_slot(source) as made:
        start = made.lsn
    german.execute("INSERT INTO t VALUES (1)")
    with Stream(source, start), pytest.raises(SlotBusyError):
        pull(source, "x", tmp_path, start=start)
    german.execute("DROP PUBLICATION p")
    german.execute("INSERT INTO t VALUES (2)")
    with (
        pytest.raises(SourceError, match="did not exist at this place in the WAL") as told,
        Stream(source, start) as stream,
    ):
        for _ in range(100):
            stream.drain()
            stream.rest(0.1)
    assert not isinstance(told.value, SlotError)
    german.execute("CREATE PUBLICATION p FOR TABLE t")
    with (
        pytest.raises(SlotError, match="the replication slot does not exist any more"),
        Stream(_settings(german, "none"), start),
    ):
        pass


def test_rows_that_are_hidden(german: Database, tmp_path: Path) -> None:
    german.execute("CREATE TABLE secured (id int PRIMARY KEY); ALTER TABLE secured ENABLE ROW LEVEL SECURITY")
    german.execute("GRANT SELECT ON secured TO plain; CREATE PUBLICATION q FOR TABLE secured")
    dsn = german.dsn.replace("user=slotlake", "user=plain").replace(german.server.password, "x")
    place: Any = SimpleNamespace(
        directory=tmp_path,
        names={},
        field_ids={},
        exact_names={},
        exact_field_ids={},
        representations={},
        inner_ids={},
    )
    with connect(german.dsn) as connection:
        (table,) = source_tables(connection, ["q"])
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        (snapshot,) = connection.execute("SELECT pg_export_snapshot()").fetchone() or ("",)
        with pytest.raises(SourceError, match="row-level security hides rows"):
            copy_table(dsn, snapshot, table, place)
