"""Installs the packages of the environment: with uv if it is there, else with pip; both check hashes.

The lock file has the SHA-256 of every file that is installed.  All packages are wheels except Spark, which
only exists as source. The locked setuptools is installed first and builds Spark, so that no build
environment fetches another version.
"""

from __future__ import annotations

import importlib.util
import os
import re
import select
import shutil
import subprocess
import sys
import time
import venv
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from slotlake.infra.launch.certificates import system_bundle
from slotlake.infra.launch.errors import LaunchError, say

SOURCE_ONLY = "pyspark"
_BUILDER = "setuptools"
_PROGRESS_SECONDS = 3.0
_SILENCE_SECONDS = 10.0
_OUTPUT_LINES_MAX = 25


def make(folder: Path, lock_file: str, lock: int) -> None:
    """Make a virtual environment in ``folder`` and install the locked packages.

    Args:
        folder: does not exist yet.
        lock_file: its text, in pip's format with hashes.
        lock: a file descriptor that installers inherit and so keep locked as long as they run.

    Raises:
        LaunchError: there is no installer, or it failed.
    """
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    builder = folder / "builder-requirements.txt"
    builder.write_text(locked_lines(lock_file, _BUILDER))
    requirements = folder / "requirements.txt"
    requirements.write_text(lock_file)
    total = len(re.findall(r"^[A-Za-z0-9]", lock_file, re.MULTILINE))
    for name, command, variables in _installers(folder, lock):
        say(f"installing {total} packages with {name}")
        failure = _run(command(builder), lock, variables) or _run(
            command(requirements), lock, variables, total=total
        )
        if failure is None:
            return
        say(f"{name} failed:\n{failure}")
    raise LaunchError(
        "the packages could not be installed",
        where=str(folder),
        way_out="check the network; behind a proxy set HTTPS_PROXY, with a mirror PIP_INDEX_URL or "
        "UV_DEFAULT_INDEX, behind a company's certificate authority SSL_CERT_FILE and PIP_CERT; "
        "then run the same command again",
    )


def locked_lines(lock_file: str, package: str) -> str:
    """Return the lines of one package in a lock file, with its hashes.

    Raises:
        LaunchError: the lock file does not have the package.
    """
    match = re.search(rf"^{re.escape(package)}==.*?(?=^[a-zA-Z0-9]|\Z)", lock_file, re.DOTALL | re.MULTILINE)
    if match is None:
        raise LaunchError(f"the lock file does not name {package}")
    return match[0]


class _Installer:
    """Builds the command line that installs a requirements file."""

    def __init__(self, words: list[str], options: list[str]) -> None:
        self.words, self.options = words, options

    def __call__(self, requirements: Path) -> list[str]:
        return [*self.words, "--no-deps", "--require-hashes", *self.options, "-r", str(requirements)]


def _installers(folder: Path, lock: int) -> Iterator[tuple[str, _Installer, dict[str, str]]]:
    """Yield the installers to try, best first: name, command builder, environment variables."""
    python = str(folder / "bin" / "python")
    wheels = ["--only-binary", ":all:", "--no-binary", SOURCE_ONLY, "--no-build-isolation"]
    uv = shutil.which("uv")
    if uv and _works([uv, "--version"]):
        command = [uv, "pip", "install", "--python", python]
        yield "uv", _Installer(command, [*wheels, "--compile-bytecode"]), {"UV_SYSTEM_CERTS": "true"}
    pip = _pip(python, lock)
    if pip:
        options = [*wheels, "--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
        yield "pip", _Installer(pip, options), {}
        bundle = system_bundle()
        if bundle:  # an older pip knows only the authorities that it brought along
            yield "pip and the system's certificates", _Installer(pip, options), {"PIP_CERT": bundle}
    elif not uv:
        raise LaunchError(
            "this Python cannot install packages: it has no ensurepip and no pip, and this machine has no uv",
            where=sys.executable,
            way_out="install what is missing (Debian, Ubuntu: apt install python3-venv), or uv, or set "
            "SLOTLAKE_PYTHON to a Python that has pip",
        )


def _pip(python: str, lock: int) -> list[str] | None:
    """Return a pip for the environment: its own from ensurepip, or this Python's with ``--python``."""
    own = [python, "-I", "-m", "pip", "install"]
    if importlib.util.find_spec("ensurepip") and not _run([python, "-I", "-m", "ensurepip"], lock, {}):
        return own
    foreign = [sys.executable, "-I", "-m", "pip", "--python", python]
    return [*foreign, "install"] if _works([*foreign, "--version"]) else None


def _works(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False, env=_variables()).returncode == 0
    except OSError:
        return False


def _run(command: list[str], lock: int, variables: dict[str, str], *, total: int = 0) -> str | None:
    """Run an installer and show its progress; return None on success, else the end of its output."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_variables() | variables,
        pass_fds=(lock,),
    ) as process:
        assert process.stdout is not None
        last_lines = _follow(_lines(process.stdout.fileno()), total)
    return None if process.returncode == 0 else "\n".join(f"    {line}" for line in last_lines)


def _lines(descriptor: int) -> Iterator[str]:
    """Yield the output line by line; yield an empty line when there was no output for a while."""
    pending = b""
    while True:
        readable, _, _ = select.select([descriptor], [], [], _SILENCE_SECONDS)
        if not readable:
            yield ""
            continue
        arrived = os.read(descriptor, 65536)
        if not arrived:
            return
        *whole, pending = (pending + arrived).split(b"\n")
        yield from (line.decode(errors="replace") + "\n" for line in whole)


def _follow(lines: Iterable[str], total: int) -> deque[str]:
    """Show the installer's steps, and a sign of life when there is no output; return the last lines."""
    last_lines: deque[str] = deque(maxlen=_OUTPUT_LINES_MAX)
    fetched, started, shown_at = 0, time.monotonic(), time.monotonic()
    for line in lines:
        last_lines.extend([line.rstrip()] if line else [])
        step = re.match(r"\s*(Collecting|Building|Installing|Prepared|Resolved|Installed|Bytecode)\b", line)
        collecting = bool(step and step[1] == "Collecting")
        fetched += collecting
        now = time.monotonic()
        if not total or (line and not step) or (collecting and now - shown_at < _PROGRESS_SECONDS):
            continue
        shown_at = now
        if collecting:
            say(f"  fetching {fetched} of {total}: {line.split()[1].split('==')[0]}")
        else:
            say("  " + (line.strip()[:60] if line else f"still working after {now - started:.0f} s"))
    return last_lines


def _variables() -> dict[str, str]:
    """Return the caller's variables (mirrors, proxies, certificates) without those of other environments."""
    unwanted = {
        "PYTHONPATH",
        "PYTHONHOME",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_ROOT",
        "VIRTUAL_ENV",
        "PYTHONDONTWRITEBYTECODE",
    }
    return {name: value for name, value in os.environ.items() if name not in unwanted} | {"PIP_USER": "0"}
