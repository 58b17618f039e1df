"""The embedded server: it starts as any user, keeps its password to itself, and leaves nothing behind."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
import pytest

from slotlake.decoder.errors import SetupError
from slotlake.infra.local import postgres_binaries
from slotlake.infra.local.postgres import EmbeddedPostgres, Version, temporary_postgres
from slotlake.infra.local.postgres_archives import install
from tests.conftest import Servers

pytestmark = pytest.mark.server


def _processes_naming(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command:
            found.append(command)
    return found


@pytest.mark.parametrize("version", [18, 16])
def test_a_server_starts_takes_password_logins_and_is_set_for_logical_decoding(version: Version) -> None:
    with temporary_postgres(version=version) as server:
        with psycopg.connect(server.dsn()) as connection:
            row = connection.execute("SELECT current_setting('server_version_num')::int / 10000").fetchone()
            assert row == (server.version,)
            assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
            assert connection.execute("SHOW password_encryption").fetchone() == ("scram-sha-256",)
        with psycopg.connect(server.dsn(unix_socket=True)) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_wrong_password_is_refused_over_tcp_and_socket(pg: EmbeddedPostgres) -> None:
    for unix_socket in (False, True):
        dsn = pg.dsn(unix_socket=unix_socket).replace(pg.password, "wrong")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(dsn)


def test_the_password_is_on_no_command_line_and_in_no_log(pg: EmbeddedPostgres) -> None:
    done = subprocess.run(
        [pg.program("psql"), "-XAtc", "SELECT 42"],
        env=pg.client_environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "42\n"
    assert _processes_naming(str(pg.data)), "the search itself must find the server"
    assert not _processes_naming(pg.password)
    assert pg.password not in pg.log.read_text()


def test_restart_keeps_port_and_data_and_immediate_recovers() -> None:
    with temporary_postgres(conf={"work_mem": "7MB"}) as server:
        port = server.port
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE kept (n int)")
            connection.execute("INSERT INTO kept VALUES (1)")
        for mode in ("fast", "immediate"):
            server.restart(mode)
            assert server.port == port
            with psycopg.connect(server.dsn()) as connection:
                assert connection.execute("SELECT n FROM kept").fetchall() == [(1,)]
                assert connection.execute("SHOW work_mem").fetchone() == ("7MB",)
        server.kill()
        assert server.pid() is None
        server.start()
        with psycopg.connect(server.dsn()) as connection:
            assert connection.execute("SELECT n FROM kept").fetchall() == [(1,)]


def test_another_process_finds_the_server_and_ends_it_and_nothing_is_left() -> None:
    folder = Path(tempfile.mkdtemp(prefix="slotlake-test-pg-"))
    server = EmbeddedPostgres(folder, dies_with_parent=True).start()
    try:
        sockets = server.socket_folder
        other = EmbeddedPostgres(folder)
        assert other.pid() == server.pid()
        with psycopg.connect(other.dsn()) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        other.stop("fast")
        assert other.pid() is None
        assert not _processes_naming(str(folder))
        assert not sockets.exists()
    finally:
        server.remove()
    assert not folder.exists()


def test_a_bad_setting_is_told_with_the_servers_own_words() -> None:
    folder = Path(tempfile.mkdtemp(prefix="slotlake-test-pg-"))
    server = EmbeddedPostgres(folder, conf={"shared_buffers": "plenty"})
    try:
        with pytest.raises(SetupError, match="did not start") as caught:
            server.start()
        assert "shared_buffers" in str(caught.value)
    finally:
        server.remove()


def test_a_folder_that_nobody_cannot_enter_is_refused_up_front(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "pg").mkdir()
    with pytest.raises(SetupError, match="nobody"):
        postgres_binaries.check_reachable(closed / "pg")


def test_it_ends_with_the_process_that_started_it_even_a_killed_one() -> None:
    code = (
        "import time\n"
        "from slotlake.infra.local.postgres import temporary_postgres\n"
        "with temporary_postgres() as server:\n"
        "    print(server.folder, flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        folder = parent.stdout.readline().strip()
        assert _processes_naming(folder)
        parent.kill()
    server = EmbeddedPostgres(Path(folder))
    give_up = time.monotonic() + 20
    while _processes_naming(folder) and time.monotonic() < give_up:
        time.sleep(0.1)
    assert not _processes_naming(folder)
    sockets = server.socket_folder
    server.remove()
    assert not sockets.exists()
    assert not server.folder.exists()


def test_a_port_taken_meanwhile_is_given_up_for_another() -> None:
    with temporary_postgres() as server:
        port = server.port
        server.stop()
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", port))
            other.listen()
            server.start()
            assert server.port != port
            with psycopg.connect(server.dsn()) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("version", [14, 15, 17])
def test_a_server_of_each_other_version_comes_from_an_archive(servers: Servers, version: Version) -> None:
    with psycopg.connect(servers(version).dsn()) as connection:
        row = connection.execute("SELECT current_setting('server_version_num')::int / 10000").fetchone()
        assert row == (version,)


def test_an_archived_server_has_contrib_modules() -> None:
    with (
        temporary_postgres(contrib=True) as server,
        psycopg.connect(server.dsn(), autocommit=True) as connection,
    ):
        connection.execute("CREATE EXTENSION hstore")
        slot = "SELECT pg_create_logical_replication_slot('s', 'test_decoding', true)"
        assert connection.execute(slot).fetchone() is not None


def test_an_archive_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no archive of PostgreSQL 9 for this machine"):
        install(9, tmp_path)
