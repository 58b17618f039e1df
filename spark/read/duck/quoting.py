"""Names and texts in DuckDB's SQL, which knows no escapes but a doubled quote."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Return a name as DuckDB writes it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a string literal."""
    return "'" + text.replace("'", "''") + "'"
