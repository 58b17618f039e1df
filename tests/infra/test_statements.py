"""What is typed is cut into statements at semicolons, and at none within a string, a name or a comment."""

from __future__ import annotations

import pytest

from slotlake.infra.cli.shell import whole_statements


@pytest.mark.parametrize(
    ("typed", "statements", "rest"),
    [
        ("", [], ""),
        ("SELECT 1", [], "SELECT 1"),
        ("SELECT 1;", ["SELECT 1"], ""),
        ("SELECT 1; SELECT 2 ;\n", ["SELECT 1", "SELECT 2"], "\n"),
        (";;", [], ""),
        ("SELECT 'a;b'; x", ["SELECT 'a;b'"], " x"),
        ("SELECT 'it''s;'; x", ["SELECT 'it''s;'"], " x"),
        ('SELECT "a;""b;"; x', ['SELECT "a;""b;"'], " x"),
        ("SELECT `a;b`; x", ["SELECT `a;b`"], " x"),
        ("SELECT 1 -- a; b\n; x", ["SELECT 1 -- a; b"], " x"),
        ("SELECT 1 /* a; b */; x", ["SELECT 1 /* a; b */"], " x"),
        ("SELECT 1 -- it's\n;", ["SELECT 1 -- it's"], ""),
        ("SELECT 'open;", [], "SELECT 'open;"),
        ('SELECT "open;', [], 'SELECT "open;'),
        ("SELECT /* open;", [], "SELECT /* open;"),
        ("SELECT -- open;", [], "SELECT -- open;"),
        ("SELECT 5 - 4 / 2; x", ["SELECT 5 - 4 / 2"], " x"),
    ],
)
def test_cut(typed: str, statements: list[str], rest: str) -> None:
    assert whole_statements(typed) == (statements, rest)
