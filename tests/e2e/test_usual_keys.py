"""A pipeline whose file has no keys: Python, DuckDB and Spark all take those that the machine has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slotlake.infra.launch.folders import home
from slotlake.infra.local.java import find_java
from slotlake.infra.local.object_store import LocalObjectStore
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file
from tests.key_givers import KeyGiver
from tests.storage import IN_S3

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it"),
    pytest.mark.skipif(IN_S3, reason="it names a bucket by itself"),
]
# One process, so one Spark: copy, batch, both engines, verification, maintenance.
_LIFE = """
import json, sys
import psycopg
from slotlake import Pipeline
with Pipeline.open(sys.argv[1]) as pipeline:
    copied = pipeline.init().rows
    with psycopg.connect(sys.argv[2], autocommit=True) as source:
        source.execute("UPDATE a SET v = 'b' WHERE id < 10; DELETE FROM a WHERE id = 50")
    pipeline.sync()
    sql = "SELECT count(*), min(id), max(v) FROM a"
    rows = [pipeline.query(sql, engine=engine).rows for engine in ("duckdb", "spark")]
    equal = pipeline.verify().equal
    warnings = pipeline.maintain().warnings
    print(json.dumps([copied, [[list(row) for row in each] for each in rows], equal, warnings]))
"""
_NOBODY = "http://127.0.0.1:1"


class _TakesTokens(LocalObjectStore):
    """S3Proxy refuses the header with the token of temporary keys, if it is not set up to leave it out."""

    def _conf(self) -> dict[str, str]:
        return {**super()._conf(), "s3proxy.ignore-unknown-headers": "true"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalObjectStore]:
    with _TakesTokens(tmp_path_factory.mktemp("tokens"), find_java()) as running:
        yield running


def _variables(kind: str, giver: KeyGiver, folder: Path) -> dict[str, str]:
    """What is set up on the machine."""
    if kind == "instance":
        return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": giver.address}
    base = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": _NOBODY, "AWS_ENDPOINT_URL_STS": giver.address}
    if kind == "identity":
        (folder / "token").write_text(giver.identity)
        named = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(folder / "token"), "AWS_ROLE_ARN": giver.role}
        return {**base, **named, "AWS_REGION": "us-east-1"}
    keys = giver.user if kind == "profile of a role" else (giver.access_key, giver.secret_key)
    (folder / "credentials").write_text(
        f"[user]\naws_access_key_id = {keys[0]}\naws_secret_access_key = {keys[1]}\n"
    )
    role = f"[profile role]\nrole_arn = {giver.role}\nsource_profile = user\nregion = us-east-1\n"
    (folder / "config").write_text(f"[profile user]\nregion = us-east-1\n{role}")
    files = {"AWS_CONFIG_FILE": "config", "AWS_SHARED_CREDENTIALS_FILE": "credentials"}
    chosen = {"AWS_PROFILE": "role" if kind == "profile of a role" else "user"}
    return {**base, **chosen, **{name: str(folder / file) for name, file in files.items()}}


def _run(arguments: list[str], variables: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    plain = {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
    environment = {**plain, "HOME": str(folder), "SLOTLAKE_HOME": str(home()), **variables}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.mark.parametrize("kind", ["profile", "profile of a role", "identity", "instance"])
def test_a_life_without_keys_in_the_file(
    kind: str, database: Database, store: LocalObjectStore, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text);"
        "INSERT INTO a SELECT g, 'a' FROM generate_series(1, 100) g"
    )
    file = pipeline_file(tmp_path, database, ["a"])
    lines: list[str] = file.read_text().splitlines(keepends=True)
    (at,) = [i for i, line in enumerate(lines) if line.startswith("  warehouse: ")]
    storage: dict[str, Any] = {"endpoint": store.endpoint}
    lines[at] = f'  warehouse: "{store.warehouse}/{tmp_path.name}"\n  storage: {json.dumps(storage)}\n'
    file.write_text("".join(lines))
    keys = store.storage["access_key"], store.storage["secret_key"]
    with KeyGiver(*keys, session="session") as giver:
        variables = _variables(kind, giver, tmp_path)
        done = _run(["-c", _LIFE, str(file), database.dsn], variables, tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        rows = [["99", "1", "b"]]
        assert json.loads(done.stdout.splitlines()[-1]) == [100, [rows, rows], True, []]
        giver.access_key = "AKIASOMEBODY"
        for name in ("credentials", "config"):
            text = (tmp_path / name).read_text() if (tmp_path / name).exists() else ""
            (tmp_path / name).write_text(text.replace(keys[1], "wrong"))
        refused = _run(["-m", "slotlake", "status", str(file)], variables, tmp_path)
        assert refused.returncode != 0
        assert "refused to" in refused.stdout + refused.stderr
        assert "with the keys of " in refused.stdout + refused.stderr
