"""Programs that check what infra/deploy has, for tests of the long form: Helm and compose, built by Go.

Where Go is not here, the test is skipped and says why.
"""

from __future__ import annotations

import os
import subprocess
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from slotlake.infra.launch.folders import home
from tests.conftest import ROOT
from tests.go_programs import go_program
from tests.kubernetes.server import ApiServer

DEPLOY: Final = ROOT / "infra" / "deploy"
LONG: Final = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
needs_long: Final = pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
HELM: Final = ("helm", "helm.sh/helm/v3/cmd/helm", "v3.19.0")
COMPOSE: Final = ("cmd", "github.com/compose-spec/compose-go/v2/cmd", "v2.16.2")
NAMESPACE: Final = "data"
SCHEMAS: Final = "kubernetes-validate==1.37.0"


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
    return go_program(*program)


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
