"""The Python environment: one folder per lock file and Python version, made once, whole or not used.

``<home>/env-<key>/`` where the key is a digest of ``infra/requirements.txt`` and the Python that runs it.
Invariant: an environment is used only when its file ``.ready`` exists, which is written last; one without
it (an interrupted install) is deleted and made again.  ``<home>/env-<key>.lock`` is held while it is made, by
the installer too, so that a launcher killed in the middle lets nobody in beside its installer.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slotlake.infra.launch.errors import LaunchError, say
from slotlake.infra.launch.folders import CHECKOUT

REQUIREMENTS = CHECKOUT / "infra" / "requirements.txt"
_BYTES_NEEDED = 3_500_000_000  # 1.9 GB installed, with what the installer keeps beside it meanwhile


class Environment:
    """A virtual environment with all locked packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def marker(self) -> Path:
        """The file that says it is whole."""
        return self.folder / ".ready"

    def ready(self) -> bool:
        """True when it is whole and the Python it was made from is still there."""
        return self.marker.exists() and os.access(self.python, os.X_OK)


def ready_environment(home: Path) -> Environment:
    """Find the environment for this checkout and Python, or make it.

    Raises:
        LaunchError: it cannot be made; says why and what to do.
    """
    environment = Environment(home / f"env-{environment_key()}")
    if not environment.ready():
        with _lock(environment.folder.with_suffix(".lock")) as descriptor:
            if not environment.ready():  # the one we waited for may have made it
                _make(environment, descriptor)
    return environment


def environment_key() -> str:
    """Twelve hexadecimal digits: the lock file's content, the Python version and the machine."""
    machine = f"{sys.implementation.cache_tag} {sys.platform} {os.uname().machine}"
    return hashlib.sha256(machine.encode() + b"\0" + REQUIREMENTS.read_bytes()).hexdigest()[:12]


@contextmanager
def _lock(path: Path) -> Iterator[int]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another slotlake that is making the environment")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _make(environment: Environment, lock: int) -> None:
    import shutil  # not needed, and so not loaded, once the environment is there

    from slotlake.infra.launch import install

    if environment.folder.exists():
        say("an earlier set-up was interrupted; starting over")
        shutil.rmtree(environment.folder)
    _check_room(environment.folder.parent)
    say(f"making the environment for Python {sys.version.split()[0]}, once: {environment.folder}")
    install.make(environment.folder, REQUIREMENTS, lock)
    environment.marker.touch()
    say("the environment is ready")


def _check_room(folder: Path) -> None:
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if free < _BYTES_NEEDED:
        raise LaunchError(
            "too little room for the environment",
            where=f"{folder}: {free / 1e9:.1f} GB free, {_BYTES_NEEDED / 1e9:.1f} GB needed",
            way_out="free some, or set SLOTLAKE_HOME to a folder with more room",
        )
