"""AWS Glue as moto plays it, for tests: in an environment of its own, made when it is first asked for.

moto and boto3 are not among what the tests are otherwise installed with; boto3 is put at the end of this
process's module path, so that nothing else is replaced.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import venv
from pathlib import Path
from types import TracebackType
from typing import Self

from slotlake.decoder.errors import SetupError
from slotlake.infra.launch.folders import home
from slotlake.infra.local.process import end_group, free_port, start

_PACKAGES = ("moto[glue,server]==5.2.5", "boto3==1.44.5")
_SCRIPT = Path(__file__).with_name("glue_moto.py")
_START_SECONDS_MAX = 60.0
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


def glue_environment() -> Path:
    """Return the folder of an environment that has moto and boto3; boto3 can be imported here afterwards."""
    folder = home() / f"moto-{_PACKAGES[0].rpartition('=')[2]}"
    if not (folder / "made").exists():
        venv.create(folder, clear=True, with_pip=True)
        command = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *_PACKAGES]
        subprocess.run(command, check=True, capture_output=True, env=_environment())
        (folder / "made").touch()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = str(folder / "lib" / version / "site-packages")
    if packages not in sys.path:
        sys.path.append(packages)
    return folder


def _environment() -> dict[str, str]:
    """Without this process's packages."""
    return {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}


class LocalGlue:
    """One server; a context manager that starts and ends it. ``endpoint``: its address."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.endpoint = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start the server.

        Raises:
            SetupError: it does not answer in time.
        """
        python = glue_environment() / "bin" / "python"
        port = free_port()
        self._process = start(
            [str(python), str(_SCRIPT), str(port)],
            self.folder / "moto.log",
            environment=_environment(),
            at_parents_end=signal.SIGKILL,
        )
        self.endpoint = f"http://127.0.0.1:{port}"
        self._await(port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the server."""
        if self._process is not None:
            end_group(self._process.pid)

    def _await(self, port: int) -> None:
        give_up = time.monotonic() + _START_SECONDS_MAX
        while time.monotonic() < give_up and self._process is not None and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        log = self.folder / "moto.log"
        raise SetupError(
            "moto did not start",
            where=" / ".join(log.read_text(errors="replace").splitlines()[-3:]),
            way_out="see its log, and that its port is free",
        )
