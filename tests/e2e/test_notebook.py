"""docs/notebook.py runs on a lake, and all its ways to read show the same rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file
from tests.sources import ROOT

pytestmark = pytest.mark.timeout(300)


def test_the_notebook(database: Database, session: Any, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, total numeric(8,2)); INSERT INTO orders VALUES (1, 2)"
    )
    file = pipeline_file(tmp_path, database, ["orders"])
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        database.execute("INSERT INTO orders VALUES (2, 3), (3, 4); DELETE FROM orders WHERE id = 1")
        pipeline.sync()
        lsn = pipeline.status().last_consistent_lsn
    done = subprocess.run(
        [sys.executable, "-P", str(ROOT / "docs" / "notebook.py"), str(file), "public.orders"],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert f"public.orders at {lsn}: 2 rows" in done.stdout
    assert "2 rows in batches, 2 in the data frame" in done.stdout
    assert "total: decimal128(8, 2)" in done.stdout
