"""How the commands print reports: text for people, or one JSON document for programs.

Text goes through rich to standard output. With --json, one document is all that standard output gets.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from slotlake.infra.query.queries import QueryResult


class JsonReport(Protocol):
    """A report that can become JSON."""

    def as_dict(self) -> dict[str, Any]:
        """Return the report as values that JSON can hold."""


AnyReport = TypeVar("AnyReport", bound=JsonReport)
# Of a list with one line per table, so many are printed, and then how many there are more.
LINES_MAX = 50


def show(report: AnyReport, as_json: bool, text: Callable[[AnyReport, Console], None]) -> None:
    """Print a report.

    Args:
        report: what the command did.
        as_json: print one JSON document instead of text.
        text: writes the text of such a report to a console.
    """
    if as_json:
        print_json(report.as_dict())
    else:
        text(report, Console(highlight=False, soft_wrap=True))


def print_json(document: Any) -> None:
    """Print one JSON document on one line."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")


def show_rows(result: QueryResult, as_json: bool) -> None:
    """Print the rows of a query; each value is PostgreSQL's text of it (NULL is JSON's null)."""
    if as_json:
        document = {
            "lsn": result.lsn,
            "columns": list(result.columns),
            "rows": [list(row) for row in result.rows],
            **({"set_aside": result.set_aside} if result.set_aside else {}),
        }
        print_json(document)
        return
    table = Table()
    for index, name in enumerate(result.columns):
        justify: JustifyMethod = "right" if index in result.numeric else "left"
        table.add_column(escape(name), overflow="fold", justify=justify)
    count = 0
    for row in result.rows:
        table.add_row(*("[dim]NULL[/dim]" if value is None else escape(value) for value in row))
        count += 1
    console = Console(highlight=False)
    console.print(table)
    console.print(f"{count} row{'' if count == 1 else 's'} at {result.lsn}")
    set_aside_lines(result.set_aside, console)


def print_csv(result: QueryResult) -> None:
    """Print rows as COPY … TO … CSV HEADER does: NULL is nothing, an empty text is two quotation marks."""
    for row in (result.columns, *result.rows):
        sys.stdout.write(",".join("" if value is None else _csv_value(value) for value in row) + "\n")


def _csv_value(text: str) -> str:
    plain = text and not any(each in text for each in ',"\n\r')
    return text if plain else '"' + text.replace('"', '""') + '"'


def lines_of(lines: Iterable[str], console: Console, what: str, lines_max: int = LINES_MAX) -> None:
    """Print the first of many lines, and how many there are more.

    Args:
        lines: in the markup of rich, the most important first.
        console: where they are printed.
        what: the lines are about, in the plural.
        lines_max: how many are printed.
    """
    all_lines = list(lines)
    for line in all_lines[:lines_max]:
        console.print(line)
    if len(all_lines) > lines_max:
        console.print(f"  and {len(all_lines) - lines_max:,} more {what}; --json has all of them")


def warning_lines(warnings: Iterable[str], console: Console, lines_max: int = LINES_MAX) -> None:
    """Print one line per warning.

    Args:
        warnings: the most important first.
        console: where they are printed.
        lines_max: how many are printed.
    """
    lines = (f"[yellow]warning:[/yellow] {escape(warning)}" for warning in warnings)
    lines_of(lines, console, "warnings", lines_max)


def set_aside_lines(set_aside: Mapping[str, str], console: Console) -> None:
    """Print one line per table that is set aside.

    Args:
        set_aside: the reason by table.
    """
    lines = (
        f"[yellow]{escape(name)} is set aside[/yellow]: {escape(reason)}"
        for name, reason in set_aside.items()
    )
    lines_of(lines, console, "tables that are set aside")


def size_text(count: int | None) -> str | None:
    """Return a number of bytes with its unit, as ``1.4 GB`` (steps of 1024); None for None."""
    if count is None:
        return None
    size, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while abs(size) >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:,.0f} B" if units[0] == "B" else f"{size:,.1f} {units[0]}"
