"""docs/servers.md: with these rights a pipeline lives its whole life; an error names a missing one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import LakeError, SlotlakeError, SourceError
from slotlake.infra.cli.main import main
from slotlake.infra.local.postgres import USER, EmbeddedPostgres
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.session_errors import reason
from tests.conftest import ROOT, Database, fresh_database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]
LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
CATALOG_SQL = ROOT / "infra" / "deploy" / "roles" / "catalog.sql"
WRITER, READER, SOURCE_ROLE = "least_writer", "least_reader", "least_source"
TABLES = "iceberg_tables, iceberg_namespace_properties"


def _psql(database: Database, file: Path, **variables: str) -> None:
    server = database.server
    options = [part for name, text in variables.items() for part in ("-v", f"{name}={text}")]
    subprocess.run(
        [server.program("psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", *options, "-f", str(file)],
        env={**os.environ, "PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGUSER": USER,
             "PGPASSWORD": server.password, "PGDATABASE": database.name},
        check=True,
    )  # fmt: skip


@pytest.fixture
def catalog(pg: EmbeddedPostgres) -> Iterator[Database]:
    """A catalog as catalog.sql makes it, with nothing for PUBLIC; its roles have the server's password."""
    with fresh_database(pg) as database:
        database.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        database.execute(f"REVOKE ALL ON DATABASE {database.name} FROM PUBLIC")
        for _ in range(2):
            _psql(database, CATALOG_SQL, writer=WRITER, reader=READER)
        for role in (WRITER, READER):
            database.execute(f"ALTER ROLE {role} PASSWORD '{pg.password}'")
        yield database
        for role in (WRITER, READER):
            database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def _uri(database: Database, role: str) -> str:
    server = database.server
    place = f"127.0.0.1:{server.port}/{database.name}"
    return f"postgresql+psycopg://{role}:{server.password}@{place}?sslmode=disable"


def _lake(catalog: Database, role: str, tmp_path: Path) -> LakeSettings:
    return LakeSettings("lake", _uri(catalog, role), str(tmp_path), "shop")


def test_the_catalogs_roles(catalog: Database, tmp_path: Path) -> None:
    """Tables of pyiceberg's own shape; the writer may not alter them, the reader may only read."""
    with open_catalog(_lake(catalog, WRITER, tmp_path)) as opened:
        assert opened.pointers() == {}
    with open_catalog(_lake(catalog, READER, tmp_path)) as opened:
        assert opened.pointers() == {}
    for role, refused in (
        (WRITER, "DROP TABLE iceberg_tables"),
        (WRITER, "CREATE TABLE x ()"),
        (READER, "UPDATE iceberg_tables SET table_name = ''"),
        (READER, "DELETE FROM iceberg_namespace_properties"),
    ):
        with (
            psycopg.connect(catalog.server.dsn(catalog.name, user=role)) as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            connection.execute(refused)


def test_a_catalog_that_refuses_spark_is_named_by_its_own_words() -> None:
    text = "UncheckedSQLException\nCaused by: ERROR: permission denied for table iceberg_tables\n\tat x"
    assert reason(RuntimeError(text)) == (
        "the catalog's database says: permission denied for table iceberg_tables"
    )


@pytest.fixture
def source(database: Database, pg: EmbeddedPostgres) -> Iterator[Database]:
    database.execute(
        "REVOKE ALL ON SCHEMA public FROM PUBLIC; CREATE TABLE a (id int PRIMARY KEY, word text);"
        "CREATE TABLE b (id int PRIMARY KEY); INSERT INTO a VALUES (1, 'one'); INSERT INTO b VALUES (1)"
    )
    database.execute(f"REVOKE ALL ON DATABASE {database.name} FROM PUBLIC")
    yield database
    if database.execute(f"SELECT to_regrole('{SOURCE_ROLE}') IS NOT NULL") == [(True,)]:
        database.execute(f"DROP OWNED BY {SOURCE_ROLE}; DROP ROLE {SOURCE_ROLE}")


def _given(source: Database, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `init --print-sql` prints is run, and the role gets the server's password."""
    assert main(["init", str(file), "--print-sql"]) == 0
    statements = capsys.readouterr().out.replace(f'GRANT pg_read_all_stats TO "{SOURCE_ROLE}";', "")
    source.execute(statements)
    source.execute(f"ALTER ROLE {SOURCE_ROLE} PASSWORD '{source.server.password}'")


def _file(folder: Path, source: Database, catalog: Database) -> Path:
    file = pipeline_file(folder, source, ["a", "b"], uri=_uri(catalog, WRITER), extra="mode: [history]\n")
    own = source.server.dsn(source.name, user=SOURCE_ROLE)
    file.write_text(file.read_text().replace(source.dsn, own))
    return file


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_a_whole_life_with_these_rights_and_each_of_them_is_needed(
    source: Database,
    catalog: Database,
    session: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = _file(tmp_path, source, catalog)
    _given(source, file, capsys)
    with Pipeline.open(file) as pipeline:
        _each_right_of_the_source_before_init(source, pipeline)
        pipeline.init()
        source.execute("INSERT INTO a VALUES (2, 'two'); DELETE FROM b")
        pipeline.sync()
        assert pipeline.verify().equal
        _each_right_of_the_catalog(catalog, source, pipeline)
        _select_is_needed_to_verify_and_not_to_sync(source, pipeline)
        pipeline.backfill("public.a")
        pipeline.maintain()
        assert_equal(source, pipeline, ["a", "b"])
        catalog.execute(f"REVOKE DELETE ON {TABLES} FROM {WRITER}")
        assert any("permission denied for table iceberg_" in line for line in pipeline.drop(lake=True).left)
        catalog.execute(f"GRANT DELETE ON {TABLES} TO {WRITER}")
        assert pipeline.drop(lake=True).left == []
    assert catalog.execute("SELECT count(*) FROM iceberg_tables") == [(0,)]


def _without(database: Database, revoke: str, grant: str, attempt: Callable[[], object], said: str) -> None:
    """Take a right away, see the error that names it, give it back."""
    database.execute(revoke)
    with pytest.raises(SlotlakeError) as refused:
        attempt()
    database.execute(grant)
    assert isinstance(refused.value, SourceError | LakeError), refused.value
    assert said in str(refused.value), (revoke, str(refused.value))
    assert refused.value.way_out
    assert database.server.password not in str(refused.value)


def _each_right_of_the_source_before_init(source: Database, pipeline: Pipeline) -> None:
    role = SOURCE_ROLE
    for revoke, grant, said in (
        (f"ALTER ROLE {role} NOREPLICATION", f"ALTER ROLE {role} REPLICATION", "REPLICATION"),
        (f"ALTER ROLE {role} NOLOGIN", f"ALTER ROLE {role} LOGIN", "log in"),
        (f"REVOKE CONNECT ON DATABASE {source.name} FROM {role}",
         f"GRANT CONNECT ON DATABASE {source.name} TO {role}", "CONNECT"),
        (f"REVOKE SELECT ON b FROM {role}", f"GRANT SELECT ON b TO {role}", '"b"'),
        (f"REVOKE USAGE ON SCHEMA public FROM {role}", f"GRANT USAGE ON SCHEMA public TO {role}", '"public"'),
    ):  # fmt: skip
        _without(source, revoke, grant, pipeline.init, said)
        slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
        assert source.execute(slots) == [(0,)]


def _each_right_of_the_catalog(catalog: Database, source: Database, pipeline: Pipeline) -> None:
    """A batch needs SELECT and UPDATE, a table that joins INSERT, the end of the lake DELETE."""
    changes = {
        "SELECT": "INSERT INTO a VALUES (10, 'x')",
        "UPDATE": "INSERT INTO a VALUES (11, 'x')",
        "USAGE": "INSERT INTO a VALUES (12, 'x')",
        "INSERT": f"CREATE TABLE c (id int PRIMARY KEY); GRANT SELECT ON c TO {SOURCE_ROLE};"
        "ALTER PUBLICATION shop ADD TABLE c; INSERT INTO c VALUES (1)",
    }
    for right, statements in changes.items():
        on = "SCHEMA public" if right == "USAGE" else TABLES
        source.execute(statements)
        revoke, grant = f"REVOKE {right} ON {on} FROM {WRITER}", f"GRANT {right} ON {on} TO {WRITER}"
        _without(catalog, revoke, grant, pipeline.sync, "iceberg_" if right != "USAGE" else "no schema")
        pipeline.sync()
        assert pipeline.verify().equal


def _select_is_needed_to_verify_and_not_to_sync(source: Database, pipeline: Pipeline) -> None:
    source.execute(f"REVOKE SELECT ON a FROM {SOURCE_ROLE}; INSERT INTO a VALUES (20, 'unseen')")
    pipeline.sync()
    assert ("20", "unseen") in set(pipeline.rows("public.a"))
    with pytest.raises(SourceError, match='"a"'):
        pipeline.verify()
    source.execute(f"GRANT SELECT ON a TO {SOURCE_ROLE}")
    assert pipeline.verify().equal
