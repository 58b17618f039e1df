"""Each command and option that a message, a help text or a page names is one that `slotlake` has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from slotlake.infra.cli.main import app
from tests.conftest import ROOT

pytestmark = pytest.mark.fast

FLOORS = ("decoder", "spark", "expectations", "infra", "dags")
COMMANDS: dict[str, Any] = vars(get_command(app))["commands"]
NAMED = re.compile(r"`slotlake (?:--log-format \S+ )?([a-z][a-z-]*)([^`]*)`")
NO_COMMANDS = {"lock", "copy", "migrate"}  # names of sessions, and what is said not to exist


def _texts(path: Path) -> Iterator[str]:
    """The strings of a module; what an f-string fills in is one word."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)


def _named(paths: list[Path]) -> Iterator[tuple[str, str, str]]:
    for path in paths:
        texts = _texts(path) if path.suffix == ".py" else [re.sub(r"\s+", " ", path.read_text())]
        for text in texts:
            for command, rest in NAMED.findall(text):
                yield path.name, command, rest


def _options(command: str) -> set[str]:
    found = COMMANDS.get(command)
    return set() if found is None else {name for each in found.params for name in each.opts} | {"--help"}


def test_commands_of_messages_and_pages_exist() -> None:
    modules = [path for floor in FLOORS for path in (ROOT / floor).rglob("*.py")]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "runbook").glob("*.md")]
    named = set(_named(modules + pages))
    assert len(named) > 100
    wrong = [
        (where, f"slotlake {command}{rest}")
        for where, command, rest in sorted(named)
        if command not in NO_COMMANDS
        and (not _options(command) or set(re.findall(r"--[a-z][a-z-]+", rest)) - _options(command))
    ]
    assert wrong == []
