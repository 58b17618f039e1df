"""Which functions of infra a call reaches, and where they hand the open pipeline on.

Read from the source alone. A call is followed where its name says what is called: a function or class that
is imported or of the same module, a method of `self`, or of an object that is made in the same expression.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
START: Final = ("slotlake.infra.sync.catch_up", "Sync.catch_up")
_Name = tuple[str, str]


@dataclass(frozen=True)
class _Function:
    """A function of a module, or `Class.method`, with what the module imports."""

    module: str
    owner: str
    node: ast.FunctionDef
    imports: dict[str, _Name]

    def called(self, function: ast.expr) -> _Name | None:
        """What an expression names that is called; None if that is not plain."""
        if isinstance(function, ast.Name):
            return self.imports.get(function.id, (self.module, function.id))
        if not isinstance(function, ast.Attribute):
            return None
        if isinstance(function.value, ast.Call):
            made = self.called(function.value.func)
            return None if made is None else (made[0], f"{made[1]}.{function.attr}")
        if not isinstance(function.value, ast.Name):
            return None
        if function.value.id in ("self", "cls"):
            return self.module, f"{self.owner}.{function.attr}"
        module, name = self.imports.get(function.value.id, (self.module, function.value.id))
        inside = (f"{module}.{name}", function.attr)
        return inside if inside in _functions() else (module, f"{name}.{function.attr}")


@cache
def _functions() -> dict[_Name, _Function]:
    found = {}
    for path in sorted((ROOT / "infra").rglob("*.py")):
        module = ".".join(("slotlake", *path.relative_to(ROOT).with_suffix("").parts))
        tree = ast.parse(path.read_text())
        imports = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        for owner, body in [
            ("", tree.body),
            *((n.name, n.body) for n in tree.body if isinstance(n, ast.ClassDef)),
        ]:
            for node in body:
                if isinstance(node, ast.FunctionDef):
                    name = f"{owner}.{node.name}" if owner else node.name
                    found[module, name] = _Function(module, owner, node, imports)
    return found


@cache
def floors() -> dict[str, int]:
    """Room of infra → its floor, the highest first, as `pyproject.toml` states them."""
    text = (ROOT / "pyproject.toml").read_text().partition('name = "The rooms of infra/')[2]
    rows = re.findall(r'"(slotlake[^"]+)"', text.partition("layers = [")[2].partition("]\n")[0])
    return {room.rpartition(".")[2]: floor for floor, rooms in enumerate(rows) for room in rooms.split(" | ")}


def _handed_on(function: _Function) -> Iterator[_Name | None]:
    """What a function hands the pipeline to."""
    for call in ast.walk(function.node):
        if isinstance(call, ast.Call):
            given = [*call.args, *(each.value for each in call.keywords)]
            names = [getattr(each, "id", getattr(each, "attr", "")) for each in given]
            if {"pipeline", "_pipeline"} & set(names):
                yield function.called(call.func)


def _below(name: _Name) -> Iterator[_Name]:
    function = _functions()[name]
    for call in ast.walk(function.node):
        called = function.called(call.func) if isinstance(call, ast.Call) else None
        if called is not None:
            yield called
            yield called[0], f"{called[1]}.__init__"


@cache
def reached(start: _Name = START) -> frozenset[_Name]:
    """The functions of infra that a call of this one can come to."""
    found, waiting = {start}, [start]
    while waiting:
        new = {name for name in _below(waiting.pop()) if name in _functions()} - found
        found |= new
        waiting += new
    return frozenset(found)


def handed_on() -> tuple[int, int]:
    """How often what a sync reaches hands the pipeline on, and how often to a room above."""
    rooms = [
        (_room(name[0]), None if to is None else _room(to[0]))
        for name in reached()
        for to in _handed_on(_functions()[name])
    ]
    lowest = len(floors())
    above = [1 for here, there in rooms if there and floors().get(there, lowest) < floors().get(here, lowest)]
    return len(rooms), len(above)


def _room(module: str) -> str:
    parts = module.split(".")
    return parts[2] if len(parts) > 2 else ""
