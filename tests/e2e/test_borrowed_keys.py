"""A life of a lake for whose files nobody has keys but a REST catalog, which lends them for each table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import LakeError, PipelineFileError
from slotlake.infra.launch.folders import home
from slotlake.infra.status.validation import validate
from slotlake.spark.storage.bucket import BucketStore
from slotlake.spark.storage.location import Location
from slotlake.spark.storage.settings import StorageSettings
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.lending_store import LendingStore
from tests.spark.lending_proxy import LendingProxy
from tests.spark.rest_catalog import LocalRestCatalog
from tests.storage import IN_S3

LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(900),
    pytest.mark.skipif(IN_S3, reason="it names a bucket by itself"),
]
_KILLED = -9
_SECONDS = 15.0


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without keys."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLOTLAKE_HOME", str(home()))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def proxy(bare: None, tmp_path: Path) -> Iterator[LendingProxy]:
    with (
        LendingStore(tmp_path / "store") as store,
        LocalRestCatalog(tmp_path / "rest", store=store.inside) as rest,
        LendingProxy(rest.uri, store, seconds=_SECONDS) as proxy,
    ):
        yield proxy


def _file(
    database: Database, uri: str, folder: Path, *, asks: str = "vended-credentials", extra: str = ""
) -> Path:
    file = pipeline_file(folder, database, ["a", "b"], uri=uri, extra=extra)
    lines: list[str] = file.read_text().splitlines(keepends=True)
    (at,) = [i for i, line in enumerate(lines) if line.startswith("  warehouse: ")]
    rest = json.dumps({"header.X-Iceberg-Access-Delegation": asks})
    lines[at] = f'  warehouse: "s3://lake/w"\n  rest: {rest}\n'
    file.write_text("".join(lines))
    return file


def _slotlake(*arguments: str, failpoint: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "slotlake", *arguments],
        env={**os.environ, "SLOTLAKE_FAILPOINT": failpoint},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_a_life_by_lent_keys(database: Database, session: Any, proxy: LendingProxy, tmp_path: Path) -> None:
    """Keys end all the time: what is done takes several times as long as they are good."""
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text);"
        "INSERT INTO a SELECT g, 'a' FROM generate_series(1, 100) g;"
        "CREATE TABLE b (id int PRIMARY KEY, v text); INSERT INTO b VALUES (1, 'b')"
    )
    file = _file(database, proxy.uri, tmp_path)
    file.write_text(file.read_text().replace("'a': {}", "'a': {mode: [mirror, history, append]}"))
    killed = _slotlake("init", str(file), failpoint="init.before_publish")
    assert killed.returncode == _KILLED, killed.stderr[-3000:]
    with Pipeline.open(file) as pipeline:
        assert pipeline.init().rows == 101
        assert {"a", "b", "commits"} <= set(proxy.begun)  # keys were lent before the tables were there
        _follow(database, pipeline)
        database.execute("UPDATE a SET v = 'killed' WHERE id < 4")
    killed = _slotlake("sync", str(file), failpoint="publish.before_swap")
    assert killed.returncode == _KILLED, killed.stderr[-3000:]
    with Pipeline.open(file) as pipeline:
        pipeline.sync()
        assert_equal(database, pipeline, ["a", "b", "c"])
        rows = pipeline.query("SELECT count(*) FROM a JOIN b ON b.id = 4", engine="duckdb").rows
        assert rows == [("100",)]
        with pytest.raises(LakeError, match="Spark cannot answer where the REST catalog lends"):
            pipeline.query("SELECT 1", engine="spark")
        with pytest.raises(LakeError, match="a replay needs keys for the whole warehouse"):
            pipeline.replay("scratch")
        assert pipeline.maintain().warnings == []
        assert pipeline.verify().equal
    killed = _slotlake("drop", str(file), "--lake", "--yes", failpoint="drop.catalog")
    assert killed.returncode == _KILLED, killed.stderr[-3000:]
    begun = len(proxy.begun)
    dropped = _slotlake("drop", str(file), "--lake", "--yes")
    assert dropped.returncode == 0, dropped.stderr[-3000:]
    assert len(proxy.begun) > begun  # the tables are no more in the catalog, and their files need keys
    store = proxy.store
    assert store.refused == []
    assert max(proxy.lent.values()) > 5
    inside = StorageSettings(endpoint=store.inside.endpoint, access_key="x", secret_key="x")
    assert [each.location for each in BucketStore("s3://lake", inside).files(Location("s3://lake/w"))] == []


def _follow(database: Database, pipeline: Pipeline) -> None:
    """Batches, with deletions and changed keys; a table that joins; a backfill; verification."""
    for step in range(3):
        database.execute(
            f"UPDATE a SET v = 's{step}' WHERE id % 7 = {step}; DELETE FROM a WHERE id = {50 + step};"
            f"UPDATE b SET id = id + 1; INSERT INTO a VALUES ({1000 + step}, NULL)"
        )
        pipeline.sync()
    assert_equal(database, pipeline, ["a", "b"])
    database.execute("CREATE TABLE c (id int PRIMARY KEY); INSERT INTO c VALUES (1)")
    database.execute("ALTER PUBLICATION shop ADD TABLE c")
    assert pipeline.sync().added_tables == ["public.c"]
    assert pipeline.backfill("a").rows == 100
    assert pipeline.verify().equal


def test_what_cannot_be_lent(database: Database, bare: None, tmp_path: Path) -> None:
    """Signatures by the server, and keys for what is no table: refused before anything is asked."""
    both = "vended-credentials,remote-signing"
    signed = _file(database, "http://127.0.0.1:1", tmp_path / "signed", asks=both)
    with pytest.raises(PipelineFileError, match=r"signed by the REST catalog \(remote-signing\)") as no:
        Pipeline.open(signed)
    assert "write vended-credentials alone" in no.value.way_out
    report = validate(signed)
    assert [(check.name, check.result) for check in report.checks] == [("file", "error")]
    assert "remote-signing" in report.checks[0].what
    extra = 'changelog: {path: "s3://lake/w/log"}\n'
    stored = _file(database, "http://127.0.0.1:1", tmp_path / "stored", extra=extra)
    with pytest.raises(PipelineFileError, match=r"no keys for changelog\.path and state\.path") as no:
        Pipeline.open(stored)
    assert "name folders of this machine in changelog.path" in no.value.way_out
