"""A role with REPLICATION and SELECT only, over TLS with certificates verified on both sides, and SCRAM."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from slotlake import Pipeline
from slotlake.decoder.errors import SourceError
from slotlake.infra.cli.main import main
from slotlake.infra.local.postgres import EmbeddedPostgres, temporary_postgres
from slotlake.infra.local.postgres_archives import is_fetched
from tests.conftest import Database
from tests.e2e.certificates import Authority
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = [pytest.mark.timeout(600), pytest.mark.server]
PASSWORD = "it's a $ecret %s"
# Every session of this role must come over TLS, with its own certificate and its password.
HBA = """hostssl all mortal 127.0.0.1/32 scram-sha-256 clientcert=verify-full
host all mortal all reject
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def guarded(authority: Authority) -> Iterator[Database]:
    """A database on a server (of a version whose build knows TLS) that lets `mortal` in so only."""
    if os.environ.get("SLOTLAKE_OFFLINE") and not is_fetched(17):
        pytest.skip("SLOTLAKE_OFFLINE is set, and PostgreSQL 17 has not been fetched")
    with temporary_postgres(version=17) as server:
        database = Database(server, "postgres")
        _guard(server, authority)
        for setting, value in (("ssl_ca_file", "ca.crt"), ("ssl", "on")):
            database.execute(f"ALTER SYSTEM SET {setting} = '{value}'")
        database.execute("SELECT pg_reload_conf()")
        yield database


def _guard(server: EmbeddedPostgres, authority: Authority) -> None:
    certificate, key = authority.issue("server", "127.0.0.1")
    for source, name in ((certificate, "server.crt"), (key, "server.key"), (authority.root, "ca.crt")):
        target = server.data / name
        shutil.copyfile(source, target)
        target.chmod(0o600)
        owner = server.data.stat()
        shutil.chown(target, owner.st_uid, owner.st_gid)
    hba = server.data / "pg_hba.conf"
    hba.write_text(HBA + hba.read_text())


def _dsn(database: Database, authority: Authority, **more: Any) -> str:
    certificate, key = authority.folder / "mortal.crt", authority.folder / "mortal.key"
    if not key.exists():
        authority.issue("mortal")
    parts: dict[str, Any] = {"host": "127.0.0.1", "port": database.server.port, "dbname": database.name}
    parts |= {"user": "mortal", "password": PASSWORD, "channel_binding": "require"}
    parts |= {"sslmode": "verify-full", "sslrootcert": authority.root, "sslcert": certificate, "sslkey": key}
    return make_conninfo("", **(parts | more))


def _file(
    folder: Path, database: Database, monkeypatch: pytest.MonkeyPatch, dsn: str, *tables: str, **more: Any
) -> Path:
    """A pipeline file that connects so; the password is in the environment."""
    monkeypatch.setenv("GUARDED_DSN", dsn)
    file = pipeline_file(folder, database, list(tables), **more)
    file.write_text(file.read_text().replace(f'"{database.dsn}"', "env:GUARDED_DSN"))
    return file


def test_replication_and_select_are_enough(
    guarded: Database,
    authority: Authority,
    session: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    guarded.execute(
        'CREATE SCHEMA "Odd"; CREATE TABLE "Odd"."B" (id int PRIMARY KEY);'
        "CREATE TABLE a (id int PRIMARY KEY, v text);"
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (10000);"
        """INSERT INTO a VALUES (1, 'x'); INSERT INTO "Odd"."B" VALUES (1); INSERT INTO parted VALUES (1)"""
    )
    tables = ("a", '"Odd"."B"', "parted")
    file = _file(tmp_path, guarded, monkeypatch, _dsn(guarded, authority), *tables)
    assert main(["init", str(file), "--print-sql"]) == 0
    statements = capsys.readouterr().out
    assert PASSWORD not in statements
    for _ in range(2):
        guarded.execute(statements)
    guarded.execute(f"ALTER ROLE mortal PASSWORD '{PASSWORD.replace(chr(39), chr(39) * 2)}'")
    assert guarded.execute("SELECT rolsuper, rolbypassrls FROM pg_roles WHERE rolname = 'mortal'") == [
        (False, False)
    ]
    with Pipeline.open(file) as pipeline:
        assert pipeline.init().rows == 3
        guarded.execute("INSERT INTO a SELECT g, repeat(md5(g::text), 10) FROM generate_series(2, 30000) g")
        pipeline.sync()  # a backlog of more than 8 MB: read through SQL
        with guarded.connect() as writer:
            writer.execute("BEGIN; INSERT INTO parted VALUES (2)")
            for number in (40000, 40001):
                guarded.execute("INSERT INTO a VALUES (%s, 'over one connection')", [number])
                pipeline.sync()
            assert pipeline.stream.connected
            writer.execute("COMMIT")
        pipeline.sync()
        assert_equal(guarded, pipeline, ["a", '"Odd"."B"', "parted"])
        assert pipeline.verify().equal
        assert pipeline.status().sees_all_transactions
        _rows_that_are_hidden(guarded, pipeline)
        pipeline.drop(lake=True)


def _rows_that_are_hidden(guarded: Database, pipeline: Pipeline) -> None:
    """The stream goes on, which obeys no policy; what reads tables is refused, both named at once."""
    guarded.execute(
        'ALTER TABLE a ENABLE ROW LEVEL SECURITY; ALTER TABLE "Odd"."B" ENABLE ROW LEVEL SECURITY;'
        "CREATE POLICY those ON a USING (id > 5); INSERT INTO a VALUES (-1, 'hidden')"
    )
    pipeline.sync()
    assert ("-1", "hidden") in set(pipeline.rows("public.a"))
    for attempt in (pipeline.verify, lambda: pipeline.backfill("public.a")):
        with pytest.raises(SourceError, match=r'hides rows of "Odd"."B", "public"."a"') as refused:
            attempt()
        assert "BYPASSRLS" in refused.value.way_out
    guarded.execute("ALTER ROLE mortal BYPASSRLS")
    assert pipeline.verify().equal
    guarded.execute("ALTER ROLE mortal NOBYPASSRLS")


def test_what_may_not_be_read_is_told_before_anything_is_made(
    guarded: Database, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded.execute(
        "DO $$ BEGIN IF to_regrole('mortal') IS NULL THEN CREATE ROLE mortal LOGIN REPLICATION; END IF;"
        "END $$;"
        f"ALTER ROLE mortal PASSWORD '{PASSWORD.replace(chr(39), chr(39) * 2)}';"
        "CREATE SCHEMA hidden; CREATE TABLE hidden.c (id int PRIMARY KEY);"
        "CREATE TABLE d (id int PRIMARY KEY, open text, secret text); GRANT SELECT (id, open) ON d TO mortal;"
        "CREATE TABLE e (id int PRIMARY KEY); GRANT SELECT ON e TO mortal;"
        "CREATE PUBLICATION made FOR TABLE hidden.c, d, e; CREATE PUBLICATION listed FOR TABLE d (id, open)"
    )
    file = _file(tmp_path, guarded, monkeypatch, _dsn(guarded, authority), "hidden.c", "d", "e", name="made")
    with Pipeline.open(file) as pipeline, pytest.raises(SourceError) as refused:
        pipeline.init()
    assert '"d" (secret)' in refused.value.what
    assert 'schema "hidden"' in refused.value.what
    assert '"e"' not in refused.value.what
    assert "GRANT USAGE" in refused.value.way_out
    named = str(refused.value)
    guarded.execute(refused.value.way_out.removeprefix("ask the owner to run: "))  # is what it says
    with Pipeline.open(file) as pipeline:
        from slotlake.infra.copy.tables import published_tables

        assert len(published_tables(pipeline)) == 3
    assert guarded.execute("SELECT count(*) FROM pg_replication_slots") == [(0,)], named


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"sslrootcert": "other"}, "certificate"),
        ({"host": "localhost", "hostaddr": "127.0.0.1"}, "certificate"),
        ({"sslcert": "", "sslkey": ""}, "certificate"),
        ({"sslmode": "disable", "channel_binding": "disable"}, "pg_hba.conf"),
        ({"password": "wr0ng"}, "password"),
        ({"user": "nobody_of_this_name"}, "role|password"),
    ],
)
def test_a_connection_that_is_refused_says_why_and_no_secret(
    guarded: Database,
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wrong: dict[str, str],
    said: str,
) -> None:
    if "sslrootcert" in wrong:
        wrong = {"sslrootcert": str(Authority(tmp_path / "other", "another CA").root)}
    file = _file(tmp_path, guarded, monkeypatch, _dsn(guarded, authority, **wrong), "a")
    assert main(["init", str(file)]) == 3
    message = capsys.readouterr().err
    assert any(word in message for word in said.split("|")), message
    assert "what to do:" in message
    assert PASSWORD not in message
    assert "wr0ng" not in message
