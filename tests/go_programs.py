"""Programs that Go builds once, by name and version, into the cache folder: for tests of the long form.

Each is built in a module of its own that requires it: `go install` refuses a program whose module replaces
others (promtool's does).  Go checks the sums.  Without Go a test is skipped; where the build fails it fails,
because a test that is skipped for weeks shows nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from slotlake.infra.launch.folders import home

_BUILD_SECONDS_MAX: Final = 1500
EMPTY_MODULE: Final = "module slotlake/tests\n\ngo 1.23\n"


def go_program(name: str, package: str, version: str, source: Path | None = None) -> Path:
    """Return the path of a program in Go.

    Args:
        name: of its file.
        package: the package that is built; with `source`, the package that the source needs.
        version: of the package's module.
        source: the program's own text, one file; without it, `package` is the program.
    """
    digest = "" if source is None else "-" + hashlib.sha256(source.read_bytes()).hexdigest()[:8]
    folder = home() / "go" / f"{package.replace('/', '-')}-{version}{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two tests at once: the second waits and has it
        if not (folder / name).is_file():
            if shutil.which("go") is None:
                pytest.skip(f"no Go is here to build {package}")
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
    """Run a command of Go, with the Go of this machine; return what it printed.  The test fails if it fails.

    Args:
        folder: the folder of the module.
        words: the command and its arguments.
    """
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
        pytest.fail(f"`go {' '.join(words)}` fails: {done.stderr.strip()[-2000:]}")
    return done.stdout
