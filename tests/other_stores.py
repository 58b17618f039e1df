"""Google's and Azure's object stores as others play them: fake-gcs-server (Go) and Azurite (npm).

Each is installed once, in a folder of its own in the cache; a machine without Go, or without npm, has none.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pytest

from slotlake.infra.launch.folders import home
from slotlake.infra.local.process import end_group, free_port, start
from tests.go_programs import go_program
from tests.google_xml import GoogleXml

_GOOGLE: Final = ("fake-gcs-server", "github.com/fsouza/fake-gcs-server", "v1.52.3")
_AZURE: Final = "azurite@3.35.0"
_ACCOUNT: Final = "devstoreaccount1"
# Azurite's own, which its manual gives.
_KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_START_SECONDS_MAX: Final = 60.0
_BUCKET: Final = "lake"


class OtherStore(ABC):
    """One server with one bucket; a context manager that starts and ends it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def waits_for(self) -> int:
        """The port of the program that is started."""
        return self.port

    @property
    @abstractmethod
    def warehouse(self) -> str:
        """A place in the bucket for a lake."""

    @property
    @abstractmethod
    def storage(self) -> dict[str, Any]:
        """The section ``lake.storage`` of a pipeline file."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command that runs it; it is installed if it is not here yet."""

    @abstractmethod
    def _make_bucket(self) -> None:
        """Make the bucket."""

    def __enter__(self) -> Self:
        log = self.folder / "server.log"
        self._process = start(self._command(), log, at_parents_end=signal.SIGKILL)
        give_up = time.monotonic() + _START_SECONDS_MAX
        while time.monotonic() < give_up and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.waits_for), 1).close()
            except OSError:
                time.sleep(0.05)
            else:
                self._make_bucket()
                return self
        raise AssertionError(f"the server did not start: {log.read_text()[-500:]}")

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            end_group(self._process.pid)


class GoogleStore(OtherStore):
    """fake-gcs-server, which asks nobody who he is, behind what translates Google's XML API for it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._inner = free_port()
        self._xml: GoogleXml | None = None

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._xml is not None:
            self._xml.__exit__(kind, value, trace)
        super().__exit__(kind, value, trace)

    @property
    def waits_for(self) -> int:
        return self._inner

    @property
    def warehouse(self) -> str:
        return f"gs://{_BUCKET}/warehouse"

    @property
    def storage(self) -> dict[str, Any]:
        return {"endpoint": self.endpoint}

    def _command(self) -> list[str]:
        program = go_program(*_GOOGLE)
        address = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(self._inner)]
        outside = ["-external-url", self.endpoint, "-public-host", f"127.0.0.1:{self.port}"]
        return [str(program), *address, *outside, "-backend", "memory", "-log-level", "warn"]

    def _make_bucket(self) -> None:
        self._xml = GoogleXml(f"http://127.0.0.1:{self._inner}", self.port).__enter__()
        body = json.dumps({"name": _BUCKET}).encode()
        _sent("POST", f"{self.endpoint}/storage/v1/b?project=x", {"Content-Type": "application/json"}, body)


class AzureStore(OtherStore):
    """Azurite, which checks signatures."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/{_ACCOUNT}"

    @property
    def warehouse(self) -> str:
        return f"abfss://{_BUCKET}@{_ACCOUNT}.dfs.core.windows.net/warehouse"

    @property
    def storage(self) -> dict[str, Any]:
        return {"endpoint": self.endpoint, "access_key": _ACCOUNT, "secret_key": _KEY}

    def _command(self) -> list[str]:
        folder = home() / _AZURE.replace("@", "-")
        program = folder / "node_modules" / ".bin" / "azurite-blob"
        if not program.exists():
            _install_azurite(folder)
        address = ["--blobHost", "127.0.0.1", "--blobPort", str(self.port)]
        quiet = ["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--inMemoryPersistence"]
        return [str(program), *address, *quiet]

    def _make_bucket(self) -> None:
        """By a request signed with the account's key (Azure's manual, "Authorize with Shared Key")."""
        moment = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = f"x-ms-date:{moment}\nx-ms-version:2021-08-06\n"
        resource = f"/{_ACCOUNT}/{_ACCOUNT}/{_BUCKET}\nrestype:container"
        text = "PUT" + "\n" * 12 + headers + resource
        signature = base64.b64encode(hmac.digest(base64.b64decode(_KEY), text.encode(), hashlib.sha256))
        given = {
            "x-ms-date": moment,
            "x-ms-version": "2021-08-06",
            "Authorization": f"SharedKey {_ACCOUNT}:{signature.decode()}",
            "Content-Length": "0",
        }
        _sent("PUT", f"{self.endpoint}/{_BUCKET}?restype=container", given, b"")


def _install_azurite(folder: Path) -> None:
    """Install it, or leave the test out where there is no npm; a failure is one."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("this machine has no npm, which installs the server")
    command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), _AZURE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        pytest.fail(f"npm cannot install {_AZURE}: {done.stderr.strip()[-2000:]}")


def _sent(method: str, address: str, headers: Mapping[str, str], body: bytes) -> None:
    request = urllib.request.Request(address, method=method, headers=dict(headers), data=body or None)
    with urllib.request.urlopen(request, timeout=30):
        pass
