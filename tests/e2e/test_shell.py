"""`slotlake shell`: many questions to one pinned point, from a pipe and at a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.infra.cli.main import main
from tests.conftest import Database, fresh_database
from tests.e2e.oracle import pipeline_file

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def shop(pg: Any, session: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, Path]]:
    with fresh_database(pg) as database:
        database.execute(
            "CREATE TABLE items (id int PRIMARY KEY, n numeric(6,2));"
            "INSERT INTO items VALUES (1, 1.50), (2, NULL)"
        )
        file = pipeline_file(tmp_path_factory.mktemp("shell"), database, ["items"])
        with Pipeline.open(file) as pipeline:
            pipeline.init()
            database.execute("INSERT INTO items VALUES (3, 3)")
            pipeline.sync()
        yield database, file


def _ask(monkeypatch: pytest.MonkeyPatch, file: Path, text: str, *options: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return main(["shell", str(file), *options])


def test_statements_and_commands_from_a_pipe(
    shop: tuple[Database, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, file = shop
    text = """\\d
\\d items
\\d public.items
\\point
SELECT count(*) AS n,
       'a;b' AS "x;y" -- not here;
FROM items;
SELECT 7 AS seven; SELECT 8 AS eight;
\\?
SELECT max(n) AS last FROM items
"""
    assert _ask(monkeypatch, file, text) == 0
    said = capsys.readouterr()
    assert said.err == ""
    for part in (
        "items",
        "public.items",
        "decimal(6,2)",
        "numeric",
        "a;b",
        "x;y",
        "seven",
        "eight",
        "3.00",
    ):
        assert part in said.out, part
    assert "slotlake>" not in said.out


def test_an_error_does_not_end_it_and_is_its_exit_code(
    shop: tuple[Database, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, file = shop
    assert (
        _ask(monkeypatch, file, "SELECT nothing FROM items;\n\\nonsense\nSELECT 7 AS n;\n\\d missing\n") == 7
    )
    said = capsys.readouterr()
    assert "7" in said.out
    assert "nothing" in said.err
    assert "no command \\nonsense" in said.err
    assert "no table missing" in said.err


def test_a_closed_input_is_an_empty_one(
    shop: tuple[Database, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as Python has it after <&-
    assert main(["shell", str(shop[1])]) == 0
    assert capsys.readouterr() == ("", "")


def test_the_point_stays_until_another_is_pinned(
    shop: tuple[Database, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    database, file = shop
    with Pipeline.open(file) as pipeline:
        old = pipeline.query("SELECT min(lsn) FROM commits").rows[0][0]
        queries = pipeline.pinned_queries()
        database.execute("INSERT INTO items VALUES (4, 4)")
        pipeline.sync()
        assert queries.ask("SELECT count(*) FROM items").rows == [("3",)]
        queries.pin(None)
        assert queries.ask("SELECT count(*) FROM items").rows == [("4",)]
    asked = "SELECT count(*) FROM items;\n"
    text = f"{asked}\\point {old}\n{asked}\\point latest\n{asked}\\point nonsense\n{asked}\\q\nSELECT 1;\n"
    assert _ask(monkeypatch, file, text, "--json") == 2
    said = capsys.readouterr()
    rows = [json.loads(line)["rows"] for line in said.out.splitlines() if line.startswith("{")]
    assert rows == [[["4"]], [["2"]], [["4"]], [["4"]]]
    assert "neither an LSN" in said.err


def test_spark_answers_if_it_is_asked_for(
    shop: tuple[Database, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, file = shop
    assert _ask(monkeypatch, file, "SELECT size(array(1, 2)) AS n;\n", "--engine", "spark", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [["2"]]
    assert _ask(monkeypatch, file, "SELECT 1;\n", "--engine", "trino") == 2
    assert "no engine 'trino'" in capsys.readouterr().err


def test_at_a_terminal(shop: tuple[Database, Path]) -> None:
    """Prompts, a second line of a statement, a history that is kept, Ctrl-C, and the end by Ctrl-D."""
    _, file = shop
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "slotlake", "shell", str(file)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "dumb"},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (`&` ignores it)
    )
    os.close(slave)
    try:
        screen = until(master, "", "slotlake> ")
        os.write(master, b"SELECT count(*) AS counted\n")
        screen = until(master, screen, "-> ")
        os.write(master, b"FROM items;\n")
        screen = until(master, screen, "row at")
        os.write(master, b"SELECT 'unfinished\n")
        screen = until(master, screen, "-> ")
        process.send_signal(signal.SIGINT)
        # One that comes just before the prompt listens is seen at the next key: people press it again, too.
        screen = until(master, screen, "slotlake> ", partial(process.send_signal, signal.SIGINT))
        os.write(master, b"\x04")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert "counted" in screen
    history = file.parent / ".slotlake" / "shop" / "shell_history"
    assert "FROM items;" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def until(terminal: int, screen: str, wanted: str, press: Callable[[], None] | None = None) -> str:
    """What is on the screen once something new on it has these words; ``press``: while it is silent."""
    start, deadline = len(screen), time.monotonic() + 60
    while wanted not in screen[start:]:
        assert time.monotonic() < deadline, screen
        if select.select([terminal], [], [], 2.0 if press else 60.0)[0]:
            screen += os.read(terminal, 4096).decode(errors="replace")
        elif press is not None:
            press()
    return screen
