"""`source.password.command`: the role's password changes, and every connection gets the one of now."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from slotlake import Pipeline
from slotlake.decoder.errors import PipelineFileError, SourceError, SourceUnavailableError
from slotlake.decoder.server.source import connect, connect_async, connect_replication
from slotlake.decoder.server.waiting import same_server
from slotlake.infra.cli.main import main
from slotlake.infra.config import password
from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.infra.sync.loop import RunLimits
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, differences, pipeline_file
from tests.e2e.test_follow import following
from tests.e2e.test_run import Running

pytestmark = [pytest.mark.timeout(300), pytest.mark.server]
TABLES = ["a", "b"]
GIVE = "#!/bin/sh\necho asked >> asked\ncat password.txt\n"


@dataclass
class Shop:
    """A pipeline file whose command prints a file, and the role that may do what slotlake needs."""

    database: Database
    folder: Path
    file: Path
    role: str

    def change(self, secret: str) -> None:
        """Another password from now on; sessions of the old one end, as at a restart."""
        (self.folder / "password.txt").write_text(f"\n{secret}\n")
        quoted = secret.replace("'", "''")
        self.database.execute(f"ALTER ROLE {self.role} PASSWORD '{quoted}'")
        self.database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [self.role]
        )

    def say(self, script: str) -> None:
        (self.folder / "give").write_text(f"#!/bin/sh\n{script}\n")

    @property
    def asked(self) -> int:
        noted = self.folder / "asked"
        return len(noted.read_text().splitlines()) if noted.exists() else 0


@pytest.fixture
def shop(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    role = f"{database.name}_cdc"
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, v text);"
        "CREATE TABLE elsewhere (id int); INSERT INTO a SELECT g, 'v' FROM generate_series(1, 100) g;"
        f"CREATE ROLE {role} LOGIN REPLICATION; GRANT SELECT ON a, b TO {role};"
        "CREATE PUBLICATION shop FOR TABLE a, b"
    )
    file = pipeline_file(tmp_path, database, TABLES, source="password: {command: [./give]}")
    dsn = make_conninfo(host="127.0.0.1", port=database.server.port, dbname=database.name, user=role)
    file.write_text(file.read_text().replace(database.dsn, dsn))
    (tmp_path / "give").write_text(GIVE)
    (tmp_path / "give").chmod(0o755)
    made = Shop(database, tmp_path, file, role)
    made.change("p1'\\:/@ %")
    yield made
    database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_every_way_to_run_goes_on_with_the_password_of_now(
    shop: Shop, session: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="psycopg")
    database = shop.database
    with Pipeline.open(shop.file) as pipeline:
        pipeline.init()
        shop.change("secret-2")
        database.execute("INSERT INTO b VALUES (1, 'x')")
        assert pipeline.sync().changes == 1
        with Running(shop.file, RunLimits()) as running:
            for number in (3, 4):
                shop.change(f"secret-{number}")
                database.execute("INSERT INTO b VALUES (%s, 'x')", [number])
                running.until(lambda: not differences(database, pipeline, TABLES), "the lake has it")
        with following(pipeline):
            for number in (5, 6):
                shop.change(f"secret-{number}")
                database.execute("INSERT INTO b VALUES (%s, 'x')", [number])
                assert pipeline.sync().changes == 1
        shop.change("secret-7")
        assert pipeline.verify().equal
        assert_equal(database, pipeline, TABLES)
    _is_nowhere("secret-", [shop.folder / "password.txt"], shop.folder)
    assert "secret-" not in caplog.text


def _is_nowhere(word: str, but: list[Path], folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file() and path not in but]
    assert files
    assert [path for path in files if word.encode() in path.read_bytes()] == []


def test_it_is_asked_for_each_connection_of_every_kind(shop: Shop) -> None:
    dsn = load_pipeline(shop.file).dsn()
    assert "password" not in dsn
    with connect(dsn) as one, connect_replication(dsn):
        assert shop.asked == 2
        asyncio.run(_closed(dsn))
        assert shop.asked == 3
        (shop.folder / "password.txt").write_text("later")
        shop.database.execute(f"ALTER ROLE {shop.role} PASSWORD 'later'")
        with connect(same_server(one)) as two:  # the first one was opened with the password of then
            assert two.execute("SELECT current_user").fetchone() == (shop.role,)
    assert shop.asked == 4


async def _closed(dsn: str) -> None:
    await (await connect_async(dsn)).close()


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("echo hidden; echo hidden >&2; exit 3", "./give, failed (exit code 3)"),
        ("echo", "./give, printed nothing"),
        ("echo hidden; echo hidden", "./give, printed more than one line of text"),
        (r"printf 'hidden\0\n'", "./give, printed more than one line of text"),
        (r"printf 'hidden\377\n'", "./give, printed more than one line of text"),
        ("echo hidden; sleep 60", "./give, has not ended within 1 s"),
    ],
)
def test_a_command_that_gives_none_is_named_and_its_output_is_not(
    shop: Shop, script: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(password, "SECONDS_MAX", 1.0)
    shop.say(script)
    with pytest.raises(SourceUnavailableError) as refused:
        connect(load_pipeline(shop.file).dsn())
    assert what in refused.value.what
    assert refused.value.where == "shop.yaml, source.password.command"
    assert "hidden" not in str(refused.value)


def test_what_the_user_sees(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.say("echo wrong")
    assert main(["validate", str(shop.file), "--json"]) == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert "password authentication failed" in checks["source"]["what"]
    (shop.folder / "give").unlink()
    assert main(["validate", str(shop.file), "--json"]) == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert "./give: No such file or directory" in checks["source"]["what"]
    with pytest.raises(PipelineFileError, match=r"source\.dsn has a password, and source\.password"):
        _changed(shop, "user=", "password=p user=").dsn()


def _changed(shop: Shop, old: str, new: str) -> Any:
    shop.file.write_text(shop.file.read_text().replace(old, new))
    return load_pipeline(shop.file)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("password: secret", "source.password: write {command: [program, argument]}"),
        ("password: {command: give it}", "source.password: write {command: [program, argument]}"),
        ("password: {command: []}", "source.password.command"),
        ("password: {comand: [give]}", "source.password.comand: unknown key"),
    ],
)
def test_another_form_is_refused(shop: Shop, given: str, what: str) -> None:
    with pytest.raises(PipelineFileError) as refused:
        _changed(shop, "password: {command: [./give]}", given)
    assert what in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_run_ends_when_no_password_comes_and_goes_on_after_it(shop: Shop, session: Any) -> None:
    with Pipeline.open(shop.file) as pipeline:
        pipeline.init()
    shop.say("exit 1")
    with Pipeline.open(shop.file) as pipeline, pytest.raises(SourceError, match=r"\./give, failed"):
        pipeline.sync()
    shop.say(GIVE)
    shop.database.execute("INSERT INTO b VALUES (1, 'x')")
    with Pipeline.open(shop.file) as pipeline:
        before = shop.asked
        assert pipeline.sync().changes == 1
        assert shop.asked - before < 12, "a sync keeps its connections"
        assert os.environ.get("PGPASSWORD") is None
