"""Project Nessie's server on this machine, for tests: a REST catalog of another making than Iceberg's own.

``nessie.lock`` beside this file pins its jar (245 MB), fetched and checked as Spark's jars are when a test
asks for it.  It needs Java 21 or newer, which Spark does not: without one, the tests that need it are skipped
with these words.  It serves buckets only, so it stands on a local S3 server.  Its tables are in its memory.

Each test has a branch of Nessie's own: a catalog of its own on the same server.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from slotlake.decoder.errors import SetupError
from slotlake.infra.local.jars import fetched_jars, locked_jars
from slotlake.infra.local.java import find_java
from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.infra.local.process import end_group, free_port, start

_LOCK_FILE: Final = Path(__file__).with_name("nessie.lock")
_START_SECONDS_MAX: Final = 90.0
_JAVA_MIN: Final = 21
NO_JAVA: Final = "Nessie needs Java 21 or newer (SLOTLAKE_NESSIE_JAVA=<its java>); this machine has none"


class LocalNessie:
    """One server over one object store; a context manager that starts and ends it. ``uri``: its address."""

    def __init__(self, folder: Path, store: LocalObjectStore) -> None:
        self.folder = folder.absolute()
        self.uri = ""
        self._store = store
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start the server.

        Raises:
            SetupError: its jar or a Java for it cannot be had, or it does not answer in time.
        """
        program = find_newer_java()
        if program is None:
            raise SetupError(NO_JAVA, where="PATH, JAVA_HOME, /usr/lib/jvm", way_out="install Java 21")
        jar = fetched_jars(locked_jars(_LOCK_FILE), find_java)[0]
        self.folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        options = [f"-D{key}={value}" for key, value in self._settings(port).items()]
        self._process = start(
            [program, "-Xmx512m", "-XX:TieredStopAtLevel=1", *options, "-jar", str(jar)],
            self.folder / "nessie.log",
            at_parents_end=signal.SIGKILL,
        )
        self.uri = f"http://127.0.0.1:{port}"
        self._await()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the server."""
        if self._process is not None:
            end_group(self._process.pid)

    def branch(self, name: str) -> str:
        """Return the address of a REST catalog of its own, made if it is not there.

        Args:
            name: of Nessie's branch.
        """
        return branch_of_nessie(self.uri, name)

    def _settings(self, port: int) -> dict[str, str]:
        storage = self._store.storage
        s3 = "nessie.catalog.service.s3.default-options"
        return {
            "quarkus.http.port": str(port),
            "quarkus.http.host": "127.0.0.1",
            "quarkus.management.port": str(free_port()),
            "quarkus.management.host": "127.0.0.1",
            "nessie.version.store.type": "IN_MEMORY",
            "nessie.catalog.default-warehouse": "tests",
            "nessie.catalog.warehouses.tests.location": f"{self._store.warehouse}/nessie",
            f"{s3}.endpoint": storage["endpoint"],
            f"{s3}.region": storage["region"],
            f"{s3}.path-style-access": "true",
            f"{s3}.access-key": "urn:nessie-secret:quarkus:store",
            "store.name": storage["access_key"],
            "store.secret": storage["secret_key"],
        }

    def _await(self) -> None:
        import requests  # here: the tests of the decoder read this module, and run without it

        give_up = time.monotonic() + _START_SECONDS_MAX
        while time.monotonic() < give_up and self._process is not None and self._process.poll() is None:
            try:
                if requests.get(f"{self.uri}/iceberg/v1/config", timeout=5).status_code == 200:
                    return
            except requests.RequestException:
                time.sleep(0.2)
        log = (self.folder / "nessie.log").read_text(errors="replace").splitlines()[-3:]
        raise SetupError(
            "Nessie did not start", where=" / ".join(log), way_out="see that Java is 21 or newer"
        )


def branch_of_nessie(uri: str, name: str) -> str:
    """Return the address of a REST catalog of its own, made if it is not there.

    Args:
        uri: the server's.
        name: of Nessie's branch.
    """
    import requests

    api = f"{uri}/api/v2/trees"
    main = requests.get(f"{api}/main", timeout=30).json()["reference"]
    answer = requests.post(api, params={"name": name, "type": "BRANCH"}, json=main, timeout=30)
    if answer.status_code not in (200, 409):
        raise SetupError("Nessie made no branch", where=answer.text[:200], way_out="look at its log")
    return f"{uri}/iceberg/{name}"


def find_newer_java() -> str | None:
    """A Java of this machine that is new enough; None if there is none."""
    return next((program for program in _programs() if _version(program) >= _JAVA_MIN), None)


def _programs() -> Iterator[str]:
    chosen = os.environ.get("SLOTLAKE_NESSIE_JAVA")
    if chosen:
        yield chosen
    if home := os.environ.get("JAVA_HOME"):
        yield f"{home}/bin/java"
    if on_path := shutil.which("java"):
        yield on_path
    yield from (str(path) for path in sorted(Path("/usr/lib/jvm").glob("*/bin/java"), reverse=True))


def _version(program: str) -> int:
    try:
        output = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(\d+)', output.stderr + output.stdout)
    return int(match[1]) if match else 0
