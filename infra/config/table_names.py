"""The names under `tables` in the pipeline file, and the mistakes in them that show without the source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from slotlake.spark.names import parse_postgres_name, postgres_name

T = TypeVar("T", bound=Mapping[str, Any])


def require_names(tables: T) -> T:
    """Check that each name is one of a table, and that no table is named twice.

    Raises:
        ValueError: a name is not as PostgreSQL writes it, or two are of one table.
    """
    seen: dict[tuple[str, str], str] = {}
    for text in tables:
        try:
            name = parse_postgres_name(text)
        except KeyError:
            raise ValueError(
                f"{text!r} is no table's name: write schema.table, in double quotes what PostgreSQL quotes"
            ) from None
        if name in seen:
            raise ValueError(f"{seen[name]!r} and {text!r} are the same table, {postgres_name(*name)}")
        seen[name] = text
    return tables
