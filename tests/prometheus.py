"""Parsers of Prometheus' formats, each in a folder of its own: they are no dependencies of slotlake."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest

from slotlake.infra.launch.folders import home

_TEXT = ("prometheus-client==0.23.1", "prometheus_client.parser")
_PROMQL = ("promql-parser==0.12.0", "promql_parser")


def families(text: str) -> dict[str, Any]:
    """Return the families of a text by name; skips the test where the parser cannot be had."""
    listed = list(_module(*_TEXT).text_string_to_metric_families(text))
    assert len({family.name for family in listed}) == len(listed)  # none is there twice
    return {family.name: family for family in listed}


def require_query(expression: str) -> None:
    """Parse a query; skips the test where the parser cannot be had.

    Raises:
        ValueError: it is no PromQL.
    """
    _module(*_PROMQL).parse(expression)


def _module(package: str, name: str) -> Any:
    folder = home() / package.replace("==", "-")
    if not (folder / "whole").exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
        done = subprocess.run([*command, package], check=False, capture_output=True, text=True, timeout=120)
        if done.returncode:
            pytest.skip(f"{package} cannot be installed here: {done.stderr.strip().splitlines()[-1:]}")
        (folder / "whole").touch()
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return importlib.import_module(name)
