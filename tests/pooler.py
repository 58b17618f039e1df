"""A real PgBouncer before a test's server: the machine's own, or from Debian's packages, unpacked apart."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from slotlake.infra.launch.folders import home
from slotlake.infra.local.postgres_binaries import server_user
from slotlake.infra.local.process import free_port
from tests.conftest import Database

LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
_PACKAGES = ("pgbouncer", "libevent-2.1-7", "libc-ares2")


def program() -> Path | None:
    """Return the path of PgBouncer; None if it is not here. The long form fetches Debian's packages."""
    own = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if own is not None:
        return Path(own)
    folder = home() / "pgbouncer"
    unpacked = folder / "usr" / "sbin" / "pgbouncer"
    if not unpacked.exists() and LONG and shutil.which("apt-get") and shutil.which("dpkg"):
        folder.mkdir(parents=True, exist_ok=True)
        _done(folder, "apt-get", "download", "-q", *_PACKAGES)
        for file in folder.glob("*.deb"):
            _done(folder, "dpkg", "-x", str(file), str(folder))
    return unpacked if unpacked.exists() else None


def _done(folder: Path, *command: str) -> None:
    """Run a program; what it did not do is missing afterwards."""
    subprocess.run(command, cwd=folder, check=False, capture_output=True, timeout=120)


@contextmanager
def pooler(database: Database, folder: Path, mode: str = "transaction", **settings: str) -> Iterator[str]:
    """Run PgBouncer before the server; gives the connection string of the database through it.

    Args:
        database: the database.
        folder: for its files.
        mode: its pool_mode.
        settings: more of its settings.
    """
    path = program()
    if path is None:
        pytest.skip("there is no pgbouncer on this machine, and Debian's package cannot be had")
    port, user = free_port(), server_user()
    place = user.shared_folder() / f"bouncer-{os.getpid()}-{port}" if user.switch else folder
    place.mkdir(exist_ok=True)
    (place / "users.txt").write_text(f'"slotlake" "{database.server.password}"\n')
    conf = place / "bouncer.ini"
    lines = (
        "[databases]", f"* = host=127.0.0.1 port={database.server.port}", "[pgbouncer]",
        "listen_addr = 127.0.0.1", f"listen_port = {port}", "auth_type = scram-sha-256",
        f"auth_file = {place}/users.txt", "unix_socket_dir =", f"pool_mode = {mode}",
        *(f"{name} = {text}" for name, text in settings.items()),
    )  # fmt: skip
    conf.write_text("\n".join(lines) + "\n")
    for each in (place, conf, place / "users.txt"):
        user.own(each)
    command, options = _command(path, conf, place), user.popen_options()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    try:
        yield database.dsn.replace(f"port={database.server.port}", f"port={port}")
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(place, ignore_errors=True)


def _command(path: Path, conf: Path, place: Path) -> list[str]:
    """The program, with its libraries beside it; a copy that the server's user may read."""
    root = home() / "pgbouncer"
    if not path.is_relative_to(root):
        return [str(path), str(conf)]
    shutil.copytree(root / "usr", place / "usr", ignore=shutil.ignore_patterns("share"))
    for folder in (place, *place.rglob("*")):
        folder.chmod(0o755)
    libraries = ":".join(str(each) for each in (place / "usr" / "lib").iterdir() if each.is_dir())
    return ["env", f"LD_LIBRARY_PATH={libraries}", str(place / "usr" / "sbin" / "pgbouncer"), str(conf)]


def until_it_listens(dsn: str) -> None:
    """Wait until the pooler answers."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            psycopg.connect(dsn).close()
        except psycopg.OperationalError as error:
            if "refused" not in str(error):
                return
        else:
            return
        time.sleep(0.1)
    raise AssertionError("PgBouncer does not listen")
