"""`slotlake validate`: each kind of mistake is named before anything is made; nothing is changed."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import SlotlakeError
from slotlake.infra.cli.main import main
from slotlake.infra.local.postgres import temporary_postgres
from slotlake.infra.status.validation import Check, ValidationReport, validate
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file
from tests.e2e.test_full_disk import small_disk
from tests.storage import ON_REST, needs_a_folder

pytestmark = pytest.mark.timeout(300)
TABLES = "CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, n int)"


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Path:
    """A pipeline file over two tables; neither publication nor slot nor lake is there."""
    database.execute(TABLES + "; INSERT INTO a SELECT g, g::text FROM generate_series(1, 100) g")
    return pipeline_file(tmp_path, database, ["a", "b"])


def _edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def _url(database: Database, role: str | None = None) -> str:
    """The database's address, for that role (which has the same password)."""
    url = database.server.url(database.name)
    return url if role is None else re.sub("//[^:]+:", f"//{role}:", url)


def _of(report: ValidationReport, name: str) -> list[Check]:
    return [check for check in report.checks if check.name == name]


def _error(file: Path, name: str, *words: str) -> Check:
    """The one error that the file must lead to, under this name; init must be refused too."""
    report = validate(file)
    errors = [check for check in report.checks if check.result == "error"]
    assert [check.name for check in errors] == [name], report
    assert not report.valid
    for word in words:
        assert word in f"{errors[0].what} {errors[0].way_out}"
    assert errors[0].way_out
    return errors[0]


def _require_valid(file: Path) -> None:
    report = validate(file)
    assert [check for check in report.checks if check.result == "error"] == []
    assert report.valid


def _refused_alike(file: Path, name: str, *words: str) -> None:
    """The same words from `init`, which makes nothing either."""
    check = _error(file, name, *words)
    with pytest.raises(SlotlakeError) as refused, Pipeline.open(file) as pipeline:
        pipeline.init()
    assert refused.value.what in check.what
    assert refused.value.way_out == check.way_out


def _everything(database: Database, folder: Path) -> tuple[Any, ...]:
    """What must be as it was: the source's catalog, its slots, and the files."""
    return (
        database.execute("SELECT pubname FROM pg_publication"),
        database.execute("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"),
        database.execute("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"),
        sorted(
            (str(path), path.stat().st_size)
            for path in folder.rglob("*")
            if path.name != "rest.log"  # of a catalog's server, which writes down what it is asked
        ),
    )


def test_a_good_file_is_right_and_nothing_is_changed(
    shop: Path, database: Database, connect: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _everything(database, shop.parent)
    assert main(["validate", str(shop)]) == 0
    said = capsys.readouterr().out
    assert "0 errors, 0 warnings" in said, said
    assert [line.split()[0] for line in said.splitlines()[:-1]] == ["ok"] * 15
    assert _everything(database, shop.parent) == before
    with Pipeline.open(shop, remote=connect) as pipeline:
        pipeline.init()
    after = _everything(database, shop.parent)
    report = validate(shop, remote=connect)
    assert report.valid
    assert {check.result for check in report.checks} == {"ok"}, report
    assert "initialised" in _of(report, "catalog")[0].what
    assert "Connect server answers" in _of(report, "Spark")[0].what
    assert _everything(database, shop.parent) == after


def test_json_says_the_same(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _edit(shop, "new_tables" if "new_tables" in shop.read_text() else "  namespace: shop", "  namespce: shop")
    assert main(["validate", str(shop), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["valid"] is False
    (check,) = report["checks"]
    assert (check["name"], check["result"]) == ("file", "error")
    assert "did you mean namespace" in check["what"]


def test_a_file_that_is_missing_or_names_a_variable_that_is_not_set(shop: Path, database: Database) -> None:
    _error(shop.with_name("other.yaml"), "file", "no such pipeline file")
    _edit(shop, f'"{database.dsn}"', "env:NOBODY_SETS_THIS")
    _error(shop, "file", "NOBODY_SETS_THIS")


def test_a_server_that_does_not_answer_leaves_the_rest_unjudged(shop: Path, database: Database) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        _edit(shop, database.dsn, f"postgresql://127.0.0.1:{closed.getsockname()[1]}/nothing")
        _error(shop, "source", "cannot be reached")
        report = validate(shop)
    assert {check.name for check in report.checks if check.result == "not checked"} == {
        *(
            "logical decoding",
            "options",
            "slot",
            "positions",
            "WAL senders",
            "publications",
            "tables",
            "lake",
        ),
    }


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    """A role that may log in, and nothing else."""
    name = f"poor_{database.name}"
    database.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{database.server.password}'")
    yield name
    database.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_what_the_role_lacks_is_named_right_by_right(shop: Path, database: Database, role: str) -> None:
    _edit(shop, database.dsn, _url(database, role))
    database.execute(f"CREATE PUBLICATION shop FOR TABLE a, b; GRANT SELECT ON a, b TO {role}")
    _refused_alike(shop, "logical decoding", "REPLICATION")
    database.execute(f"ALTER ROLE {role} REPLICATION")
    _require_valid(shop)
    database.execute(f"REVOKE SELECT ON b FROM {role}")
    _refused_alike(shop, "publications", "may not read", "GRANT SELECT")
    database.execute(
        f"GRANT SELECT ON b TO {role};"
        "ALTER TABLE b ENABLE ROW LEVEL SECURITY; CREATE POLICY a_few ON b USING (id > 5)"
    )
    _refused_alike(shop, "publications", "row-level security", "BYPASSRLS")
    database.execute("ALTER TABLE b DISABLE ROW LEVEL SECURITY; DROP PUBLICATION shop")
    _refused_alike(shop, "publications", "cannot be created", "--print-sql")


def test_wal_level_and_a_server_without_a_free_slot(tmp_path: Path) -> None:
    conf = {"wal_level": "replica", "max_replication_slots": "1", "max_wal_senders": "1"}
    with temporary_postgres(conf=conf) as server:
        database = Database(server, "postgres")
        database.execute(TABLES)
        file = pipeline_file(tmp_path, database, ["a", "b"])
        _refused_alike(file, "logical decoding", "'replica'", "wal_level = 'logical'")
        database.execute("ALTER SYSTEM SET wal_level = 'logical'")
        server.stop()
        server.conf = {**conf, "wal_level": "logical"}
        server.start()
        database.execute("SELECT pg_create_logical_replication_slot('of_another', 'pgoutput')")
        _refused_alike(file, "slot", "no free replication slot", "max_replication_slots")
        (senders,) = _of(validate(file), "WAL senders")
        assert senders.result == "warning"


def test_a_slot_that_another_made(shop: Path, database: Database) -> None:
    slot = f"slotlake_{database.name}_shop"
    database.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    _refused_alike(shop, "slot", "no note here says")


def test_columns_that_no_binary_stream_can_carry(shop: Path, database: Database) -> None:
    """A type without a binary format goes as text; inside another the server fails at the first row."""
    database.execute(
        "CREATE TYPE granted AS (who name, rights aclitem); CREATE DOMAIN listed AS aclitem[];"
        "ALTER TABLE b ADD plain aclitem, ADD many aclitem[], ADD one granted, ADD far listed, ADD r regclass"
    )
    _edit(shop, "source:\n", "source:\n  binary: true\n")
    columns = [f"{name!r} of public.b" for name in ("many", "one", "far", "r")]
    _refused_alike(shop, "tables", *columns, "no binary format", "source.binary: false", "DROP TABLE")
    assert "'plain'" not in _error(shop, "tables").what
    database.execute("ALTER PUBLICATION shop SET TABLE a, b (id, n, plain)")
    _require_valid(shop)
    database.execute("ALTER PUBLICATION shop SET TABLE a, b")
    _edit(shop, "  binary: true\n", "")
    _require_valid(shop)


def test_an_option_that_the_server_lacks(shop: Path, database_on: Any, tmp_path: Path) -> None:
    old = database_on(14)
    old.execute(TABLES)
    file = pipeline_file(tmp_path / "old", old, ["a", "b"], source="two_phase: true")
    _refused_alike(file, "options", "two_phase", "PostgreSQL 15")


def test_tables_that_are_not_there_or_do_not_fit(shop: Path, database: Database) -> None:
    whole = shop.read_text()
    _edit(shop, "'b': {}", "'nowhere': {}")
    _refused_alike(shop, "publications", "nowhere")
    shop.write_text(whole.replace("'b': {}", "'b': {filter: \"n > 1\"}"))
    _refused_alike(shop, "publications", "replica identity", "REPLICA IDENTITY FULL")
    shop.write_text(whole.replace("'b': {}", "'b': {columns: [id, nothing]}"))
    _refused_alike(shop, "publications", "nothing", "name some of these")
    shop.write_text(whole.replace("'b': {}", "'b': {filter: \"id > 1\"}"))
    database.execute("ALTER PUBLICATION shop SET TABLE a")  # that init made before it read the filters
    _refused_alike(shop, "tables", "no table", "publish it")


def test_tables_that_will_be_trouble_are_a_warning(shop: Path, database: Database) -> None:
    database.execute("CREATE TABLE c (v int); CREATE TABLE d ()")
    _edit(shop, "'b': {}", "'b': {}\n  'c': {}\n  'd': {}")
    report = validate(shop)
    assert report.valid, report
    found = {check.what for check in _of(report, "tables")}
    assert {check.result for check in _of(report, "tables")} == {"warning"}
    assert any('"c"' in what and "no key" in what for what in found), found
    assert any('"d" would be set aside' in what for what in found), found
    _edit(shop, "tables:\n", "on_trouble: stop\ntables:\n")
    _refused_alike(shop, "tables", "no published column")


def test_a_reader_that_cannot_read_the_lake(shop: Path) -> None:
    _edit(shop, "  namespace: shop", "  namespace: shop\n  readers: [spark, trino]")
    _refused_alike(shop, "readers", "Trino 476 does not read tables of Iceberg's format 3", "slotlake format")
    _edit(shop, "[spark, trino]", "[spark, pyiceberg]")
    (check,) = _of(validate(shop), "readers")
    assert (check.result, check.what[:16]) == ("ok", "spark, pyiceberg")


@needs_a_folder
def test_a_catalog_or_warehouse_that_cannot_be_used(shop: Path, database: Database) -> None:
    whole, folder = shop.read_text(), shop.parent
    (folder / "file").write_text("no folder")
    _edit(shop, f"{folder}/warehouse", f"{folder}/file")
    _error(shop, "warehouse", "not a directory")
    shop.write_text(whole.replace(f"sqlite:///{folder}/lake.db", f"sqlite:///{folder}/file/lake.db"))
    _error(shop, "catalog", "not a directory")
    shop.write_text(whole.replace(f"sqlite:///{folder}/lake.db", f"sqlite:///{folder}/file"))
    _error(shop, "catalog", "database")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        uri = f"postgresql+psycopg://127.0.0.1:{closed.getsockname()[1]}/nothing"
        shop.write_text(whole.replace(f"sqlite:///{folder}/lake.db", uri))
        _error(shop, "catalog", "cannot be reached")


@pytest.mark.skipif(ON_REST, reason="its catalog is in PostgreSQL")
def test_a_catalog_in_postgresql_is_not_made(shop: Path, database: Database, role: str) -> None:
    whole, folder = shop.read_text(), shop.parent
    sqlite, uri = f"sqlite:///{folder}/lake.db", _url(database).replace("://", "+psycopg://", 1)
    shop.write_text(whole.replace(sqlite, uri))
    before = _everything(database, folder)
    _require_valid(shop)
    assert _everything(database, folder) == before
    shop.write_text(whole.replace(sqlite, _url(database, role).replace("://", "+psycopg://", 1)))
    _error(shop, "catalog", "may not create any", "GRANT CREATE")


def test_a_lake_of_another_pipeline(shop: Path, database: Database, connect: str) -> None:
    with Pipeline.open(shop, remote=connect) as pipeline:
        pipeline.init()
    _edit(shop, "name: shop", "name: other")
    _edit(shop, "slot: ", "slot: other_")
    _refused_alike(shop, "catalog", "belongs to pipeline shop", "lake.namespace")


def test_after_init_a_slot_that_is_gone_and_a_file_that_says_something_else(
    shop: Path, database: Database, connect: str
) -> None:
    with Pipeline.open(shop, remote=connect) as pipeline:
        pipeline.init()
    _edit(shop, "'b': {}", "'b': {filter: \"id > 7\"}")
    _error(shop, "tables", "slotlake backfill --table")
    _edit(shop, "'b': {filter: \"id > 7\"}", "'b': {}")
    database.execute(f"SELECT pg_drop_replication_slot('slotlake_{database.name}_shop')")
    _error(shop, "slot", "does not exist", "slotlake recover")


def test_a_spark_server_that_does_not_answer(shop: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        shop.write_text(f"{shop.read_text()}spark:\n  remote: sc://127.0.0.1:{closed.getsockname()[1]}\n")
        _error(shop, "Spark", "does not answer")


def test_a_machine_without_java(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slotlake.infra.local import java

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "_bundled", lambda: None)
    _error(shop, "Spark", "no Java", "Java 17 or 21")


@needs_a_folder
def test_a_disk_that_is_full_or_too_small(shop: Path, database: Database) -> None:
    if os.geteuid() != 0:
        pytest.skip("a small disk is a tmpfs, which only root can mount")
    database.execute("INSERT INTO a SELECT g, repeat(md5(g::text), 20) FROM generate_series(101, 20000) g")
    with small_disk(8) as disk:
        _edit(shop, f"{shop.parent}/warehouse", f"{disk.place}/warehouse")
        (found,) = _of(validate(shop), "disk")
        assert found.result == "warning", found
        assert "the next run copies" in found.what
        disk.fill()
        report = validate(shop)
        assert not report.valid
        assert any(check.result == "error" and "is full" in check.what for check in _of(report, "disk"))
        disk.free()
