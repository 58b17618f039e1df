"""A pipeline's life in Google's and in Azure's object stores, as fake-gcs-server and Azurite play them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.spark import lake_files
from slotlake.spark.lake import LakeSettings
from slotlake.spark.storage import stores
from slotlake.spark.storage.location import Location
from slotlake.spark.storage.settings import StorageSettings
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file
from tests.other_stores import AzureStore, GoogleStore, OtherStore

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it"),
]
# One process, so one Spark.
_BEGINNING = """
import json, sys
import psycopg
from slotlake import Pipeline
with Pipeline.open(sys.argv[1]) as pipeline, psycopg.connect(sys.argv[2], autocommit=True) as source:
    copied = pipeline.init().rows
    source.execute("UPDATE a SET v = 'b' WHERE id < 10; DELETE FROM a WHERE id = 50")
    pipeline.sync()
    source.execute("UPDATE a SET v = 'c' WHERE id < 5; INSERT INTO a VALUES (1000, NULL)")
    rows = [list(row) for row in pipeline.query("SELECT count(*), min(id), max(v) FROM a").rows]
    print(json.dumps([copied, rows]), flush=True)
    pipeline.sync()
"""
_END = """
import json, sys
from slotlake import Pipeline
with Pipeline.open(sys.argv[1]) as pipeline:
    pipeline.sync()
    equal = pipeline.verify().equal
    maintained = len(pipeline.maintain().tables)
    rows = [list(row) for row in pipeline.query("SELECT count(*), min(id), max(v) FROM a").rows]
    pipeline.drop(lake=True)
    print(json.dumps([equal, maintained, rows]))
"""


@pytest.fixture(params=[GoogleStore, AzureStore], ids=["google", "azure"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OtherStore]:
    folder = tmp_path / "store"
    folder.mkdir()
    with request.param(folder) as running:
        yield running


def _run(script: str, arguments: list[str], failpoint: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "SLOTLAKE_FAILPOINT": failpoint},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_a_life(store: OtherStore, database: Database, tmp_path: Path) -> None:
    """Copy, batches, a kill before the pointers move, verification, maintenance, removal."""
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text);"
        "INSERT INTO a SELECT g, 'a' FROM generate_series(1, 100) g"
    )
    file = pipeline_file(tmp_path, database, ["a"])
    lines: list[str] = file.read_text().splitlines(keepends=True)
    (at,) = [i for i, line in enumerate(lines) if line.startswith("  warehouse: ")]
    lines[at] = f'  warehouse: "{store.warehouse}"\n  storage: {json.dumps(store.storage)}\n'
    file.write_text("".join(lines))
    killed = _run(_BEGINNING, [str(file), database.dsn], "publish.before_swap:2")
    assert killed.returncode != 0
    assert killed.stdout.strip(), killed.stderr[-3000:]
    assert json.loads(killed.stdout.splitlines()[-1]) == [100, [["99", "1", "b"]]]
    done = _run(_END, [str(file)])
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [True, 2, [["100", "1", "c"]]]
    root = Location(store.warehouse)
    stores.register(root, StorageSettings(**store.storage))
    assert [str(each.location) for each in lake_files.files(root)] == []


def test_files(store: OtherStore, tmp_path: Path) -> None:
    """A name is written once; large files go in parts; folders are listed and removed."""
    root = Location(f"{store.warehouse}/files")
    storage = StorageSettings(**store.storage)
    lake_files.probe_bucket(LakeSettings("lake", "sqlite:////x.db", root, "shop", storage=storage))
    with pytest.raises(LakeError, match="cannot be written"):
        for _ in range(2):
            lake_files.write_new(root / "x", os.urandom(3))
    large = os.urandom(40 << 20)
    (tmp_path / "large").write_bytes(large)
    [location] = lake_files.put([tmp_path / "large"], root / "data", ["large"])
    assert lake_files.size(location) == len(large)
    with lake_files.open_to_read(location) as file:
        file.seek(20 << 20)
        assert file.read(100) == large[20 << 20 : (20 << 20) + 100]
    names: list[Any] = sorted(each.location.name for each in lake_files.files(root))
    assert names == ["large", "x"]
    lake_files.remove([root / "never", root / "x"])
    lake_files.remove_tree(root)
    assert list(lake_files.files(root)) == []
    assert lake_files.size(location) is None
