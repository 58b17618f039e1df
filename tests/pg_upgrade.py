"""pg_upgrade as its manual says: a new cluster beside the stopped old one, which stays as it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slotlake.infra.local.postgres import USER, EmbeddedPostgres
from slotlake.infra.local.postgres_binaries import binaries, server_user
from slotlake.infra.local.process import free_port, write_private
from tests.debian_postgres import debian_postgres

_SETTINGS = "wal_level = logical\nmax_replication_slots = 10\n"


@contextmanager
def upgraded(old: EmbeddedPostgres, programs: Path) -> Iterator[EmbeddedPostgres]:
    """The running new server, on the old one's port; deleted at the end.

    Args:
        old: the server, which is stopped.
        programs: the `bin` folder of the new version.
    """
    old.stop("fast")
    folder = Path(tempfile.mkdtemp(prefix="slotlake-test-pg-"))
    user = server_user()
    folder.chmod(0o711)
    user.own(folder)
    try:
        data = str(folder / "data")
        checksums = ["--no-data-checksums"] if "--no-data-checksums" in _help_of(programs / "initdb") else []
        _run(folder, str(programs / "initdb"), "-D", data, "-U", USER, "-E", "UTF8", "--locale", "C",
             "-A", "trust", "--no-sync", *checksums)  # fmt: skip
        with (folder / "data" / "postgresql.conf").open("a") as conf:
            conf.write(_SETTINGS)
        _run(folder, str(programs / "pg_upgrade"), "-b", str(_old_programs(old)), "-B", str(programs),
             "-d", str(old.data), "-D", data, "-U", USER, "-p", str(free_port()), "-P", str(free_port()),
             "-o", f"-c config_file={old.data}/slotlake.conf", "-s", str(folder), "--no-sync",
             password=old.password)  # fmt: skip
        (folder / "client").mkdir(mode=0o700)
        server_file = {"password": old.password, "port": str(old.port)}
        write_private(folder / "client" / "server.json", json.dumps(server_file))
        server = EmbeddedPostgres(folder, conf=old.conf, dies_with_parent=True, programs=programs)
        try:
            yield server.start()
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _old_programs(old: EmbeddedPostgres) -> Path:
    """A `bin` folder with all that pg_upgrade calls; an archive lacks two, which Debian's packages have."""
    if (old.programs / "pg_resetwal").exists():
        return old.programs
    more = debian_postgres(old.version)
    folder = more.parents[4] / "for-pg-upgrade"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    needed = [*old.programs.iterdir(), more / "pg_resetwal", more / "pg_controldata"]
    for program in needed:
        if not (folder / program.name).exists():
            (folder / program.name).symlink_to(program)
    return folder


def _help_of(program: Path) -> str:
    return subprocess.run([str(program), "--help"], capture_output=True, text=True, check=True).stdout


def _run(folder: Path, *command: str, password: str = "") -> None:
    environment = {**os.environ, "PGPASSWORD": password, "HOME": str(folder), "LC_ALL": "C"}
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=300,
        **server_user().popen_options(),
    )  # fmt: skip
    assert done.returncode == 0, f"{command[0]}:\n{done.stdout[-3000:]}\n{done.stderr[-2000:]}"


def programs_of_18() -> Path:
    """The `bin` folder of the wheel's 18, which has all programs."""
    return binaries(18, server_user()).bin
