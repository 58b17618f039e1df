"""docs/tutorial.md from its first command to its last, as a newcomer types them, with its answers."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Database

pytestmark = pytest.mark.timeout(600)

PAGE = ROOT / "docs" / "tutorial.md"
_BLOCK = re.compile(r"^```(sh|sql|python|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_MINUTES_MAX = 10


def test_every_command_and_answer_of_the_page(database: Database, connect: str, tmp_path: Path) -> None:
    """Ten minutes at most, though a person who reads takes longer than this test."""
    launcher = tmp_path / "slotlake"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m slotlake "$@"\n')
    launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR)
    environment = {
        **os.environ, "SHOP_DSN": database.dsn, "SLOTLAKE_SPARK_REMOTE": connect, "COLUMNS": "120",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
    }  # fmt: skip
    began, said = time.monotonic(), ""
    for kind, text in _BLOCK.findall(PAGE.read_text()):
        if kind == "text":
            _require(text, said)
            continue
        if text.startswith("export SHOP_DSN="):
            continue
        said = _ran(kind, text, database, environment, tmp_path)
    assert time.monotonic() - began < _MINUTES_MAX * 60
    assert database.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    ) == [(0,)]


def _ran(kind: str, text: str, database: Database, environment: dict[str, Any], folder: Path) -> str:
    """Run a block; what it printed."""
    if kind == "sql":
        database.execute(text)
        return ""
    command = ["bash", "-ec", text] if kind == "sh" else [sys.executable, "-c", text]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, (text, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout


def _require(shown: str, said: str) -> None:
    """The lines that are shown come in this order, whatever stands between them."""
    for line in shown.splitlines():
        found = re.search(".*?".join(map(re.escape, line.split("…"))), said)
        assert found is not None, (line, said)
        said = said[found.end() :]
