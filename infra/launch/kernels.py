"""Machine code of the compiled loops, made when the environment is: no batch waits a minute for a compiler.

Invariant: ``<home>/numba/.compiled-<key>`` exists when all loops are there for these sources in this
environment.  The key is of contents, so every clone of the same sources finds them.  Whatever goes wrong here
costs time only: what is missing is compiled when it is first called.
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
    """Compile what is missing for these sources; nothing where the caller chose a cache folder."""
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
    say("compiling the decoder's loops, once for this version: about a minute")
    running = [
        subprocess.Popen(
            [str(python), "-P", "-m", "slotlake.infra.kernels", str(part), str(_PROCESSES)],
            cwd=CHECKOUT,
            env=dict(variables),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for part in range(_PROCESSES)
    ]
    try:
        said = [process.communicate()[1] for process in running]
    except KeyboardInterrupt:
        for process in running:
            process.kill()
        raise
    failed = [text for process, text in zip(running, said, strict=True) if process.returncode]
    if failed:
        last = (failed[0].strip().splitlines() or ["no reason given"])[-1]
        say(f"they are compiled when they are first needed, because this failed: {last}")
    return not failed


def _key(python: Path) -> str:
    """Sixteen hexadecimal digits of the environment and of all sources that could be compiled."""
    total = hashlib.sha256(str(python).encode())
    for place in (CHECKOUT / name for name in _SOURCES):
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            if path.is_file():
                total.update(path.relative_to(CHECKOUT).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]
