"""A real Airflow in one folder: scheduler, DAG processor, API server with its UI, on loopback.

A triggerer is a fourth part, if it is asked for. One ``LocalAirflow`` owns one folder, its AIRFLOW_HOME::

    <folder>/airflow.cfg        all settings and the three secrets, mode 0600, made once
    <folder>/passwords.json     the password of ``admin``, mode 0600, made once
    <folder>/process.json       process id and port, so that a later process can find it
    <folder>/serve.log, scheduler.log, dag-processor.log, api-server.log, triggerer.log, logs/

and an embedded PostgreSQL for its metadata (in ``postgres_folder``).  SQLite would do with the LocalExecutor,
but not for long: Airflow's API server writes its audit log on the event loop, and waits there for a lock
whose holder needs the loop to commit; a second request at the wrong moment stops it until SQLite's time-out.

Invariants: it listens on 127.0.0.1 only; no password is in a command line; all its processes are in one
session (setsid), whose members are ended one by one by their ids, also those that Airflow puts in process
groups of their own, and also by another process than the one that started them.

For a handful of pipelines on one machine; a larger Airflow is the user's own (docs/airflow.md).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from slotlake.decoder.errors import SetupError
from slotlake.infra.launch.folders import CHECKOUT
from slotlake.infra.local import airflow_session, process
from slotlake.infra.local.airflow_client import AirflowClient
from slotlake.infra.local.postgres import EmbeddedPostgres
from slotlake.infra.local.postgres_binaries import postgres_folder
from slotlake.infra.local.process import command_line, free_port, port_is_free, write_private

USER = "admin"
_STOP_SECONDS_MAX = 20.0
_METADATA = {
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "shared_buffers": "32MB",
    "synchronous_commit": "off",
}


class LocalAirflow:
    """One Airflow in one folder; a context manager that starts and ends it.

    Args:
        folder: its AIRFLOW_HOME, made if missing; one that holds an Airflow is used as it is.
        dags: the folder with the DAG files.
        environment: variables its processes get in addition to the caller's own (``SLOTLAKE_PIPELINES`` …).
        pools: pool name → places, made or set before the scheduler starts.
        parse_seconds: how often DAG files are read again.
        dies_with_parent: it ends when the thread that starts it ends, also by SIGKILL.
        triggerer: start a triggerer too, which few DAGs need.
    """

    def __init__(
        self,
        folder: Path,
        dags: Path,
        *,
        environment: Mapping[str, str] | None = None,
        pools: Mapping[str, int] | None = None,
        parse_seconds: int = 30,
        dies_with_parent: bool = False,
        triggerer: bool = False,
    ) -> None:
        self.folder = folder.absolute()
        self.dags = dags.absolute()
        self.environment = dict(environment or {})
        self.pools = dict(pools or {})
        self.parse_seconds = parse_seconds
        self.dies_with_parent = dies_with_parent
        self.triggerer = triggerer
        self.process: subprocess.Popen[bytes] | None = None
        digest = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:12]
        self.metadata = EmbeddedPostgres(
            postgres_folder(f"airflow-{digest}"), conf=_METADATA, dies_with_parent=dies_with_parent
        )

    # -- where things are ---------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port on 127.0.0.1; stays the same over restarts if it can."""
        return int(self._process_file()["port"])

    @property
    def url(self) -> str:
        """Where the UI and the REST API are."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def password(self) -> str:
        """The password of the user ``admin``."""
        return str(json.loads((self.folder / "passwords.json").read_text())[USER])

    def client(self) -> AirflowClient:
        """A client of the REST API."""
        return AirflowClient(self.url, USER, self.password)

    # -- life ---------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start all parts and return at once; ``wait_ready`` waits until they answer.

        Raises:
            SetupError: an Airflow runs in this folder.
        """
        if self.members():
            raise SetupError(
                "Airflow already runs in this folder",
                where=str(self.folder),
                way_out="stop it first (a demo: slotlake demo --stop)",
            )
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        port = self._choose_port()
        if not (self.folder / "secrets.json").exists():
            self.metadata.remove()  # of an Airflow whose folder is gone, and its keys with it
        self._write_secrets()
        self.metadata.start()
        write_private(self.folder / "airflow.cfg", self._configuration(port))
        self._write_plugin()
        command = [sys.executable, "-m", "slotlake.infra.local.airflow_serve", str(self.folder)]
        command += [f"--pool={name}={places}" for name, places in self.pools.items()]
        command += ["--triggerer"] if self.triggerer else []
        self.process = process.start(
            command,
            self.folder / "serve.log",
            environment=self._environment(),
            at_parents_end=signal.SIGTERM if self.dies_with_parent else None,
        )
        write_private(self.folder / "process.json", json.dumps({"port": port, "pid": self.process.pid}))
        return self

    def wait_ready(self, seconds_max: float = 300.0) -> AirflowClient:
        """Wait until all parts are healthy; return a client.

        Raises:
            SetupError: a part ended, or they take too long; the logs' ends are shown.
        """
        give_up = time.monotonic() + seconds_max
        client = self.client()
        while time.monotonic() < give_up:
            if self.process is not None and self.process.poll() is not None:
                raise self._not_started("Airflow ended while it was starting")
            if client.healthy(with_triggerer=self.triggerer):
                return client
            time.sleep(0.1)
        raise self._not_started(f"Airflow was not ready after {seconds_max:.0f} s")

    def stop(self, seconds_max: float = _STOP_SECONDS_MAX) -> None:
        """End all its processes, whoever started them; nothing happens when it does not run.

        A task that runs has ``seconds_max`` to end; then it is killed, which slotlake's steps survive.
        """
        leader = self._leader()
        if leader is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(leader, signal.SIGTERM)
        give_up = time.monotonic() + seconds_max
        while self.members() and time.monotonic() < give_up:
            time.sleep(0.05)
        if self.members():
            airflow_session.kill_all(self._process_file()["pid"])
        if self.process is not None:
            self.process.wait()
        self.metadata.stop()

    def remove(self) -> None:
        """Stop it and delete all it has made."""
        self.stop(seconds_max=0.0)
        self.metadata.remove()
        shutil.rmtree(self.folder, ignore_errors=True)

    def members(self) -> set[int]:
        """Ids of the running processes of this Airflow: the members of its session."""
        session = self._process_file().get("pid")
        if session is None:
            return set()
        command = command_line(session)
        if command and str(self.folder) not in command:
            return set()  # the id has been given to a stranger, which can only be once our session is empty
        return airflow_session.members(session)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- how ----------------------------------------------------------------------------------------------

    def _environment(self) -> dict[str, str]:
        """The caller's environment without anybody's Airflow settings, which would win over airflow.cfg."""
        own = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AIRFLOW_", "_AIRFLOW_"))
        }
        sources = CHECKOUT / "src"  # not there when installed from a wheel
        paths = (str(sources) if sources.is_dir() else "", own.get("PYTHONPATH", ""))
        loopback = ",".join(
            n for n in ("127.0.0.1,localhost", own.get("NO_PROXY", own.get("no_proxy", ""))) if n
        )
        return {
            **own,
            "AIRFLOW_HOME": str(self.folder),
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "NO_PROXY": loopback,
            "no_proxy": loopback,
            **self.environment,
        }

    def _configuration(self, port: int) -> str:
        """airflow.cfg: loopback only, few workers, short waits."""
        keys = json.loads((self.folder / "secrets.json").read_text())
        sections: dict[str, dict[str, object]] = {
            "core": {
                "dags_folder": self.dags,
                "executor": "LocalExecutor",
                "parallelism": 4,
                "load_examples": False,
                "mp_start_method": "fork",
                "simple_auth_manager_users": f"{USER}:admin",
                "simple_auth_manager_passwords_file": self.folder / "passwords.json",
                "execution_api_server_url": f"http://127.0.0.1:{port}/execution/",
                "fernet_key": keys["fernet"],
                # The default asks the name service, which may take seconds or not exist.
                "hostname_callable": "socket.gethostname",
                # A wrong pipeline file is told by its message, not by lines of this program.
                "dagbag_import_error_tracebacks": False,
            },
            "database": {
                # Not psycopg 3: Airflow knows a lock that it cannot have by psycopg2's `pgcode` alone.
                "sql_alchemy_conn": self.metadata.url().replace("://", "+psycopg2://", 1),
                "sql_alchemy_pool_size": 3,
            },
            "api": {
                "host": "127.0.0.1",
                "port": port,
                "workers": 1,
                "base_url": f"http://127.0.0.1:{port}",
                "secret_key": keys["api"],
            },
            "api_auth": {"jwt_secret": keys["jwt"]},
            # A worker that misses the end of its task by a hair looks again only after this time.
            "workers": {"min_heartbeat_interval": 1},
            "scheduler": {"scheduler_idle_sleep_time": 0.1, "scheduler_health_check_threshold": 60},
            "dag_processor": {
                "refresh_interval": self.parse_seconds,
                "min_file_process_interval": self.parse_seconds,
                "parsing_processes": 1,
                "bundle_refresh_check_interval": 1,
            },
            "logging": {
                "base_log_folder": self.folder / "logs",
                "dag_processor_child_process_log_directory": self.folder / "logs" / "dag_processor",
                "colored_console_log": False,
                "file_task_handler_new_folder_permissions": "0o700",
                "file_task_handler_new_file_permissions": "0o600",
            },
        }
        lines: list[str] = []
        for section, options in sections.items():
            lines.append(f"[{section}]")
            lines += [f"{name} = {str(value).replace('%', '%%')}" for name, value in options.items()]
        return "\n".join(lines) + "\n"

    def _write_plugin(self) -> None:
        """Let Airflow load the plugin from a checkout; an installed slotlake has an entry point for that."""
        plugin = self.folder / "plugins" / "slotlake_page.py"
        plugin.unlink(missing_ok=True)
        if (CHECKOUT / "src").is_dir():
            plugin.parent.mkdir(exist_ok=True)
            plugin.write_text("from slotlake.infra.airflow.plugin import SlotlakePlugin\n")

    def _choose_port(self) -> int:
        port = int(self._process_file().get("port", 0))
        return port if port and port_is_free(port) else free_port()

    def _write_secrets(self) -> None:
        if not (self.folder / "passwords.json").exists():
            write_private(
                self.folder / "passwords.json", json.dumps({USER: secrets.token_urlsafe(12)}) + "\n"
            )
        if not (self.folder / "secrets.json").exists():
            from cryptography.fernet import Fernet

            values = {
                "jwt": secrets.token_urlsafe(48),
                "api": secrets.token_urlsafe(24),
                "fernet": Fernet.generate_key().decode(),
            }
            write_private(self.folder / "secrets.json", json.dumps(values))

    def _process_file(self) -> dict[str, int]:
        try:
            return dict(json.loads((self.folder / "process.json").read_text()))
        except (OSError, ValueError):
            return {}

    def _leader(self) -> int | None:
        """The id of the process that started the parts, if it runs and is ours: ids are used again."""
        pid = self._process_file().get("pid")
        return pid if pid is not None and str(self.folder) in command_line(pid) else None

    def _not_started(self, what: str) -> SetupError:
        names = ("serve", "api-server", "scheduler", "dag-processor", "triggerer")
        ends = [f"{name}.log: {end}" for name in names if (end := _end_of(self.folder / f"{name}.log"))]
        return SetupError(what, where=str(self.folder), way_out="its logs end with\n" + "\n".join(ends))


def _end_of(log: Path, size: int = 1500) -> str:
    try:
        return log.read_text(errors="replace").strip()[-size:]
    except OSError:
        return ""
