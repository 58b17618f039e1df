"""What a query gives, from whichever engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class QueryResult:
    """Rows as PostgreSQL text, None for NULL; arrays, maps and structs as JSON."""

    columns: list[str]
    rows: list[tuple[str | None, ...]]
    position: int
