"""An embedded PostgreSQL server: made, started, stopped, from binaries that come as a wheel or an archive.

One ``EmbeddedPostgres`` owns one folder::

    <folder>/data/          the cluster (initdb, UTF-8, locale C, SCRAM passwords, wal_level=logical)
    <folder>/server.log     what the server says
    <folder>/server.json    port, socket folder and password (mode 0600), so that a later process can find it

Invariants: the server listens on loopback and a Unix socket only; the password is in no command line, only
in files of mode 0600 and in ``dsn()``; whoever starts a server can end it, also from another process.

PostgreSQL refuses to run as root.  For root the server runs as ``nobody``, which can enter neither a home of
mode 0700 nor an environment inside one: the binaries are then copied to, and the folder must be, where that
user can go (``postgres_folder`` names such a place).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias

from slotlake.decoder.errors import SetupError
from slotlake.infra.local import process
from slotlake.infra.local.postgres_binaries import (
    Binaries,
    ServerUser,
    binaries,
    check_reachable,
    chosen_binaries,
    server_user,
)
from slotlake.infra.local.postgres_settings import settings_text
from slotlake.infra.local.process import command_line, free_port, port_is_free, write_private

USER = "slotlake"
Version: TypeAlias = Literal[14, 15, 16, 17, 18, 19]
_START_SECONDS_MAX = 60.0
_STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class EmbeddedPostgres:
    """One server in one folder; a context manager that starts and ends it.

    Args:
        folder: made if missing, with a new cluster; a folder that holds a cluster is used as it is.
        version: 14 to 18; 18 and 16 are in the wheel, the others are fetched (postgres_archives.py); 19 with
            ``programs`` only.
        contrib: with contrib modules (test_decoding, hstore, …), which the wheel lacks; 14, 15, 17 and 18.
        conf: settings over the defaults above, as in postgresql.conf.
        dies_with_parent: the server is ended (as by ``immediate``) when the thread that starts it ends, also
            by SIGKILL; for tests and the demo, not for a server that is to stay.
        programs: the ``bin`` folder of an installed PostgreSQL, instead of those.
    """

    def __init__(
        self,
        folder: Path,
        *,
        version: Version = 18,
        contrib: bool = False,
        conf: Mapping[str, str] | None = None,
        dies_with_parent: bool = False,
        programs: Path | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.conf = dict(conf or {})
        self.dies_with_parent = dies_with_parent
        self.process: subprocess.Popen[bytes] | None = None
        self._user: ServerUser = server_user()
        self._binaries: Binaries = (
            chosen_binaries(programs) if programs else binaries(version, self._user, contrib=contrib)
        )
        self.version = self._binaries.version
        self._server = self._read_server_file()
        self._log_start = 0

    @property
    def data(self) -> Path:
        """The cluster's data directory."""
        return self.folder / "data"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.folder / "server.log"

    @property
    def port(self) -> int:
        """TCP port on 127.0.0.1; stays the same over restarts if it can."""
        return int(self._server["port"])

    @property
    def socket_folder(self) -> Path:
        """Folder of the Unix socket; short, because a socket's path may have 107 bytes only."""
        return Path(self._server["socket_folder"])

    @property
    def password(self) -> str:
        """The superuser's password."""
        return self._server["password"]

    def dsn(self, database: str = "postgres", *, unix_socket: bool = False, user: str = USER) -> str:
        """Return a connection string with the password: for a connection call, never for a command line.

        Args:
            unix_socket: connect by the socket's folder instead of TCP.
        """
        host = str(self.socket_folder) if unix_socket else "127.0.0.1"
        name = database.replace("\\", "\\\\").replace("'", "\\'")
        return f"host={host} port={self.port} user={user} password={self.password} dbname='{name}'"

    def url(self, database: str = "postgres") -> str:
        """The same as ``dsn`` in URL form, over TCP."""
        return f"postgresql://{USER}:{self.password}@127.0.0.1:{self.port}/{database}"

    @property
    def programs(self) -> Path:
        """The ``bin`` folder that it runs from."""
        return self._binaries.bin

    def program(self, name: str) -> str:
        """Path of a client program: psql, pgbench, pg_recvlogical, pg_dump and others.

        Raises:
            SetupError: the wheel has no such program.
        """
        path = self._binaries.bin / name
        if not path.exists():
            raise SetupError(
                f"the embedded PostgreSQL has no program {name!r}",
                where=str(self._binaries.bin),
                way_out="this build comes without it: use a version whose build has it (the `contrib` ones)",
            )
        return str(path)

    def client_environment(self, database: str = "postgres") -> dict[str, str]:
        """Environment in which client programs connect with no argument and no password on a command line."""
        return {
            **os.environ,
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.port),
            "PGUSER": USER,
            "PGDATABASE": database,
            "PGPASSFILE": str(self.folder / "client" / "pgpass"),
            "PGSSLMODE": "disable",
            "PGTZ": "UTC",
        }

    def start(self) -> Self:
        """Make the cluster if there is none, start the server, wait until it takes connections.

        Raises:
            SetupError: the cluster cannot be made or the server does not come up; the log's end is shown.
        """
        self._prepare_folder()
        if not (self.data / "PG_VERSION").exists():
            self._initdb()
        new_port = False
        for _ in range(10):
            self._choose_address(new_port=new_port)
            self.process = self._spawn()
            if self._wait_ready():
                return self
            self.stop("immediate")
            new_port = "could not bind" in self._log_end()
            # After a crash the old backends may live on for a moment with the shared memory.
            if not new_port and "shared memory block" not in self._log_end():
                break
            time.sleep(0.5)
        raise SetupError(
            f"PostgreSQL {self.version} did not start",
            where=str(self.log),
            way_out=f"its log says:\n{self._log_end()}",
        )

    def stop(
        self, mode: Literal["smart", "fast", "immediate"] = "fast", *, seconds_max: float = 60.0
    ) -> None:
        """End the server, whoever started it; nothing happens when it does not run.

        ``immediate`` is a crash: the next start recovers from the WAL.  A server that has not ended in time
        is ended as by a crash.
        """
        pid = self.pid()
        for step in (mode, "immediate"):
            if pid is None:
                break
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, _STOP_SIGNALS[step])
            if self._wait_until_ended(pid, seconds_max):
                break
        self._forget_socket_folder()

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop and start again, on the same port if it is still free."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """SIGKILL to the postmaster: the machine's crash as far as this server is concerned."""
        pid = self.pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            self._wait_until_ended(pid, 30.0)

    def pid(self) -> int | None:
        """The running postmaster's process id, by our own child or by the cluster's lock file."""
        if self.process is not None:
            return self.process.pid if self.process.poll() is None else None
        try:
            pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return None
        return pid if _is_postgres(pid, self.data) else None

    def remove(self) -> None:
        """Stop the server and delete its folder."""
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop("fast")

    def _prepare_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._user.switch:
            check_reachable(self.folder)
            self._user.own(self.folder)
        self.folder.chmod(0o711 if self._user.switch else 0o700)
        client = self.folder / "client"
        client.mkdir(mode=0o700, exist_ok=True)
        if "password" not in self._server:
            self._server["password"] = secrets.token_hex(16)
        write_private(client / "pgpass", f"*:*:*:{USER}:{self.password}\n")

    def _initdb(self) -> None:
        incoming = self.folder / "data.incoming"
        shutil.rmtree(incoming, ignore_errors=True)
        password_file = self.folder / "initdb-password"
        write_private(password_file, self.password + "\n")
        self._user.own(password_file)
        command = [
            self.program("initdb"), "--pgdata", str(incoming), "--username", USER, "--encoding", "UTF8",
            "--locale", "C", "--auth", "scram-sha-256", "--pwfile", str(password_file),
            "--no-instructions", "--no-sync",
        ]  # fmt: skip
        try:
            outcome = subprocess.run(
                command, capture_output=True, text=True, check=False, cwd="/", **self._user.popen_options()
            )
        finally:
            password_file.unlink()
        if outcome.returncode != 0:
            raise SetupError("initdb failed", where=str(incoming), way_out=outcome.stderr.strip()[-2000:])
        incoming.rename(self.data)

    def _choose_address(self, *, new_port: bool) -> None:
        port = int(self._server.get("port", 0))
        if new_port or not port or not port_is_free(port):
            self._server["port"] = str(free_port())
        folder = self._server.get("socket_folder", "")
        if not folder or not Path(folder).is_dir():
            self._server["socket_folder"] = tempfile.mkdtemp(prefix="slotlake-pg-")
        self.socket_folder.chmod(0o755 if self._user.switch else 0o700)
        self._user.own(self.socket_folder)
        write_private(self.folder / "client" / "server.json", json.dumps(self._server))

    def _spawn(self) -> subprocess.Popen[bytes]:
        place = {"port": str(self.port), "unix_socket_directories": str(self.socket_folder)}
        conf = self.data / "postgresql.auto.conf.slotlake"
        conf.write_text(settings_text({**self.conf, **place}))
        self._user.own(conf)
        command = [
            self.program("postgres"),
            "-D",
            str(self.data),
            "-c",
            f"config_file={self._config_file(conf)}",
        ]
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        return process.start(
            command,
            self.log,
            user=(self._user.uid, self._user.gid) if self._user.switch else None,
            at_parents_end=signal.SIGQUIT if self.dies_with_parent else None,
        )

    def _config_file(self, settings: Path) -> Path:
        main = self.data / "slotlake.conf"
        main.write_text(f"include 'postgresql.conf'\ninclude '{settings.name}'\n")
        self._user.own(main)
        return main

    def _wait_ready(self) -> bool:
        """True when the server's lock file says ``ready``; false when it has ended or takes too long."""
        give_up = time.monotonic() + _START_SECONDS_MAX
        while time.monotonic() < give_up:
            assert self.process is not None
            if self.process.poll() is not None:
                return False
            with contextlib.suppress(OSError):
                lines = (self.data / "postmaster.pid").read_text().splitlines()
                if len(lines) >= 8 and int(lines[0]) == self.process.pid and lines[7].strip() == "ready":
                    return True
            time.sleep(0.02)
        return False

    def _wait_until_ended(self, pid: int, seconds_max: float) -> bool:
        give_up = time.monotonic() + seconds_max
        while time.monotonic() < give_up:
            if self.process is not None:
                if self.process.poll() is not None:
                    self.process = None
                    return True
            elif not _is_postgres(pid, self.data):
                return True
            time.sleep(0.02)
        return False

    def _forget_socket_folder(self) -> None:
        folder = self._server.pop("socket_folder", "")
        if folder:
            shutil.rmtree(folder, ignore_errors=True)

    def _log_end(self) -> str:
        """What the server said since its last start, the end of it."""
        try:
            with self.log.open("rb") as log:
                log.seek(self._log_start)
                return log.read().decode(errors="replace")[-1500:]
        except OSError:
            return ""

    def _read_server_file(self) -> dict[str, str]:
        try:
            return dict(json.loads((self.folder / "client" / "server.json").read_text()))
        except (OSError, ValueError):
            return {}


@contextlib.contextmanager
def temporary_postgres(
    *,
    version: Version = 18,
    contrib: bool = False,
    conf: Mapping[str, str] | None = None,
    programs: Path | None = None,
) -> Iterator[EmbeddedPostgres]:
    """Run a new server and delete it at the end; it does not wait for its disk.

    Args:
        version: PostgreSQL's major version.
        contrib: with the contrib modules.
        conf: settings of postgresql.conf that differ from the default.
        programs: the ``bin`` folder of an installed PostgreSQL, instead of that version's.
    """
    folder = Path(tempfile.mkdtemp(prefix="slotlake-test-pg-"))
    settings = {"fsync": "off", "full_page_writes": "off", **(conf or {})}
    server = EmbeddedPostgres(
        folder, version=version, contrib=contrib, conf=settings, dies_with_parent=True, programs=programs
    )
    try:
        yield server.start()
    finally:
        server.remove()


def _is_postgres(pid: int, data: Path) -> bool:
    """True when ``pid`` runs and is the postmaster of ``data``: process ids are used again."""
    return str(data) in command_line(pid)
