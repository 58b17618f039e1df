"""`slotlake new`: from an empty folder to the first sync, with only what it prints; no password anywhere."""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from slotlake.bench.typed.tutorial import blocks
from slotlake.decoder.errors import PipelineFileError, SourceError
from slotlake.infra.cli.main import main
from slotlake.infra.config.new_file import NAME, NewFile
from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.infra.local.postgres import USER, temporary_postgres
from slotlake.infra.making import fitting_name
from tests.conftest import ROOT, Database
from tests.e2e.test_shell import until
from tests.recordings import recorded

pytestmark = pytest.mark.timeout(300)
TABLES = (
    "CREATE TABLE orders (id int PRIMARY KEY, total numeric);"
    "INSERT INTO orders SELECT g, g FROM generate_series(1, 1000) g;"
    'CREATE TABLE "Odd, Name" (a int); ALTER TABLE "Odd, Name" REPLICA IDENTITY FULL;'
    "CREATE SCHEMA shop; CREATE TABLE shop.years (y int PRIMARY KEY) PARTITION BY LIST (y);"
    "CREATE TABLE shop.y1 PARTITION OF shop.years FOR VALUES IN (1); CREATE TABLE loose (a int);"
    "CREATE VIEW seen AS SELECT 1; CREATE UNLOGGED TABLE fast (id int PRIMARY KEY)"
)


def _run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command in that folder, without a terminal."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "slotlake", *arguments],
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def _next(text: str) -> list[list[str]]:
    """The commands that come next, as they are printed."""
    lines = text.partition("What comes next:\n")[2].splitlines()
    return [shlex.split(line, comments=True) for line in lines]


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute(TABLES)
    return database


def test_from_an_empty_folder_to_the_first_sync(shop: Database, connect: str, tmp_path: Path) -> None:
    """The password is given as a part of the argument: it is neither printed nor written."""
    url, password = shop.server.url(shop.name), shop.server.password
    options = ["--tables", "orders", "--tables", '"Odd, Name" shop.years', "--yes"]
    done = _run(tmp_path, "new", "shop.yaml", "--dsn", url, *options)
    assert done.returncode == 0, done.stderr
    assert password not in done.stdout + done.stderr
    assert password not in (tmp_path / "shop.yaml").read_text()
    assert "env:NAME" in done.stderr
    for words in (
        "public.orders: 80.0 kB, key id, replica identity default",
        "numeric without precision is text in the lake: public.orders.total",
        'public."Odd, Name": 0 B, no key, replica identity full',
        "shop.years: 0 B, key y, replica identity default, partitioned",
        "public.loose: 0 B, no key, replica identity default",
        "it has no key",
        "shop.yaml is written: 0 errors, 1 warning",
    ):
        assert words in done.stdout, done.stdout
    for words in ("shop.y1", "seen", "fast"):
        assert words not in done.stdout
    export, *commands = _next(done.stdout)
    assert export[0] == "export"
    variable = export[1].partition("=")[0]
    said = {}
    for program, command, *arguments in commands:
        assert program == "slotlake"
        if command == "sync":
            shop.execute("INSERT INTO orders VALUES (0, 1)")
        ran = _run(tmp_path, command, *arguments, **{variable: url, "SLOTLAKE_SPARK_REMOTE": connect})
        assert ran.returncode == 0, ran.stderr
        said[command] = ran.stdout
    assert list(said) == ["init", "sync", "verify"]
    assert "public.orders: 1 change" in said["sync"]
    assert "equal" in said["verify"]
    assert (tmp_path / "lake.db").exists()
    assert not list(tmp_path.glob("*.sql"))


def test_all_tables_by_a_variable(shop: Database, tmp_path: Path) -> None:
    done = _run(tmp_path, "new", "--dsn", "env:MY_DSN", "--yes", "--lake", str(tmp_path / "far" / "lake"),
                MY_DSN=shop.dsn)  # fmt: skip
    assert done.returncode == 0, done.stderr
    file = load_pipeline(tmp_path / f"{shop.name}.yaml")
    assert list(file.tables) == ['public."Odd, Name"', "public.loose", "public.orders", "shop.years"]
    assert file.source.dsn.get_secret_value() == "env:MY_DSN"
    assert file.lake_uri() == f"sqlite:///{tmp_path}/far/lake.db"
    assert [command[1] for command in _next(done.stdout)] == ["init", "sync", "verify"]


def test_a_server_without_logical_decoding(tmp_path: Path) -> None:
    """The file is written all the same; what is printed mends the server."""
    with temporary_postgres() as server:
        database = Database(server, "postgres")
        database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        database.execute("ALTER SYSTEM SET wal_level = 'replica'")
        server.restart()
        done = _run(tmp_path, "new", "shop.yaml", "--dsn", "env:MY_DSN", "--yes", MY_DSN=database.dsn)
        assert done.returncode == 1
        (statement,) = set(re.findall("ALTER SYSTEM SET wal_level = 'logical'", done.stdout))
        commands = [command[1] for command in _next(done.stdout)]
        assert commands == ["validate", "init", "sync", "verify"]
        assert not list(tmp_path.glob("*.sql"))  # it is a superuser
        database.execute(statement)
        server.restart()
        assert _run(tmp_path, "validate", "shop.yaml", MY_DSN=database.dsn).returncode == 0


def test_a_role_without_rights(shop: Database, tmp_path: Path) -> None:
    """The SQL next to the file, run by a superuser as it is printed, is all that the role lacks."""
    role, server = f"poor_{shop.name}", shop.server
    shop.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{server.password}'")
    try:
        dsn = server.dsn(shop.name, user=role)
        (tmp_path / "other.sql").write_text("-- mine")
        arguments = ["--dsn", "env:MY_DSN", "--yes", "--tables", "orders"]
        done = _run(tmp_path, "new", "other.yaml", *arguments, MY_DSN=dsn)
        assert _next(done.stdout)[0] == ["slotlake", "init", "other.yaml", "--print-sql"]
        assert (tmp_path / "other.sql").read_text() == "-- mine"
        done = _run(tmp_path, "new", "shop.yaml", *arguments, MY_DSN=dsn)
        assert done.returncode == 1
        assert "may not use replication" in done.stdout
        assert "GRANT SELECT" in done.stdout
        psql, *commands = _next(done.stdout)
        assert psql == ["psql", "-d", shop.name, "-f", "shop.sql"]
        assert commands[0] == ["slotlake", "validate", "shop.yaml"]
        subprocess.run(
            [server.program("psql"), "-v", "ON_ERROR_STOP=1", *psql[1:]],
            cwd=tmp_path,
            env={**os.environ, **server.client_environment(), "PGUSER": USER},
            check=True,
            capture_output=True,
        )
        checked = _run(tmp_path, *commands[0][1:], MY_DSN=dsn)
        assert checked.returncode == 0, checked.stdout
    finally:
        shop.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.fixture
def here(shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in this process: no terminal, and the variables MY_DSN and EMPTY."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setenv("MY_DSN", shop.dsn)
    monkeypatch.setenv("EMPTY", shop.server.dsn("template1"))
    return tmp_path


def test_without_a_terminal_a_missing_option_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*options: str) -> str:
        assert main(["new", *options]) == PipelineFileError.exit_code
        return capsys.readouterr().err

    assert "give --dsn, --name, --tables, --lake; or --dsn and --yes" in refused()
    assert "give --name, --tables; or --yes" in refused("--dsn", "env:MY_DSN", "--lake", "lake")
    assert "give --dsn" in refused("--yes")
    every = ["--dsn", "env:MY_DSN", "--name", "shop", "--tables", "orders", "--lake", "lake"]
    assert main(["new", *every]) == 0
    before = (here / "shop.yaml").read_text()
    assert "--overwrite" in refused(*every)
    assert "--overwrite" in refused("shop.yaml", "--yes", "--dsn", "env:MY_DSN")
    assert (here / "shop.yaml").read_text() == before
    every[5] = "loose"
    assert main(["new", *every, "--overwrite"]) == 0
    assert list(load_pipeline(here / "shop.yaml").tables) == ["public.loose"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dsn", "env:NOBODY_SETS_THIS"], "NOBODY_SETS_THIS is not set"),
        (["--dsn", "postgresql://a:secr3t@127.0.0.1:1/x"], "cannot be reached"),
        (["--dsn", "postgresql://a:secr3t@[x"], "not a connection string"),
        (["--dsn", "env:MY_DSN", "--name", "My Shop"], "a letter first"),
        (["--dsn", "env:MY_DSN", "--lake", "S3://bucket/x"], "lower case"),
        (["--dsn", "env:MY_DSN", "--tables", "ordres"], "did you mean public.orders?"),
        (["--dsn", "env:MY_DSN", "--tables", "shop.y1"], "has no table shop.y1 that can be published"),
        (["--dsn", "env:MY_DSN", "--tables", "a.b.c"], "has no table a.b.c"),
        (["--dsn", "env:EMPTY"], "has no table that can be published"),
        (["nowhere/shop.yaml", "--dsn", "env:MY_DSN"], "cannot be written"),
    ],
)
def test_a_wrong_option_leaves_nothing(
    here: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "--yes", *options]) in {PipelineFileError.exit_code, SourceError.exit_code}
    said = capsys.readouterr()
    assert words in said.err
    assert "what to do: " in said.err
    assert "secr3t" not in said.out + said.err
    assert list(here.iterdir()) == []


@contextmanager
def _terminal(
    folder: Path, *arguments: str, **variables: str
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "slotlake", "new", *arguments],
        cwd=folder,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "dumb", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **variables},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (`&` ignores it)
    )
    os.close(slave)
    try:
        yield master, process
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_at_a_terminal(shop: Database, tmp_path: Path) -> None:
    """A wrong answer is asked for again; a default is taken by Enter; numbers are those of the list."""
    with _terminal(tmp_path, MY_DSN=shop.dsn) as (terminal, process):
        screen = until(terminal, "", "env:NAME:")
        for question, answer in (
            ("env:NAME:", "env:NOBODY_SETS_THIS"),
            (f"pipeline [{shop.name}]:", "env:MY_DSN"),
            (f"pipeline [{shop.name}]:", "My Shop"),
            ("[lake]:", "shop"),
            ("[all]:", ""),
            ("[all]:", "ordrs"),
        ):
            os.write(terminal, f"{answer}\n".encode())
            screen = until(terminal, screen, question)
        os.write(terminal, b'1 shop.years, public."Odd, Name"\n')
        screen = until(terminal, screen, "slotlake verify shop.yaml")
        assert process.wait(30) == 0
    assert "did you mean public.orders?" in screen
    assert shop.server.password not in screen
    tables = load_pipeline(tmp_path / "shop.yaml").tables
    assert list(tables) == ["public.orders", "shop.years", 'public."Odd, Name"']


def test_what_a_person_sees(database: Database, tmp_path: Path) -> None:
    """As docs/recordings.md shows it."""
    database.execute(blocks()[0].text)
    with _terminal(tmp_path, SHOP_DSN=database.dsn, COLUMNS="100") as (terminal, process):
        screen = until(terminal, "", "env:NAME: ")
        for answer, next_question in (
            ("env:SHOP_DNS", "env:NAME: "),
            ("env:SHOP_DSN", f"pipeline [{database.name}]: "),
            ("shop", "[lake]: "),
            ("", "[all]: "),
            ("customers, ordrs", "[all]: "),
            ("1 2", "slotlake verify shop.yaml"),
        ):
            os.write(terminal, f"{answer}\n".encode())
            screen = until(terminal, screen, next_question)
        assert process.wait(30) == 0
    screen = re.sub(
        "port=[0-9]+", "port=5432", screen.replace("\r\n", "\n").replace(database.name, "postgres")
    )
    recorded("slotlake new", f"$ slotlake new\n{screen}")


def test_ctrl_c_at_a_question(shop: Database, tmp_path: Path) -> None:
    with _terminal(tmp_path, "--dsn", "env:MY_DSN", MY_DSN=shop.dsn) as (terminal, process):
        screen = until(terminal, "", f"pipeline [{shop.name}]:")
        # One that comes just before the prompt listens is seen at the next key: people press it again, too.
        screen = until(terminal, screen, "interrupted", partial(process.send_signal, signal.SIGINT))
        assert process.wait(30) == 130
    assert "Traceback" not in screen
    assert list(tmp_path.iterdir()) == []


def test_ctrl_d_at_a_question(shop: Database, tmp_path: Path) -> None:
    with _terminal(tmp_path, "--dsn", "env:MY_DSN", MY_DSN=shop.dsn) as (terminal, process):
        screen = until(terminal, "", f"pipeline [{shop.name}]:")
        os.write(terminal, b"\x04")
        screen = until(terminal, screen, "--yes answer all questions")
        assert process.wait(30) == PipelineFileError.exit_code
    assert "\nslotlake: no file was written" in screen
    assert "interrupted" not in screen
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["Shop", "24/7", "Größe", "", "a" * 99, "no", "--", "My Shop!"])
def test_every_name_becomes_one_that_fits(text: str, tmp_path: Path) -> None:
    name = fitting_name(text)
    assert NAME.fullmatch(name)
    draft = NewFile(name, "postgresql://h/d?options=-c%20x # '\"", f"{text}:{{}}", ["  a: {}"]).draft(
        tmp_path / "x"
    )
    assert (draft.name, draft.lake.warehouse, list(draft.tables)) == (name, f"{text}:{{}}", ["a"])
