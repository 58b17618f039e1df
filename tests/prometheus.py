"""Prometheus' own parser of its text format, in a folder of its own: no dependency of slotlake."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest

from slotlake.infra.launch.folders import home

_PACKAGE = "prometheus-client==0.23.1"


def families(text: str) -> dict[str, Any]:
    """Return the families of a text by name; skips the test where the parser cannot be had."""
    folder = home() / _PACKAGE.replace("==", "-")
    if not (folder / "whole").exists():
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            str(folder),
            _PACKAGE,
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        if done.returncode:
            pytest.skip(f"{_PACKAGE} cannot be installed here: {done.stderr.strip().splitlines()[-1:]}")
        (folder / "whole").touch()
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    parser: Any = importlib.import_module("prometheus_client.parser")
    listed = list(parser.text_string_to_metric_families(text))
    assert len({family.name for family in listed}) == len(listed)  # none is there twice
    return {family.name: family for family in listed}
