"""An S3 server on loopback for demo and tests: S3Proxy, a Java program, which keeps the objects in a folder.

One ``LocalObjectStore`` owns one folder::

    <folder>/objects/       a folder per bucket
    <folder>/server.json    process id, port and keys, mode 0600, so that a later process can find it
    <folder>/s3proxy.conf   what it reads at its start, mode 0600
    <folder>/s3proxy.log    what it says

It is for trying things out: it has one user, and nothing of what keeps objects safe.
"""

from __future__ import annotations

import json
import secrets
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from slotlake.decoder.errors import SetupError
from slotlake.infra.local import process
from slotlake.infra.local.jars import fetched_jars, locked_jars
from slotlake.infra.local.java import Java
from slotlake.infra.local.process import command_line, end_group, free_port, write_private

_LOCK_FILE: Final = Path(__file__).with_name("s3proxy.lock")
_START_SECONDS_MAX: Final = 60.0
_MEMORY: Final = "-Xmx256m"


class LocalObjectStore:
    """One server in one folder; a context manager that starts and ends it.

    Args:
        folder: made if missing.
        java: the Java that runs it.
        bucket: a bucket that it has.
        dies_with_parent: it ends when the thread that starts it ends, also by SIGKILL.
    """

    def __init__(
        self, folder: Path, java: Java, *, bucket: str = "lake", dies_with_parent: bool = True
    ) -> None:
        self.folder = folder.absolute()
        self.bucket = bucket
        self.dies_with_parent = dies_with_parent
        self._java = java
        self._process: subprocess.Popen[bytes] | None = None
        self._server = self._read_server_file()

    @property
    def endpoint(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self._server['port']}"

    @property
    def warehouse(self) -> str:
        """A place in the bucket for a lake."""
        return f"s3://{self.bucket}/warehouse"

    @property
    def storage(self) -> dict[str, Any]:
        """The section ``lake.storage`` of a pipeline file."""
        keys = {name: self._server[name] for name in ("access_key", "secret_key")}
        return {"endpoint": self.endpoint, "region": "us-east-1", **keys}

    def pid(self) -> int | None:
        """The running server's process id, whoever started it."""
        pid = int(self._server.get("pid", 0))
        # The folder's own settings file on the command line tells it from another process of that id.
        return pid if pid and str(self._settings) in command_line(pid) else None

    def start(self) -> Self:
        """Start the server and wait until it answers.

        Raises:
            SetupError: its jar cannot be had, or it does not answer in time.
        """
        jar = fetched_jars(locked_jars(_LOCK_FILE), lambda: self._java)[0]
        (self.folder / "objects" / self.bucket).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._server = {
            "port": str(free_port()),
            "access_key": secrets.token_hex(10),
            "secret_key": secrets.token_hex(20),
        } | self._server
        write_private(self._settings, "".join(f"{name}={value}\n" for name, value in self._conf().items()))
        log = self.folder / "s3proxy.log"
        self._process = process.start(
            [self._java.program, _MEMORY, "-jar", str(jar), "--properties", str(self._settings)],
            log,
            at_parents_end=signal.SIGTERM if self.dies_with_parent else None,
            umask=0o077,
        )
        self._server["pid"] = str(self._process.pid)
        write_private(self.folder / "server.json", json.dumps(self._server))
        give_up = time.monotonic() + _START_SECONDS_MAX
        while time.monotonic() < give_up and self._process.poll() is None:
            if self._answers():
                return self
            time.sleep(0.05)
        self.stop()
        raise SetupError(
            "the local S3 server did not start",
            where=str(log),
            way_out=f"its log ends with:\n{log.read_text(errors='replace')[-1500:]}",
        )

    def stop(self) -> None:
        """End the server, whoever started it; the objects stay."""
        pid = self.pid()
        if pid is not None:
            end_group(pid)
        if self._process is not None:
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _conf(self) -> dict[str, str]:
        return {
            "s3proxy.endpoint": self.endpoint,
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": self._server["access_key"],
            "s3proxy.credential": self._server["secret_key"],
            "jclouds.provider": "filesystem-nio2",
            "jclouds.filesystem.basedir": str(self.folder / "objects"),
            "jclouds.identity": "local",
            "jclouds.credential": "local",
        }

    @property
    def _settings(self) -> Path:
        return self.folder / "s3proxy.conf"

    def _read_server_file(self) -> dict[str, str]:
        try:
            return dict(json.loads((self.folder / "server.json").read_text()))
        except (OSError, ValueError):
            return {}

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", int(self._server["port"])), timeout=1.0).close()
        except OSError:
            return False
        return True
