"""A warm Spark: a Connect server on loopback, started once, used by every task, ended by process id.

One ``LocalSparkConnect`` owns one folder::

    <folder>/server.json    process id, port and token, mode 0600, so that a later process can find it
    <folder>/spark.conf     what Spark fixes at its start, mode 0600 (no secret stands on a command line)
    <folder>/server.log     what it says
    <folder>/scratch/       its temporary files, deleted when it ends

Invariants: it listens on 127.0.0.1 only and serves only who knows the token, because whoever may use a Spark
may run any program as its user.  PySpark gives the token without TLS only to a host spelled ``localhost``.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from slotlake.decoder.errors import SetupError
from slotlake.infra.local import process
from slotlake.infra.local.process import command_line, end_group, free_port, write_private
from slotlake.infra.local.runtime import LOG_LEVEL, SparkRuntime, pyspark_folder
from slotlake.spark.session import static_conf

_MAIN_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_START_SECONDS_MAX = 180.0
_TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  the name of the variable, both sides read it


class LocalSparkConnect:
    """One server in one folder; a context manager that starts and ends it.

    Args:
        folder: made if missing; one that holds a running server is that server.
        runtime: the Java and the jars.
        memory: the Java heap, as Spark writes it (``1g``).
        cores: worker threads, or ``*`` for as many as the machine has.
        dies_with_parent: it ends when the thread that starts it ends, also by SIGKILL.
    """

    def __init__(
        self,
        folder: Path,
        runtime: SparkRuntime,
        *,
        memory: str = "1g",
        cores: int | str = "*",
        dies_with_parent: bool = False,
    ) -> None:
        self.folder = folder.absolute()
        self.runtime = runtime
        self.memory = memory
        self.cores = cores
        self.dies_with_parent = dies_with_parent
        self._process: subprocess.Popen[bytes] | None = None
        self._server: dict[str, str] = self._read_server_file()

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.folder / "server.log"

    @property
    def remote(self) -> str:
        """The address for ``open_session(remote=…)``; the token goes by ``client_environment``."""
        return f"sc://localhost:{self._server['port']}"

    def client_environment(self) -> dict[str, str]:
        """Variables by which a process uses this server: address and token."""
        return {"SLOTLAKE_SPARK_REMOTE": self.remote, _TOKEN: self._server["token"]}

    def pid(self) -> int | None:
        """The running server's process id, whoever started it."""
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        pid = int(self._server.get("pid", 0))
        # The folder's own settings file on the command line tells it from another process of that id.
        return pid if pid and str(self._settings) in command_line(pid) else None

    def start(self) -> Self:
        """Start the server unless it runs, and wait until it answers.

        Raises:
            SetupError: it ended or does not answer in time; the end of its log is shown.
        """
        if self.pid() is not None and self._answers():
            return self
        self.stop()
        for attempt in range(3):
            self._spawn(anew=attempt > 0)
            if self._wait_ready():
                return self
            self.stop()
            if "Address already in use" not in self._log_end():
                break
        raise SetupError(
            "the Spark Connect server did not start",
            where=str(self.log),
            way_out=f"its log ends with:\n{self._log_end()}",
        )

    def stop(self) -> None:
        """End the server and what it started, whoever started it; delete its temporary files."""
        pid = self.pid()
        if pid is not None:
            end_group(pid)
        if self._process is not None:
            self._process.wait()
            self._process = None
        shutil.rmtree(self.folder / "scratch", ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _settings(self) -> Path:
        return self.folder / "spark.conf"

    def _spawn(self, *, anew: bool) -> None:
        """Start it where it was before, if it was: who holds the address goes on; ``anew``: elsewhere."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.folder / "scratch").mkdir(mode=0o700, exist_ok=True)
        before = {} if anew else self._server
        self._server = {
            "port": before.get("port") or str(free_port()),
            "token": before.get("token") or secrets.token_hex(24),
        }
        lines = (f"{name} {value}\n" for name, value in self._conf().items())
        write_private(self._settings, "".join(lines))
        self._process = process.start(
            [
                str(pyspark_folder() / "bin" / "spark-submit"),
                *("--properties-file", str(self._settings), "--class", _MAIN_CLASS),
                *("--name", "slotlake Spark Connect", "spark-internal"),
            ],
            self._fresh_log(),
            environment=self._environment(),
            at_parents_end=signal.SIGTERM if self.dies_with_parent else None,
            umask=0o077,
        )
        self._server["pid"] = str(self._process.pid)
        write_private(self.folder / "server.json", json.dumps(self._server))

    def _conf(self) -> Mapping[str, str]:
        return {
            **static_conf(self.runtime.jar_paths, driver_memory=self.memory),
            "spark.master": f"local[{self.cores}]",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": self._server["port"],
            "spark.local.dir": str(self.folder / "scratch"),
            "spark.sql.warehouse.dir": str(self.folder / "scratch" / "warehouse"),
            "spark.sql.catalogImplementation": "in-memory",
            # A table opened anew by each statement: the catalog's pointer is the truth, not a cached plan.
            "spark.connect.session.planCache.enabled": "false",
            "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={self.folder / 'scratch'}",
        }

    def _environment(self) -> dict[str, str]:
        unwanted = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "PYSPARK_SUBMIT_ARGS")
        inherited = {name: value for name, value in os.environ.items() if name not in unwanted}
        own = {**self.runtime.environment(), _TOKEN: self._server["token"]}
        return {LOG_LEVEL: "error", **inherited, **own}

    def _fresh_log(self) -> Path:
        self.log.unlink(missing_ok=True)
        return self.log

    def _wait_ready(self) -> bool:
        """True when it answers; false when it has ended or takes too long."""
        give_up = time.monotonic() + _START_SECONDS_MAX
        while time.monotonic() < give_up:
            if self._process is None or self._process.poll() is not None:
                return False
            if self._answers():
                return True
            time.sleep(0.1)
        return False

    def _answers(self) -> bool:
        """The server takes connections only after its Spark is up."""
        try:
            socket.create_connection(("127.0.0.1", int(self._server["port"])), timeout=1.0).close()
        except (OSError, KeyError):
            return False
        return True

    def _log_end(self) -> str:
        try:
            return self.log.read_text(errors="replace")[-1500:]
        except OSError:
            return ""

    def _read_server_file(self) -> dict[str, str]:
        try:
            return dict(json.loads((self.folder / "server.json").read_text()))
        except (OSError, ValueError):
            return {}
