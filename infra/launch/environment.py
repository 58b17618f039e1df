"""The Python environment: one folder per lock file and Python version, made once.

The folder is ``<home>/env-<key>/``; the key is a digest of the lock file (``infra/requirements.txt``, or for
``check decoder`` a part of it) and of the Python.
Invariant: an environment is used only when its file ``.ready`` exists, which is written last. One without
this file (an interrupted installation) is deleted and made again.  The launcher and the installer lock
``<home>/env-<key>.lock`` meanwhile, so a second launcher waits also if the first one was killed.
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
_BYTES_NEEDED = 3_500_000_000  # 1.9 GB installed, and the installer's temporary files


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
        """The file that says that it is complete."""
        return self.folder / ".ready"

    def ready(self) -> bool:
        """Return whether it is complete and its Python still exists."""
        return self.marker.exists() and os.access(self.python, os.X_OK)


def ready_environment(home: Path, lock_file: str = "") -> Environment:
    """Return the environment for this checkout and Python; make it if it is missing.

    Args:
        lock_file: what is installed, if that is not all of the checkout's lock file.

    Raises:
        LaunchError: it cannot be made; the message says why and what to do.
    """
    lock_file = lock_file or REQUIREMENTS.read_text()
    environment = Environment(home / f"env-{environment_key(lock_file)}")
    if not environment.ready():
        with _lock(environment.folder.with_suffix(".lock")) as descriptor:
            if not environment.ready():  # another launcher may have made it meanwhile
                _make(environment, lock_file, descriptor)
    return environment


def environment_key(lock_file: str) -> str:
    """Return twelve hexadecimal digits: a digest of lock file, Python version and machine."""
    machine = f"{sys.implementation.cache_tag} {sys.platform} {os.uname().machine}"
    return hashlib.sha256(machine.encode() + b"\0" + lock_file.encode()).hexdigest()[:12]


@contextmanager
def _lock(path: Path) -> Iterator[int]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another slotlake, which makes the environment")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _make(environment: Environment, lock_file: str, lock: int) -> None:
    import shutil  # imported here, because an existing environment does not need it

    from slotlake.infra.launch import install

    if environment.folder.exists():
        say("an earlier installation was interrupted; starting again")
        shutil.rmtree(environment.folder)
    _check_room(environment.folder.parent)
    say(f"making the environment for Python {sys.version.split()[0]}, once: {environment.folder}")
    install.make(environment.folder, lock_file, lock)
    environment.marker.touch()
    say("the environment is ready")


def _check_room(folder: Path) -> None:
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < _BYTES_NEEDED:
        raise LaunchError(
            "the disk has too little room for the environment",
            where=f"{folder}: {free / 1e9:.1f} GB free, {_BYTES_NEEDED / 1e9:.1f} GB needed",
            way_out="free some room, or set SLOTLAKE_HOME to a folder with more room",
        )
