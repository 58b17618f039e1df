"""Tables set aside: by the command, on each kind of catalog, and killed with SIGKILL."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import ProtocolError
from slotlake.infra.cli.main import main
from slotlake.spark.catalog.rest.catalog import RestPointers
from tests.catalogs import postgres_uri
from tests.conftest import Database, fresh_database
from tests.e2e.aside_causes import BAD, encoded_database, five_rows
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.e2e.test_crash import run_cli

pytestmark = pytest.mark.timeout(600)
LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))


@pytest.fixture
def bytes_database(database: Database) -> Iterator[Database]:
    """A database that takes any bytes for text."""
    with encoded_database(database.server, f"{database.name}_bytes", "SQL_ASCII") as made:
        yield made


def _spoil(database: Database, *tables: str) -> None:
    for table in tables:
        database.execute(f"INSERT INTO {table} VALUES (6, {BAD})")


def _correct(database: Database, *tables: str) -> None:
    for table in tables:
        database.execute(f"UPDATE {table} SET v = 'corrected' WHERE id = 6")


def test_the_command(
    bytes_database: Database, session: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Wrong names are mistakes, one table's refusal keeps no other back, and JSON is one document."""
    database = bytes_database
    names = five_rows(database, "good", "bad", "worse")
    file = str(pipeline_file(tmp_path, database, names))

    def run(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(list(arguments))
        told = capfd.readouterr()
        return code, told.out, told.err

    assert run("init", file)[0] == 0
    _spoil(database, "bad", "worse")
    code, out, _ = run("sync", file)
    assert code == 0
    assert "public.bad is set aside" in out
    assert "column 'v'" in out
    assert run("status", file)[0] == 0
    code, out, _ = run("status", file, "--check", "--json")
    status = json.loads(out)
    assert code == 12
    assert [each["table"] for each in status["set_aside"]] == ["bad", "worse"]
    assert all("slotlake resume" in alarm["way_out"] for alarm in status["alarms"])
    for name, said in (
        ('bad."x', "not a table name"),
        ("", "not a table name"),
        ("nosuch", "no table nosuch"),
    ):
        for arguments in (("resume", file, name), ("backfill", file, "--table", name)):
            code, out, error = run(*arguments)
            assert (code, out) == (2, ""), arguments
            assert "what to do:" in error, arguments
            assert "Traceback" not in error, arguments
            assert said in error
    code, _, error = run("resume", file, "bad")
    assert code == 5
    assert "column 'v'" in error
    assert "public.bad" in error
    assert "not set aside" in run("resume", "good", file)[1]

    # One that cannot come back yet, whether named first or last, keeps none of the others from it.
    _correct(database, "worse")
    code, out, error = run("resume", file, "bad", "public.worse", "--json")
    assert code == 5
    assert error.count("not resumed") == 1
    assert "bad is not resumed" in error
    assert [(each["table"], each["rows"]) for each in json.loads(out)] == [("public.worse", 6)]
    _correct(database, "bad")
    code, out, error = run("resume", file, "bad", "worse")
    assert code == 0
    assert "6 rows copied" in out
    assert "public.worse is not set aside" in out
    assert run("status", file, "--check")[0] == 0
    assert run("verify", file)[0] == 0


CATALOGS = ["sqlite", "postgresql", "rest", "per_table"]


@pytest.mark.parametrize("catalog", CATALOGS if LONG else ["per_table"])
def test_every_catalog(
    bytes_database: Database, session: Any, request: pytest.FixtureRequest, tmp_path: Path, catalog: str
) -> None:
    """With a history, without a key, while it joins: others are followed, all are equal at the end."""
    database = bytes_database
    with ExitStack() as stack:
        uri: Callable[[], str] = {
            "sqlite": lambda: f"sqlite:///{tmp_path}/lake.db",
            "postgresql": lambda: postgres_uri(stack.enter_context(fresh_database(database.server))),
        }.get(catalog, lambda: str(request.getfixturevalue("rest")))
        five_rows(database, "good", "bad", "bag", "late")
        database.execute(
            f"ALTER TABLE bag DROP CONSTRAINT bag_pkey; ALTER TABLE bag REPLICA IDENTITY FULL;"
            f"CREATE PUBLICATION n{database.name} FOR TABLE good, bad, bag"
        )
        extra = "  bad: {mode: [mirror, history, append]}\n"
        file = pipeline_file(tmp_path, database, [], name=f"n{database.name}", uri=uri(), extra=extra)
        if catalog == "per_table":
            stack.enter_context(pytest.MonkeyPatch.context()).setattr(RestPointers, "together", False)
            file.write_text(file.read_text().replace("lake:\n", "lake:\n  publish: per_table\n", 1))
        pipeline = stack.enter_context(Pipeline.open(file))
        pipeline.init()
        database.execute(f"ALTER PUBLICATION n{database.name} ADD TABLE late")
        _spoil(database, "bad", "bag", "late")
        database.execute("UPDATE good SET v = 'x'")
        assert set(pipeline.sync().set_aside) == {"public.bad", "public.bag", "public.late"}
        assert_equal(database, pipeline, ["good"])
        database.execute(
            "DELETE FROM bad WHERE id = 2; INSERT INTO bag VALUES (9, 'x'); DELETE FROM good WHERE id = 1"
        )
        _correct(database, "bad")
        assert pipeline.resume("bad").rows == 5
        assert_equal(database, pipeline, ["good", "bad"])
        _correct(database, "bag", "late")
        database.execute("UPDATE bad SET v = 'followed'; DELETE FROM good WHERE id = 2")
        assert set(pipeline.sync().resumed) == {"public.bag", "public.late"}
        database.execute(
            "DELETE FROM bad WHERE id = 3; INSERT INTO bag VALUES (9, 'x'); UPDATE late SET v = 'y'"
        )
        pipeline.sync()
        assert_equal(database, pipeline, ["good", "bad", "bag", "late"])
        assert pipeline.verify().equal
        held = pipeline.query("SELECT id, v FROM bad__history WHERE valid_to_lsn IS NULL ORDER BY id").rows
        assert list(held) == [("1", "followed"), ("4", "followed"), ("5", "followed"), ("6", "followed")]


KILLED_AT = {
    "sync": ["aside.written", "apply.mid_merge", "publish.before_swap", "publish.after_swap"],
    "resume": ["init.mid_copy", "apply.between_modes", "publish.before_swap", "publish.after_swap:2"],
}
FEW = {"resume": ["publish.after_swap:2"]}


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_killed(bytes_database: Database, connect: str, tmp_path: Path) -> None:
    """SIGKILL between the record and the publication, in the copy that brings a table back, and behind it."""
    database = bytes_database
    file = pipeline_file(
        tmp_path, database, five_rows(database, "good", "bad"), extra="mode: [mirror, history]\n"
    )
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.init()
        for step, failpoints in (KILLED_AT if LONG else FEW).items():
            for failpoint in failpoints:
                _spoil(database, "bad")
                database.execute("UPDATE good SET v = v || 'x'")
                if step == "resume":
                    assert list(pipeline.sync().set_aside) == ["public.bad"]
                    _correct(database, "bad")
                    database.execute("UPDATE good SET v = v || 'y'")
                tables = ["bad"] if step == "resume" else []
                killed = run_cli(connect, [step, str(file), *tables], failpoint)
                assert killed.returncode == -9, (step, failpoint, killed.stderr)
                if step == "sync":
                    assert list(pipeline.sync().set_aside) == ["public.bad"], failpoint
                    assert_equal(database, pipeline, ["good"])
                    _correct(database, "bad")
                pipeline.resume("bad")
                database.execute("DELETE FROM bad WHERE id = 6; UPDATE bad SET v = v || 'z'")
                report = pipeline.sync()
                assert (report.set_aside, failpoint) == ({}, failpoint)
                assert_equal(database, pipeline, ["good", "bad"])
        assert pipeline.verify().equal


def test_bytes_in_a_database_of_utf8(database: Database, session: Any, tmp_path: Path) -> None:
    """Bytes that are no text, as a function written in C can leave them: nobody has checked them."""
    file = pipeline_file(tmp_path, database, five_rows(database, "good", "bad"))
    database.execute("CREATE CAST (bytea AS text) WITHOUT FUNCTION")
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        database.execute(r"INSERT INTO bad VALUES (6, '\xfffe81'::bytea::text); UPDATE good SET v = 'x'")
        told = pipeline.sync().set_aside
        assert list(told) == ["public.bad"]
        assert "column 'v'" in told["public.bad"]
        assert_equal(database, pipeline, ["good"])
        with pytest.raises(ProtocolError, match=r"column 'v', table public\.bad"):
            pipeline.resume("bad")

        # To leave the column out, as the error says, lets it be followed again, however often it was tried.
        pipeline.sync()
        pipeline.sync()
        assert pipeline.sync().resumed == []
    asked = file.read_text()
    file.write_text(asked.replace("'bad': {}", "'bad': {columns: [id]}"))
    with Pipeline.open(file) as pipeline:
        assert pipeline.sync().resumed == ["public.bad"]
        assert sorted(pipeline.rows("bad")) == [(str(number),) for number in range(1, 7)]
        database.execute("DELETE FROM bad WHERE id = 1; UPDATE good SET v = 'y'")
        assert pipeline.sync().set_aside == {}
        assert_equal(database, pipeline, ["good"])
        assert len(list(pipeline.rows("bad"))) == 5
