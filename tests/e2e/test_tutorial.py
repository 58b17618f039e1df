"""docs/tutorial.md from its first command to its last, as a newcomer types them, with its answers."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from slotlake.bench.typed.tutorial import SECONDS_MAX, Block, blocks, environment, typed
from tests.conftest import Database
from tests.recordings import recorded

_PROGRESS = re.compile(r"(copy .*|apply|publish|compare|waiting for .*)$")
pytestmark = pytest.mark.timeout(600)


def test_every_command_and_answer_of_the_page(database: Database, connect: str, tmp_path: Path) -> None:
    """Ten minutes at most, though a person who reads takes longer than this test."""
    variables = environment(tmp_path, database.dsn) | {"SLOTLAKE_SPARK_REMOTE": connect}
    began, said, seen = time.monotonic(), "", ""
    for block in blocks():
        if block.kind == "text":
            _require(block.text, said)
            said = ""
            continue
        answer = typed(block, tmp_path, variables)
        assert "Traceback" not in answer
        said += answer
        seen += _shown(block, answer)
    assert time.monotonic() - began < SECONDS_MAX
    assert database.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    ) == [(0,)]
    seen = seen.replace(str(tmp_path), "/home/ada").replace(database.name, "postgres")
    recorded("The tutorial", re.sub("port=[0-9]+", "port=5432", seen))


def _shown(block: Block, said: str) -> str:
    """What a person sees: what is typed after its prompt, then the answer without the progress before it."""
    prompt = {"sh": "$ ", "sql": "postgres=# ", "python": ">>> "}[block.kind]
    lines = [line if line.startswith(" ") else f"{prompt}{line}" for line in block.text.strip().splitlines()]
    answer = [line for line in said.splitlines() if not _PROGRESS.match(line)]
    return "\n".join([*lines, *answer, "", ""])


def _require(shown: str, said: str) -> None:
    """The lines that are shown come in this order, whatever stands between them."""
    for line in shown.splitlines():
        found = re.search(".*?".join(map(re.escape, line.split("…"))), said)
        assert found is not None, (line, said)
        said = said[found.end() :]
