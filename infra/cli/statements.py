"""Cuts what is typed into statements: each ends with a semicolon that is in no string, name or comment."""

from __future__ import annotations

import re

# In this order: what begins one of these hides a semicolon up to its end.
_PARTS = re.compile(
    r"""
      '(?:[^']|'')*(?:'|(?P<open_string>\Z))
    | "(?:[^"]|"")*(?:"|(?P<open_name>\Z))
    | `(?:[^`]|``)*(?:`|(?P<open_tick>\Z))
    | --[^\n]*
    | /\*.*?(?:\*/|(?P<open_comment>\Z))
    | (?P<end>;)
    """,
    re.VERBOSE | re.DOTALL,
)


def whole_statements(text: str) -> tuple[list[str], str]:
    """Return the whole statements without their semicolons, and the text after the last of them.

    Args:
        text: what was typed so far.
    """
    statements, start = [], 0
    for part in _PARTS.finditer(text):
        if part["end"]:
            statements.append(text[start : part.start()].strip())
            start = part.end()
    return [statement for statement in statements if statement], text[start:]
