"""A Chromium that runs without a screen: the machine's own, else Debian's, unpacked into the cache folder.

No root is needed: apt resolves and fetches the packages with folders of its own (signatures are checked as
always), against the packages that the machine has, and ``dpkg-deb`` unpacks what is missing.  The archives go
once they are unpacked.  Where there is no apt, or no Debian behind it, the error says so: whoever wants a
browser then, a test, says why he goes without.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from slotlake.decoder.errors import SetupError
from slotlake.infra.launch.folders import home

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_STATUS = Path("/var/lib/dpkg/status")
_SECONDS_MAX = 200  # for each command; a test that waits longer than for two is ended
_WAY_OUT = "install Debian's package chromium, or set PATH so that a chromium is found"


@dataclass(frozen=True)
class Chromium:
    """A Chromium that can be started.

    Attributes:
        environment: variables that it needs beside the caller's.
    """

    program: Path
    environment: dict[str, str] = field(default_factory=dict)

    def version(self) -> str:
        """What it says of itself; it has started then.

        Raises:
            SetupError: it does not start.
        """
        command = [str(self.program), "--version", "--no-sandbox", "--headless"]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                env={**os.environ, **self.environment},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SetupError(
                f"Chromium does not start: {error}", where=str(self.program), way_out=_WAY_OUT
            ) from None
        if done.returncode != 0:
            end = done.stderr.strip()[-300:]
            raise SetupError(f"Chromium does not start: {end}", where=str(self.program), way_out=_WAY_OUT)
        return done.stdout.strip()


def find_chromium(*, fetch: bool = True) -> Chromium:
    """The machine's, else the one in the cache folder, fetched first if need be.

    Args:
        fetch: False: only one that is here.

    Raises:
        SetupError: there is none and none can be fetched; it says why.
    """
    for name in _PROGRAMS:
        found = shutil.which(name)
        if found is not None:
            return Chromium(Path(found))
    folder = home() / "chromium"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "fetch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two at once: the second waits and finds it
        if not (folder / "root").exists():
            if not fetch:
                raise SetupError("there is no Chromium here", where=str(folder), way_out=_WAY_OUT)
            _fetch(folder)
    return _unpacked(folder / "root")


def _unpacked(root: Path) -> Chromium:
    patterns = ("usr/lib/*-linux-gnu*", "lib/*-linux-gnu*", "usr/lib/*-linux-gnu*/pulseaudio")
    libraries = [str(path) for pattern in patterns for path in sorted(root.glob(pattern))]
    environment = {"LD_LIBRARY_PATH": ":".join(libraries), "CHROME_WRAPPER": "slotlake"}
    fonts = root / "etc" / "fonts" / "slotlake.conf"
    if fonts.exists():
        environment["FONTCONFIG_FILE"] = str(fonts)
    return Chromium(root / "usr" / "lib" / "chromium" / "chromium", environment)


def _fetch(folder: Path) -> None:
    tools = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    if tools or not _STATUS.exists():
        raise SetupError(
            f"there is no Chromium, and without {tools[0] if tools else _STATUS} none can be fetched",
            where=f"PATH: {', '.join(_PROGRAMS)}",
            way_out=_WAY_OUT,
        )
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    for name in ("state/lists/partial", "cache/archives/partial", "root"):
        (work / name).mkdir(parents=True)
    (work / "status").write_text(_without_chromium(_STATUS.read_text(errors="replace")))
    _apt(work, "update")
    _apt(work, "install", "--no-install-recommends", "--download-only", "chromium")
    archives = sorted((work / "cache" / "archives").glob("*.deb"))
    for archive in archives:
        _run(["dpkg-deb", "-x", str(archive), str(work / "root")])
    if not (work / "root" / "usr" / "lib" / "chromium" / "chromium").exists():
        raise SetupError("apt's package chromium holds no Chromium here", where=str(folder), way_out=_WAY_OUT)
    _write_fonts(folder / "root", work / "root")
    (work / "root").rename(folder / "root")
    shutil.rmtree(work, ignore_errors=True)


def _without_chromium(status: str) -> str:
    """The packages of the machine but Chromium's: those hidden from PATH are to be fetched too."""
    packages = (
        part for part in status.split("\n\n") if not re.search(r"^Package: chromium", part, re.MULTILINE)
    )
    return "\n\n".join(packages)


def _apt(work: Path, *command: str) -> None:
    options = {
        "Dir::State": str(work / "state"),
        "Dir::Cache": str(work / "cache"),
        "Dir::State::status": str(work / "status"),
        "Debug::NoLocking": "1",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Acquire::Retries": "1",
        "Acquire::http::Timeout": "20",
        "Acquire::https::Timeout": "20",
    }
    given = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    _run(["apt-get", "-q", "-y", *given, *command])


def _run(command: list[str]) -> None:
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"{command[0]} failed: {error}", where=command[0], way_out=_WAY_OUT) from None
    if done.returncode != 0:
        end = (done.stderr or done.stdout).strip()[-300:]
        raise SetupError(
            f"Chromium could not be fetched: {command[0]} says: {end}",
            where=" ".join(part for part in command if "=" not in part and part != "-o"),
            way_out=_WAY_OUT,
        )


def _write_fonts(final: Path, root: Path) -> None:
    """Where the fonts are: the packages' own file names folders of the machine."""
    folders = "".join(
        f"<dir>{path}</dir>" for path in (final / "usr" / "share" / "fonts", "/usr/share/fonts")
    )
    cache = f"<cachedir>{final / 'fontcache'}</cachedir>"
    file = root / "etc" / "fonts" / "slotlake.conf"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'<?xml version="1.0"?><fontconfig>{folders}{cache}</fontconfig>\n')
