"""Each room says what others may import from it, and nobody imports anything else."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.sources import ROOT, modules, tree

pytestmark = pytest.mark.fast

FLOORS = ("decoder", "spark", "infra", "expectations", "dags", "bench")
ROOMS = sorted(
    path.parent for floor in ("decoder", "spark", "infra") for path in (ROOT / floor).glob("*/__init__.py")
)
_OTHERS_IMPORT = re.compile(r"Others import ((?:`\w+`(?:, | and )?)+)\.")


def others_import(room: Path) -> set[str]:
    """Return the modules of a room that its docstring gives to others."""
    text = " ".join((ast.get_docstring(tree(room / "__init__.py")) or "").split())
    said = _OTHERS_IMPORT.search(text)
    return set(re.findall(r"`(\w+)`", said[1])) if said else set()


@cache
def imported_from_outside() -> dict[str, set[str]]:
    """Return, per room as `floor/room`, the modules that other rooms and floors import."""
    used: dict[str, set[str]] = defaultdict(set)
    for path in modules(*FLOORS):
        here = path.relative_to(ROOT).parts[:2]
        for name in _imported(tree(path)):
            _, floor, room, module = (*name.split("."), "", "", "")[:4]
            if (floor, room) != here and _is_module(ROOT / floor / room / module):
                used[f"{floor}/{room}"].add(module)
    return used


def _is_module(path: Path) -> bool:
    return path.parent != ROOT and (path.with_suffix(".py").exists() or (path / "__init__.py").exists())


def _imported(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("slotlake."):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("slotlake."))


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.relative_to(ROOT).as_posix())
def test_a_room_names_what_others_import(room: Path) -> None:
    assert others_import(room) == imported_from_outside().get(room.relative_to(ROOT).as_posix(), set())
