"""A REST catalog on this machine, for tests: the fixture server of Apache Iceberg's own project.

``rest.lock`` beside this file pins its jar, which is fetched_jars, checked and kept as Spark's jars are, but
only when a test asks for it (it is 212 MB).  Its tables are rows of a SQLite file in the folder given.

It keeps to the specification but for one thing that matters here: it checks all changes of a
`transactions/commit` first and then makes them one after another, in the order of the request.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from slotlake.decoder.errors import SetupError
from slotlake.infra.local.jars import fetched_jars, locked_jars
from slotlake.infra.local.java import Java, find_java
from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.infra.local.process import end_group, free_port, start

_LOCK_FILE = Path(__file__).with_name("rest.lock")
_START_SECONDS_MAX = 60.0


class LocalRestCatalog:
    """One server over one folder; a context manager that starts and ends it. ``uri``: its address."""

    def __init__(
        self, folder: Path, *, java: Java | None = None, store: LocalObjectStore | None = None
    ) -> None:
        self.folder = folder.absolute()
        self._store = store
        self.uri = ""
        self._java = java
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start the server.

        Raises:
            SetupError: its jar cannot be had, or it does not answer in time.
        """
        java = self._java or find_java()
        jar = fetched_jars(locked_jars(_LOCK_FILE), lambda: java)[0]
        self.folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        environment = {
            **os.environ,
            "CATALOG_REST_PORT": str(port),
            "CATALOG_URI": f"jdbc:sqlite:{self.folder}/rest.db?busy_timeout=30000",
            "CATALOG_WAREHOUSE": (self.folder / "warehouse").as_uri(),
            **self._files(),
        }
        self._process = start(
            [java.program, *java.options(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-jar", str(jar)],
            self.folder / "rest.log",
            environment=environment,
            at_parents_end=signal.SIGKILL,
        )
        self.uri = f"http://127.0.0.1:{port}"
        self._await(port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the server."""
        if self._process is not None:
            end_group(self._process.pid)

    def _files(self) -> dict[str, str]:
        """What the server is told about the object store; it hands all of it on with each table."""
        if self._store is None:
            return {}
        storage = self._store.storage
        return {
            "CATALOG_WAREHOUSE": f"{self._store.warehouse}/rest",
            "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
            "CATALOG_S3_ENDPOINT": storage["endpoint"],
            "CATALOG_S3_PATH__STYLE__ACCESS": "true",
            "CATALOG_S3_ACCESS__KEY__ID": storage["access_key"],
            "CATALOG_S3_SECRET__ACCESS__KEY": storage["secret_key"],
            "CATALOG_CLIENT_REGION": storage["region"],
        }

    def _await(self, port: int) -> None:
        give_up = time.monotonic() + _START_SECONDS_MAX
        while time.monotonic() < give_up and self._process is not None and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        log = self.folder / "rest.log"
        raise SetupError(
            "the REST catalog did not start",
            where=" / ".join(log.read_text(errors="replace").splitlines()[-3:]),
            way_out="see that Java is 17 or newer and that its port is free",
        )
