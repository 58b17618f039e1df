"""Names and patterns under `tables` in the pipeline file, and their mistakes that show without the source.

In a part that is not in double quotes, `*` stands for any characters.  What the file says of a table is what
stands under its own name; else under the longest pattern that matches; of equally long ones, the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from slotlake.spark.names import parse_postgres_name, postgres_name, postgres_parts

Name: TypeAlias = tuple[str, str]
T = TypeVar("T", bound=Mapping[str, Any])
V = TypeVar("V")


@dataclass(frozen=True)
class Pattern:
    """A pattern of names of tables.

    Attributes:
        text: as the file has it.
        name: schema and table, as it is written without the quotes.
        schema, table: regular expressions for the whole of either, for Python and PostgreSQL alike.
    """

    text: str
    name: Name
    schema: str
    table: str

    @property
    def length(self) -> int:
        """How many characters of it are fixed."""
        return sum(len(part.replace(".*", "")) for part in (self.schema, self.table))

    def matches(self, name: Name) -> bool:
        """Return whether a table's name fits."""
        expressions = (self.schema, self.table)
        return all(re.fullmatch(e, part, re.DOTALL) for e, part in zip(expressions, name, strict=True))


def pattern_of(text: str) -> Pattern | None:
    """Return the pattern that a text is; None if it is one table's name.

    Raises:
        KeyError: it is neither.
    """
    parts = postgres_parts(text)
    if not any("*" in part for part in parts if not part.startswith('"')):
        return None
    schema, table = (_expression(part) for part in parts)
    return Pattern(text, parse_postgres_name(text), schema, table)


def _expression(part: str) -> str:
    if part.startswith('"'):
        return re.escape(part[1:-1].replace('""', '"'))
    return ".*".join(re.escape(each) for each in part.lower().split("*"))


def patterns_in(tables: Mapping[str, Any]) -> list[Pattern]:
    """Return the patterns among names, those first that win."""
    patterns = [pattern for text in tables if "*" in text and (pattern := pattern_of(text))]
    return sorted(patterns, key=lambda pattern: -pattern.length)


def exact_names(tables: Mapping[str, Any]) -> dict[Name, str]:
    """Return the texts that are the name of one table, by schema and name."""
    return {parse_postgres_name(text): text for text in tables if "*" not in text or pattern_of(text) is None}


def by_name(said: Mapping[str, V | None]) -> Mapping[Name, V]:
    """Return what is said of a table, by schema and name; patterns count for all names that they match.

    Args:
        said: for each name and pattern; None: it says nothing of this, and then no shorter pattern does.
    """
    exact = {name: said[text] for name, text in exact_names(said).items()}
    patterns = patterns_in(said)
    if not patterns:
        return {name: value for name, value in exact.items() if value is not None}
    return _Said(exact, [(pattern, said[pattern.text]) for pattern in patterns])


class _Said(Mapping[Name, V]):
    """Names and patterns that say something; a pattern stands among the keys as if it were a name."""

    def __init__(self, exact: Mapping[Name, V | None], patterns: list[tuple[Pattern, V | None]]) -> None:
        self._exact, self._patterns = exact, patterns

    def __getitem__(self, name: Name) -> V:
        if name in self._exact:
            value = self._exact[name]
        else:
            value = next((value for pattern, value in self._patterns if pattern.matches(name)), None)
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[Name]:
        yield from (name for name, value in self._exact.items() if value is not None)
        yield from (pattern.name for pattern, value in self._patterns if value is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def by_source_name(said: Mapping[str, V | None]) -> Mapping[str, V]:
    """Return the same as `by_name`, by the names as PostgreSQL writes them."""
    values = by_name(said)
    if isinstance(values, dict):
        return {postgres_name(*name): value for name, value in values.items()}
    return _BySourceName(values)


class _BySourceName(Mapping[str, V]):
    def __init__(self, values: Mapping[Name, V]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> V:
        return self._values[parse_postgres_name(name)]

    def __iter__(self) -> Iterator[str]:
        return (postgres_name(*name) for name in self._values)

    def __len__(self) -> int:
        return len(self._values)


def require_names(tables: T) -> T:
    """Check that each name is one of a table or a pattern, and that no table is named twice.

    Raises:
        ValueError: a name is not as PostgreSQL writes it, or two are of one table.
    """
    seen: dict[tuple[Name, bool], str] = {}
    for text in tables:
        try:
            name, is_pattern = parse_postgres_name(text), pattern_of(text) is not None
        except KeyError:
            raise ValueError(
                f"{text!r} is no table's name: write schema.table, in double quotes what PostgreSQL quotes"
            ) from None
        if (name, is_pattern) in seen:
            raise ValueError(
                f"{seen[name, is_pattern]!r} and {text!r} are the same table, {postgres_name(*name)}"
            )
        seen[name, is_pattern] = text
        if is_pattern and tables[text].expectations:
            raise ValueError(f"{text!r} matches several tables, and a suite is of one: name the table")
    return tables
