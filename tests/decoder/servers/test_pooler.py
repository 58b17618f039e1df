"""A real PgBouncer before the server: it is named, with the way out, and not tried again for ever."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotlake.decoder.errors import SourceError
from slotlake.decoder.server.source import connect, connect_replication, identify
from slotlake.infra.local.postgres_binaries import server_user
from slotlake.infra.local.process import free_port
from tests.conftest import Database

pytestmark = pytest.mark.server
_PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


@pytest.fixture(params=["", "options,extra_float_digits", "options,extra_float_digits,replication"])
def through(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> Iterator[str]:
    """A connection string through PgBouncer, which pools transactions and ignores some parameters."""
    if _PROGRAM is None:
        pytest.skip("there is no pgbouncer on this machine")
    port, user = free_port(), server_user()
    folder = user.shared_folder() / f"bouncer-{os.getpid()}-{port}" if user.switch else tmp_path
    folder.mkdir(exist_ok=True)
    (folder / "users.txt").write_text(f'"slotlake" "{database.server.password}"\n')
    conf = folder / "bouncer.ini"
    lines = (
        "[databases]", f"* = host=127.0.0.1 port={database.server.port}", "[pgbouncer]",
        "listen_addr = 127.0.0.1", f"listen_port = {port}", "auth_type = scram-sha-256",
        f"auth_file = {folder}/users.txt", "unix_socket_dir =", "pool_mode = transaction",
        f"ignore_startup_parameters = {request.param}",
    )  # fmt: skip
    conf.write_text("\n".join(lines) + "\n")
    for path in (folder, conf, folder / "users.txt"):
        user.own(path)
    process = subprocess.Popen(
        [_PROGRAM, str(conf)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **user.popen_options()
    )
    try:
        yield database.dsn.replace(f"port={database.server.port}", f"port={port}")
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def test_it_is_named_and_not_tried_again(through: str) -> None:
    _until_it_listens(through)
    for opened in (connect, connect_replication, identify):
        with pytest.raises(SourceError, match="connection pooler") as told:
            opened(through)
        assert not told.value.retryable
        assert "to the PostgreSQL server itself" in told.value.way_out


def _until_it_listens(dsn: str) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            connect(dsn)
        except SourceError as error:
            if not error.retryable:
                return
        time.sleep(0.1)
    raise AssertionError("PgBouncer does not listen")
