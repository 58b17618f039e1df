"""Programs that check what infra/deploy has, for tests of the long form: Helm and compose, built by Go.

Each is built once, by its module's name and version (Go checks the sums), into the cache folder.  Where Go,
or its proxy, is not here, the test is skipped and says why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from slotlake.infra.launch.folders import home
from tests.conftest import ROOT
from tests.kubernetes.server import ApiServer

DEPLOY: Final = ROOT / "infra" / "deploy"
LONG: Final = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
needs_long: Final = pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
HELM: Final = ("helm", "helm.sh/helm/v3/cmd/helm", "v3.19.0")
COMPOSE: Final = ("cmd", "github.com/compose-spec/compose-go/v2/cmd", "v2.16.2")
NAMESPACE: Final = "data"
SCHEMAS: Final = "kubernetes-validate==1.37.0"
_BUILD_SECONDS_MAX: Final = 1500


@contextmanager
def restricted_kubernetes(folder: Path) -> Iterator[ApiServer]:
    """A Kubernetes API server with the namespace `NAMESPACE`, whose pods must have the profile `restricted`.

    Args:
        folder: its files.
    """
    with ApiServer(folder) as server:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        server.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})
        accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
        server.call("POST", accounts, {"metadata": {"name": "default"}})
        yield server


def built(program: tuple[str, str, str]) -> Path:
    """Return the path of a program in Go.

    Args:
        program: the name of its file, its package, and the version of its module.
    """
    name, package, version = program
    folder = home() / "go" / f"{package.replace('/', '-')}-{version}"
    if not (folder / name).is_file():
        if shutil.which("go") is None:
            pytest.skip(f"no Go is here to build {package}")
        variables = {**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"}
        try:
            command = ("go", "install", f"{package}@{version}")
            run(*command, environment=variables, seconds_max=_BUILD_SECONDS_MAX)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"{package} cannot be built here: {str(error)[-300:]}")
    return folder / name


def schemas() -> Path:
    """Return a Python with Kubernetes' schemas, in an environment of its own."""
    folder = home() / SCHEMAS.replace("==", "-")
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        venv.create(folder, clear=True, with_pip=True)
        variables = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
        try:
            run(python, "-m", "pip", "install", "-q", SCHEMAS, environment=variables)
        except AssertionError as error:
            pytest.skip(f"{SCHEMAS} cannot be installed: {str(error)[-300:]}")
        (folder / "made").touch()
    return python


def run(
    *command: str | Path,
    cwd: Path | None = None,
    environment: dict[str, str] | None = None,
    seconds_max: float = 300.0,
) -> str:
    """Run a program that must succeed; return what it printed.

    Args:
        command: the program and its arguments.
        cwd: its folder.
        environment: its variables; the caller's when not given.
        seconds_max: how long it may take.
    """
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds_max,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout
