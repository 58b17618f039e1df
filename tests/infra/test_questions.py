"""A command that asks a question, and whose input ends before the answer."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.cli.main import main
from tests.conftest import ROOT

pytestmark = pytest.mark.fast

# The port is one at which nobody listens: each question comes before the first connection.
FILE = """name: shop
source: {dsn: "postgresql://u@127.0.0.1:1/d", publications: [shop], slot: s}
lake: {uri: "sqlite:///lake.db", warehouse: lake, namespace: shop}
"""


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("command", "unchanged", "options"),
    [
        (["drop", "shop.yaml"], "nothing was dropped", "--yes answers"),
        (["drop", "shop.yaml", "--lake"], "nothing was dropped", "--yes answers"),
        (["init", "shop.yaml", "--ddl-trigger"], "nothing was installed", "--yes answers"),
        (["new", "other.yaml"], "no file was written", "--dsn and --yes answer"),
    ],
    ids=["drop", "drop --lake", "init", "new"],
)
@pytest.mark.parametrize("typed", ["", "perhaps\n", None], ids=["empty", "no answer", "closed"])
def test_the_input_ends_at_a_question(
    command: list[str],
    unchanged: str,
    options: str,
    typed: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "shop.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", None if typed is None else _Terminal(typed))
    assert main(command) == PipelineFileError.exit_code
    said = capsys.readouterr()
    if command[0] == "new" and typed is None:  # no terminal, so it does not begin to ask
        assert "--dsn and --yes" in said.err
    else:
        assert said.err.splitlines()[-3].startswith(f"slotlake: {unchanged}")
        assert options in said.err.splitlines()[-1]
        asked_on = said.out if command[0] == "new" else said.err
        assert re.search(rf"(^|[:\]] ?\n)(slotlake: {unchanged}|$)", asked_on), (
            "the error has lines of its own"
        )
    assert "interrupted" not in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["shop.yaml"]


@pytest.mark.parametrize("command", ["drop --json", "init --ddl-trigger --json"])
def test_no_is_an_answer(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not an interruption; and what reads the JSON on standard output does not meet a question."""
    (tmp_path / "shop.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", _Terminal("n\n"))
    name, *options = command.split()
    assert main([name, "shop.yaml", *options]) == 1
    said = capsys.readouterr()
    assert not said.out.strip()  # Python's input() writes a space
    assert said.err.splitlines()[-1].endswith(("nothing was dropped", "nothing was installed"))
    assert "interrupted" not in said.err


def test_ctrl_c_at_a_question_is_still_an_interruption(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(FILE)
    command = [sys.executable, "-P", "-m", "slotlake", "drop", "shop.yaml"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    # In a process of its own: an interruption ends the Java of its process, and that of the tests is shared.
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdin=pipe, stdout=pipe, stderr=pipe
    ) as asked:
        assert asked.stderr is not None
        assert asked.stderr.read(1), "it asks"
        asked.send_signal(signal.SIGINT)
        _, errors = asked.communicate(timeout=60)
    assert asked.returncode == 130
    assert errors.startswith(b"slotlake: interrupted")
    assert b"Traceback" not in errors
