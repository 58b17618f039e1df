"""Compiles the numba kernels when the environment is made, so that no batch waits a minute for the compiler.

At the same time it has Spark's jars fetched and Java's archive of classes made (`infra.local.runtime`).

Invariant: ``<home>/numba/.compiled-<key>`` exists when all kernels are compiled for these sources in this
environment.  The key depends on the content of the sources, so every clone of them uses the same code.  A
failure here only costs time: a missing kernel is compiled at its first call, and Spark starts without an
archive.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path

from slotlake.infra.launch.errors import say
from slotlake.infra.launch.folders import CHECKOUT

_SOURCES = ("decoder", "spark", "expectations", "infra/kernels.py", "infra/kernels.json")
_PROCESSES = 2


def provide(python: Path, variables: Mapping[str, str], cache: Path) -> None:
    """Compile the kernels of these sources, unless that is done or the caller chose another cache folder.

    Args:
        cache: slotlake's cache folder.
    """
    if variables.get("NUMBA_CACHE_DIR") != str(cache / "numba"):
        return
    marker = cache / "numba" / f".compiled-{_key(python)}"
    if marker.exists():
        return
    marker.parent.mkdir(parents=True, exist_ok=True)
    with (cache / "kernels.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not marker.exists() and _compile(python, variables):
            marker.touch()


def _compile(python: Path, variables: Mapping[str, str]) -> bool:
    say("compiling the decoder's kernels and preparing Spark, once for this version: this takes two minutes")
    modules = [["slotlake.infra.kernels", str(part), str(_PROCESSES)] for part in range(_PROCESSES)]
    running = [
        subprocess.Popen(
            [str(python), "-P", "-m", *module],
            cwd=CHECKOUT,
            env=dict(variables),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for module in (*modules, ["slotlake.infra.local.runtime"])
    ]
    try:
        errors = [process.communicate()[1] for process in running]
    except KeyboardInterrupt:
        for process in running:
            process.kill()
        raise
    reasons = [
        _reason(text) if process.returncode else "" for process, text in zip(running, errors, strict=True)
    ]
    *of_kernels, of_spark = reasons
    if of_spark:
        say(f"Spark will start more slowly, because preparing it failed: {of_spark}")
    if failed := next(filter(None, of_kernels), ""):
        say(f"the kernels will be compiled at their first use, because this failed: {failed}")
    return not failed


def _reason(errors: str) -> str:
    """Return the last lines: an error says what, where, and what to do."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    said = lines[-1:] if "Traceback" in errors else lines[-3:]
    return "; ".join(said) or "no reason given"


def _key(python: Path) -> str:
    """Return sixteen hexadecimal digits: a digest of the environment and of all sources with kernels."""
    total = hashlib.sha256(str(python).encode())
    for place in (CHECKOUT / name for name in _SOURCES):
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            if path.is_file():
                total.update(path.relative_to(CHECKOUT).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]
