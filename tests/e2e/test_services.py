"""PostgreSQL as a service: what the server shows decides whose words `validate` and `init` use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import SourceError
from slotlake.decoder.server import services
from slotlake.infra.cli.main import main
from slotlake.infra.local.postgres import temporary_postgres
from slotlake.infra.status.validation import Check, validate
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file

pytestmark = [pytest.mark.timeout(300), pytest.mark.server]
PAGES = Path(__file__).parents[2] / "docs" / "managed"
AURORA = (
    "SET allow_system_table_mods = on;"
    "CREATE FUNCTION pg_catalog.aurora_version() RETURNS text LANGUAGE sql AS $$ SELECT '17.4' $$"
)
SHOWN = [
    (["rds_superuser"], "Amazon RDS", "rds.logical_replication = 1", "GRANT rds_replication TO", "rds"),
    (["rds_superuser", AURORA], "Amazon Aurora", "the DB cluster", "GRANT rds_replication TO", "aurora"),
    (["cloudsqlsuperuser"], "Cloud SQL", "cloudsql.logical_decoding = on", "ALTER USER", "cloud-sql"),
    (["alloydbsuperuser"], "AlloyDB", "alloydb.logical_decoding = on", "ALTER USER", "alloydb"),
    (["azure_pg_admin"], "Azure Database", "server parameter wal_level", "administrator", "azure"),
    (["neon_superuser"], "Neon", "in the Neon Console", "Console, CLI or API", "neon"),
    (["supabase_admin"], "Supabase", "which a Supabase project has", "role postgres", "supabase"),
]


@contextmanager
def showing(database: Database, shown: list[str]) -> Iterator[None]:
    """A server on which these roles are, and perhaps Aurora's function."""
    roles = [each for each in shown if each != AURORA]
    database.execute("; ".join(f"CREATE ROLE {role}" for role in roles))
    if AURORA in shown:
        database.execute(AURORA)
    try:
        yield
    finally:
        if AURORA in shown:
            database.execute("SET allow_system_table_mods = on; DROP FUNCTION pg_catalog.aurora_version")
        database.execute("; ".join(f"DROP ROLE {role}" for role in roles))


@pytest.fixture(scope="module")
def replica() -> Iterator[Database]:
    """A server as a service gives it: without logical decoding."""
    with temporary_postgres(conf={"wal_level": "replica"}) as server:
        made = Database(server, "postgres")
        made.execute("CREATE TABLE a (id int PRIMARY KEY)")
        yield made


@pytest.fixture(scope="module")
def logical() -> Iterator[Database]:
    """A server with one slot, which another has, and a role that may only read."""
    conf = {"wal_level": "logical", "max_replication_slots": "1", "max_wal_senders": "1"}
    with temporary_postgres(conf=conf) as server:
        made = Database(server, "postgres")
        made.execute(
            f"CREATE TABLE a (id int PRIMARY KEY); CREATE ROLE plain LOGIN PASSWORD '{server.password}';"
            "GRANT SELECT ON a TO plain"
        )
        made.execute("SELECT pg_create_logical_replication_slot('of_another', 'pgoutput')")
        yield made


def _check(file: Path, name: str) -> Check:
    return next(check for check in validate(file).checks if check.name == name)


def _refused_alike(file: Path, check: Check) -> None:
    with pytest.raises(SourceError) as refused, Pipeline.open(file) as pipeline:
        pipeline.init()
    assert refused.value.way_out == check.way_out


@pytest.mark.parametrize(("shown", "name", "switch", "_role", "page"), SHOWN)
def test_logical_decoding_is_switched_on_where_the_service_does_it(
    replica: Database, tmp_path: Path, shown: list[str], name: str, switch: str, _role: str, page: str
) -> None:
    file = pipeline_file(tmp_path, replica, ["a"])
    with showing(replica, shown):
        said = _check(file, "source").what
        assert f"of {name}" in said
        assert f"docs/managed/{page}.md" in said
        check = _check(file, "logical decoding")
        assert check.result == "error"
        assert switch in check.way_out
        assert "ALTER SYSTEM" not in check.way_out
        assert f"docs/managed/{page}.md" in check.way_out
        _refused_alike(file, check)
    assert (PAGES / f"{page}.md").exists()


@pytest.mark.parametrize(("shown", "_name", "_switch", "role", "page"), SHOWN)
def test_a_role_may_replicate_when_the_service_lets_it(
    logical: Database, tmp_path: Path, shown: list[str], _name: str, _switch: str, role: str, page: str
) -> None:
    file = pipeline_file(tmp_path, logical, ["a"])
    plain = re.sub("//[^:]+:", "//plain:", logical.server.url(logical.name))
    file.write_text(file.read_text().replace(logical.dsn, plain))
    with showing(logical, shown):
        check = _check(file, "logical decoding")
        assert "may not use replication" in check.what
        assert role in check.way_out
        assert services.GIVE_REPLICATION not in check.way_out
        assert f"docs/managed/{page}.md" in check.way_out
        _refused_alike(file, check)


def test_slots_and_wal_senders(logical: Database, tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, logical, ["a"])
    with showing(logical, ["rds_superuser"]):
        slot = _check(file, "slot")
        assert "(in the parameter group; this needs a reboot)" in slot.way_out
        _refused_alike(file, slot)
        senders = _check(file, "WAL senders")  # it has one in all
        assert senders.result == "warning"
        assert "(in the parameter group; this needs a reboot)" in senders.way_out
    assert services.RESTART in _check(file, "slot").way_out


def test_a_server_of_ones_own_has_its_usual_words(replica: Database, tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, replica, ["a"])
    assert _check(file, "logical decoding").way_out == services.SET_LOGICAL
    assert "docs/managed" not in _check(file, "source").what


def test_the_sql_for_the_role_grants_what_rds_has(
    logical: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = pipeline_file(tmp_path, logical, ["a"])
    file.write_text(file.read_text().replace("user=slotlake", "user=cdc"))
    assert main(["init", str(file), "--print-sql"]) == 0
    printed = capsys.readouterr().out
    memberships = (
        "SELECT rolreplication, pg_has_role(oid, 'rds_replication', 'MEMBER') FROM pg_roles "
        "WHERE rolname = 'cdc'"
    )
    with showing(logical, ["rds_superuser", "rds_replication"]):
        for _ in range(2):
            logical.execute(printed)
            assert logical.execute(memberships) == [(False, True)]
    logical.execute(printed)
    assert logical.execute("SELECT rolreplication FROM pg_roles WHERE rolname = 'cdc'") == [(True,)]
