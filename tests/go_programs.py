"""Programs that Go builds once (`bench.go_programs`), for tests of the long form.

Without Go a test is skipped; where the build fails it fails, because a test that is skipped for weeks shows
nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from slotlake.bench import go_programs
from slotlake.bench.go_programs import EMPTY_MODULE, run_go

__all__ = ["EMPTY_MODULE", "go_program", "run_go"]


def go_program(name: str, package: str, version: str, source: Path | None = None) -> Path:
    """As `bench.go_programs.go_program`; skip the test where there is no Go."""
    if shutil.which("go") is None:
        pytest.skip(f"no Go is here to build {package}")
    return go_programs.go_program(name, package, version, source)
