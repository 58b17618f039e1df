"""The dbt project in docs/dbt runs on a lake; its incremental models read only what is new.

dbt and DuckDB are installed into an environment of their own: they are no dependencies of slotlake.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from slotlake import Pipeline
from slotlake.infra.launch.folders import home
from slotlake.spark.catalog import view_spaces
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file
from tests.sources import ROOT
from tests.storage import needs_a_folder

pytestmark = [
    pytest.mark.timeout(1200),
    needs_a_folder,
    pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it"),
]
# Newer ones of dbt-core have a part that is fetched from elsewhere when it is installed.
_ENGINE = ("duckdb", "duckdb-extension-avro", "duckdb-extension-iceberg")
PACKAGES = ["dbt-core>=1.9,<1.10", "dbt-duckdb>=1.9,<1.10", "pyiceberg[sql-sqlite]==0.12.0"]
PACKAGES += [f"{name}=={duckdb.__version__}" for name in _ENGINE]
SETUP = """
CREATE TABLE customers (id int PRIMARY KEY, name text, spent numeric(12,2) NOT NULL DEFAULT 0);
CREATE TABLE orders (id int PRIMARY KEY, customer int, total numeric);
INSERT INTO customers SELECT g, 'c' || g, 20 FROM generate_series(1, 5) g;
INSERT INTO orders SELECT g, 1 + g % 5, 10 FROM generate_series(1, 10) g
"""
STEPS = [
    "INSERT INTO orders VALUES (11, 1, 5); UPDATE customers SET spent = spent + 5 WHERE id = 1",
    "DELETE FROM orders WHERE id = 3; UPDATE customers SET spent = spent - 10 WHERE id = 4",
    "UPDATE orders SET id = 40, total = 11 WHERE id = 4; UPDATE customers SET spent = spent + 1 WHERE id = 5",
    "TRUNCATE orders; INSERT INTO orders VALUES (1, 1, 7); UPDATE customers SET spent = 7 * (id = 1)::int",
]
BANK = """
CREATE TABLE pgbench_branches (bid int PRIMARY KEY, bbalance int, filler char(88));
CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));
INSERT INTO pgbench_branches VALUES (1, 7), (2, -3), (3, 0);
INSERT INTO pgbench_history (bid, delta) VALUES (1, 10), (1, -3), (2, -3)
"""


@pytest.fixture(scope="module")
def dbt() -> Path:
    """The program, in an environment that is made once; skips where packages cannot be had."""
    folder = home() / "dbt-1.9"
    program = folder / "bin" / "dbt"
    if not (folder / "whole").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=300)
        install = [str(folder / "bin" / "pip"), "install", "-q", *PACKAGES]
        done = subprocess.run(install, check=False, capture_output=True, text=True, timeout=900)
        if done.returncode:
            pytest.skip(f"dbt cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
        (folder / "whole").touch()
    return program


def test_models_over_pinned_views(
    database: Database, session: Any, tmp_path: Path, dbt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_spaces, "SECONDS_APART", 0.0)
    database.execute(SETUP)
    file = pipeline_file(
        tmp_path,
        database,
        ["orders", "customers"],
        extra="mode: append\ntypes: {numerics: 'decimal(38,10)'}\n",
    )
    file.write_text(file.read_text().replace("lake:\n", "lake:\n  views: true\n", 1))
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        _build(dbt, pipeline, tmp_path)
        written = [_compare(database, tmp_path, pipeline.position())]
        for step in STEPS:
            database.execute(step)
            pipeline.sync()
            _build(dbt, pipeline, tmp_path)
            written.append(_compare(database, tmp_path, pipeline.position()))
    assert written == [10, 1, 0, 1, 1], "a run writes only what changed since"


def test_the_models_of_the_demo(database: Database, session: Any, tmp_path: Path, dbt: Path) -> None:
    """Over the demo's tables; each transaction writes as pgbench does, to a branch and to the history."""
    database.execute(BANK)
    file = pipeline_file(tmp_path, database, ["pgbench_branches", "pgbench_history"], name="bank")
    file.write_text(file.read_text().replace("lake:\n", "lake:\n  views: true\n", 1))
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        _build(dbt, pipeline, tmp_path)
    with duckdb.connect(str(tmp_path / "shop.duckdb"), read_only=True) as connection:
        found = connection.execute("SELECT bid, balance, history FROM branches ORDER BY bid").fetchall()
    assert found == [(1, 7, 7), (2, -3, -3), (3, 0, 0)]


def _build(dbt: Path, pipeline: Pipeline, folder: Path) -> None:
    project = ROOT / "docs" / "dbt"
    environment = {
        **os.environ,
        "LAKE_URI": pipeline.lake.uri,
        "LAKE_WAREHOUSE": pipeline.lake.warehouse,
        "LAKE_NAMESPACE": pipeline.lake.namespace,
        "SHOP_DUCKDB": str(folder / "shop.duckdb"),
        "DBT_PROJECT_DIR": str(project),
        "DO_NOT_TRACK": "1",
    }
    places = ["--project-dir", project, "--profiles-dir", project, "--target-path", folder / "target"]
    command = [dbt, "build", *places, "--log-path", folder / "logs", "--no-version-check"]
    done = subprocess.run(
        [*map(str, command)], check=False, capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def _compare(database: Database, folder: Path, position: int) -> int:
    """See that the models equal the source; return how many orders the run at this position wrote."""
    with duckdb.connect(str(folder / "shop.duckdb"), read_only=True) as connection:
        now = connection.execute("SELECT id, customer, total FROM orders_now ORDER BY id").fetchall()
        revenue = connection.execute("SELECT name, orders, total FROM revenue ORDER BY name").fetchall()
        seen = connection.execute("SELECT count(*) FROM orders_now WHERE seen_at = ?", [position]).fetchone()
        events = connection.execute("SELECT count(*), count(DISTINCT event) FROM order_events").fetchone()
    assert now == database.execute("SELECT id, customer, total FROM orders ORDER BY id")
    assert revenue == database.execute(
        "SELECT c.name, count(*), sum(o.total) FROM orders o JOIN customers c ON c.id = o.customer "
        'GROUP BY 1 ORDER BY c.name COLLATE "C"'
    )
    assert events is not None
    assert events[0] == events[1] > 0
    return int(seen[0]) if seen else 0
