"""The project's modules as syntax trees, read once for all tests that look at the code."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@cache
def tree(path: Path) -> ast.Module:
    """Return a module's syntax tree; nobody may change it."""
    return ast.parse(path.read_text())


@cache
def modules(*folders: str) -> tuple[Path, ...]:
    """Return the modules in folders at the top of the checkout, in the order of their names."""
    return tuple(path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
