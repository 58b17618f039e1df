"""How figures look: a table of ratios with both absolute figures for people, one document for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from slotlake.bench.figures import Figure
from slotlake.bench.machine import Machine

_WIDTH_MIN = 150


def document(machine: Machine, figures_by_name: Mapping[str, Sequence[Figure]]) -> dict[str, Any]:
    """All that was measured: machine, and per benchmark its figures with every single value."""
    return {
        "machine": machine.as_dict(),
        "figures": {
            name: [figure.as_dict() for figure in figures] for name, figures in figures_by_name.items()
        },
    }


def print_table(
    machine: Machine, figures_by_name: Mapping[str, Sequence[Figure]], console: Console | None = None
) -> None:
    """Print a line per figure, then what each of them is made of.

    Args:
        machine: where the figures were taken.
        figures_by_name: per benchmark its figures.
        console: where to print; None: standard output.
    """
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console = Console(file=console.file, highlight=False, width=_WIDTH_MIN)
    console.print(machine.text())
    console.print(_table(figures_by_name))
    for name, figures in figures_by_name.items():
        for figure in figures:
            parts = [f"{value:.2f} {what}" for what, value in figure.parts.items()]
            details = "; ".join([*parts, *([figure.note] if figure.note else [])])
            if details:
                console.print(f"{name}: {figure.what}: {details}")


def _table(figures_by_name: Mapping[str, Sequence[Figure]]) -> Table:
    table = Table(caption="ratio: as fast as the peer, median of the pairs (lowest to highest)")
    for name in ("benchmark", "what", "against"):
        table.add_column(name, no_wrap=name == "benchmark")
    for name in ("ours", "theirs", "ratio", "wanted", "aim"):
        table.add_column(name, justify="right", no_wrap=name != "ratio")
    for name, figures in figures_by_name.items():
        for figure in figures:
            table.add_row(
                name, figure.what, figure.peer, _value(figure.ours, figure.unit),
                _value(figure.theirs, figure.unit), _ratio(figure), _wanted(figure),
                "" if figure.aim is None else f"{figure.aim:.2f}",
            )  # fmt: skip
    return table


def _value(values: Sequence[float], unit: str) -> str:
    middle = median(values)
    return f"{middle:.2f} {unit}" if middle < 1000 else f"{middle:,.0f} {unit}"


def _ratio(figure: Figure) -> str:
    return f"[bold]{figure.ratio:.2f}[/bold] ({min(figure.ratios):.2f} to {max(figure.ratios):.2f})"


def _wanted(figure: Figure) -> str:
    if figure.wanted is None:
        return ""
    return f"{figure.wanted:.2f} " + ("[green]reached[/green]" if figure.reached else "[red]missed[/red]")
