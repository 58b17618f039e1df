# ruff: noqa: E501 - one case a line
"""`slotlake decode`: every plugin, a recording, a consumer of one's own; nothing consumed unless asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slotlake.infra.cli.main import main
from tests.conftest import ROOT, Database
from tests.decoder.sources import confirmed_flush, settings, slotted

VECTORS = Path(__file__).parents[2] / "vectors" / "plugins" / "pg15"
CONSUMER = """
class Counting:
    def begin(self, transaction): self.rows = 0
    def change(self, transaction, change): self.rows += 1
    def commit(self, transaction): print(transaction.xid, self.rows)

class Failing(Counting):
    def change(self, transaction, change): raise ValueError("a secret " + str(change.new))

class Partial(Counting):
    def stream_start(self, transaction): pass
"""


def decoded(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["decode", *arguments]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def source(database: Database) -> Database:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    return database


def test_a_slot_its_recording_and_then_no_more(
    source: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slotted(source)
    source.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    slot = ["--dsn", source.dsn, "--slot", settings(source).slot]
    shown = decoded(capsys, *slot, "--record", str(tmp_path / "raw"))
    assert [(r["kind"], r["new"]["id"]) for r in shown] == [("insert", "1"), ("insert", "2")]
    assert decoded(capsys, "--file", str(tmp_path / "raw")) == shown
    before = confirmed_flush(settings(source))
    assert decoded(capsys, *slot) == shown, "looking consumes nothing"
    assert confirmed_flush(settings(source)) == before
    assert decoded(capsys, *slot, "--consume") == shown
    assert confirmed_flush(settings(source)) > before
    source.execute("INSERT INTO t VALUES (3, 'c')")
    assert [r["new"]["id"] for r in decoded(capsys, *slot)] == ["3"]


@pytest.mark.parametrize("way", ["pgoutput", "test_decoding", "wal2json-1", "wal2json-2", "decoderbufs"])
def test_recordings_of_every_plugin(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = decoded(capsys, "--file", str(VECTORS / f"{way}.slraw"))
    moved = next(r for r in shown if r.get("table") == "plain" and r["kind"] == "update" and r["old"])
    assert (moved["old"], moved["new"]["id"]) == ({"id": "2"}, "20")
    touched = next(r for r in shown if r.get("table") == "toasted" and r["kind"] == "update")
    assert sorted(touched["unchanged"]) == ["big", "bin"]
    assert "big" not in touched["new"]


def test_a_consumer_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_consumer.py").write_text(CONSUMER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    recording = str(VECTORS / "pgoutput.slraw")
    assert main(["decode", "--file", recording, "--consumer", "own_consumer:Counting"]) == 0
    rows = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert rows[:4] == ["2", "1", "1", "1"]
    assert main(["decode", "--file", recording, "--consumer", "own_consumer:Failing"]) == 11
    said = capsys.readouterr().err
    assert "in callback change, transaction " in said
    assert ", at 0/" in said
    assert "ValueError" in said
    assert "own_consumer.py, line 8" in said
    assert "secret" not in said
    assert main(["decode", "--file", recording, "--consumer", "own_consumer:Partial"]) == 11
    assert "stream_stop, stream_abort, stream_commit, stream_change" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--slot", "s"], "needs both --dsn and --slot"),
        (["--dsn", "x", "--slot", "s", "--plugin", "mine"], "cannot read the output plugin 'mine'"),
        (["--dsn", "x", "--slot", "s", "--file", "f"], "--file cannot be combined with"),
        (["--dsn", "x", "--slot", "s", "--plugin", "wal2json", "--publication", "p"], "has no publications"),
        (["--dsn", "x", "--slot", "s", "--plugin", "wal2json", "--option", "a"], "an option has no value"),
        (["--file", "no/such/file"], "cannot be read"),
        (["--file", str(VECTORS / "pgoutput.slraw"), "--consumer", "json:Nothing"], "the consumer 'json:Nothing' cannot be"),
    ],
)  # fmt: skip
def test_mistakes(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decode", *arguments]) in (2, 3, 5)
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_the_slot_of_another_plugin(source: Database, capsys: pytest.CaptureFixture[str]) -> None:
    slotted(source)
    slot = ["--dsn", source.dsn, "--slot", settings(source).slot]
    assert main(["decode", *slot, "--plugin", "test_decoding"]) == 4
    assert "the slot's output plugin is pgoutput, not test_decoding" in capsys.readouterr().err


@pytest.mark.parametrize(("times", "lines_read"), [(1, 0), (3000, 1)], ids=["at once", "after a line"])
def test_a_reader_that_stops_reading(source: Database, times: int, lines_read: int) -> None:
    """Quietly, also when the output fits into the pipe's buffers and is written when Python ends."""
    slotted(source)
    source.execute(f"INSERT INTO t SELECT n, repeat('x', 50) FROM generate_series(1, {times}) n")
    slot = ["--dsn", "env:SOURCE_DSN", "--slot", settings(source).slot]
    program = "import sys; from slotlake.infra.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "decode", *slot]
    dsn = {**os.environ, "SOURCE_DSN": source.dsn}
    with subprocess.Popen(
        command, cwd=ROOT, env=dsn, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if lines_read:
            assert b'"kind"' in process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == b""


def test_a_consumer_whose_reader_stops_reading(source: Database, tmp_path: Path) -> None:
    slotted(source)
    for number in range(3):
        source.execute("INSERT INTO t VALUES (%s, repeat('x', 100000))", (number,))
    (tmp_path / "loud.py").write_text(
        "class Loud:\n"
        "    def begin(self, transaction): print('x' * 100000, flush=True)\n"
        "    def change(self, transaction, change): pass\n"
        "    def commit(self, transaction): pass\n"
    )
    slot = ["--dsn", "env:SOURCE_DSN", "--slot", settings(source).slot, "--consumer", "loud:Loud"]
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from slotlake.infra.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "decode", *slot]
    dsn = {**os.environ, "SOURCE_DSN": source.dsn}
    with subprocess.Popen(
        command, cwd=tmp_path, env=dsn, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == b""
