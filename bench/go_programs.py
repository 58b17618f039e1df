"""Programs that Go builds once, by name and version, into the cache folder.

Each is built in a module of its own that requires it: `go install` refuses a program whose module replaces
others (promtool's does).  Go checks the sums.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from slotlake.decoder.errors import SetupError
from slotlake.infra.launch.folders import home

_BUILD_SECONDS_MAX: Final = 1500
EMPTY_MODULE: Final = "module slotlake/tests\n\ngo 1.23\n"


def go_program(name: str, package: str, version: str, source: Path | None = None) -> Path:
    """Return the path of a program in Go.

    Args:
        name: what its file is called, within a folder of the package and its version.
        package: the package that is built; with `source`, the package that the source needs.
        version: of the package's module, for example `v1.0.12`.
        source: the program's own text, one file; without it, `package` is the program.

    Raises:
        SetupError: no Go is here, or the build fails.
    """
    digest = "" if source is None else "-" + hashlib.sha256(source.read_bytes()).hexdigest()[:8]
    folder = home() / "go" / f"{package.replace('/', '-')}-{version}{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two at once: the second waits and has it
        if not (folder / name).is_file():
            module = folder / "module"
            shutil.rmtree(module, ignore_errors=True)
            module.mkdir()
            (module / "go.mod").write_text(EMPTY_MODULE)
            if source is not None:
                shutil.copy(source, module)
            run_go(module, "get", f"{package}@{version}")
            run_go(module, "build", "-o", f"../{name}", package if source is None else ".")
    return folder / name


def run_go(folder: Path, *words: str) -> str:
    """Run a command of Go, with the Go of this machine; return what it printed.

    Args:
        folder: where `go.mod` is; the command runs there.
        words: the command and its arguments, without `go`.

    Raises:
        SetupError: no Go is here, or the command fails.
    """
    if shutil.which("go") is None:
        raise SetupError(f"no Go is here for `go {' '.join(words)}`", where="PATH", way_out="install Go")
    variables = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-p=2", "GOTOOLCHAIN": "local"}
    done = subprocess.run(
        ["go", *words],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=_BUILD_SECONDS_MAX,
    )
    if done.returncode:
        raise SetupError(
            f"`go {' '.join(words)}` fails", where=str(folder), way_out=done.stderr.strip()[-2000:]
        )
    return done.stdout
