"""A lake of its own for each test, and a workbench on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotlake.spark.lake import LakeSettings
from tests.spark.lake_lab import Lab
from tests.storage import lake_in


@pytest.fixture
def lake(tmp_path: Path) -> LakeSettings:
    """An empty lake with a SQLite catalog."""
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
    return lake_in(tmp_path, LakeSettings("lake", uri, warehouse, "shop"))


@pytest.fixture
def lab(session: Any, lake: LakeSettings) -> Lab:
    """The lake with a Spark session on it."""
    return Lab.on(session, lake)


@pytest.fixture
def connect_remote(connect: str) -> str:
    """The address of the shared warm Spark Connect server."""
    return connect
