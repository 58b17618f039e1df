"""A lake of its own for each test, batches written by hand, and ways to see what came out."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from lake_lab import Lab  # noqa: E402  the folder of tests is no package

from spark.lake import LakeSettings  # noqa: E402

_numbers = itertools.count(1)


@pytest.fixture
def lake(tmp_path: Path) -> LakeSettings:
    """An empty lake with a SQLite catalog."""
    return LakeSettings("lake", f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse", "shop")


@pytest.fixture
def lab(session: Any, lake: LakeSettings) -> Lab:
    """The lake with a Spark session on it."""
    return Lab.on(session, lake)


@pytest.fixture
def lab_on(session: Any) -> Iterator[Callable[[LakeSettings], Lab]]:
    """A lab for a lake that the test makes."""
    yield lambda lake: Lab.on(session, lake)
