"""Puts a run's figures into docs/benchmarks.md: ``python -m slotlake.bench.page FIGURES.json``.

The page holds the table between two marks; what stands around it is written by hand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def markdown(told: Mapping[str, Any]) -> str:
    """The table, and the machine above it, of a document as ``slotlake bench --json`` writes it."""
    machine = told["machine"]
    lines = [
        (
            f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}; "
            f"Python {machine['python']}, PostgreSQL {machine['postgres']}; commit {machine['commit']}, "
            f"{machine['taken']}, load before the start {machine['load']}."
        ),
        "",
        "| benchmark | what | against | ours | theirs | ratio (lowest to highest) | wanted | aim |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, figures in told["figures"].items():
        lines += [_row(name, figure) for figure in figures]
    lines += ["", "What they are made of (medians):", ""]
    for name, figures in told["figures"].items():
        lines += [f"- `{name}`, {figure['what']}: {_parts(figure)}" for figure in figures if figure["parts"]]
    return "\n".join(lines)


def _row(name: str, figure: Mapping[str, Any]) -> str:
    cells = [
        f"`{name}`",
        figure["what"],
        figure["peer"],
        _value(figure["ours_median"], figure["unit"]),
        _value(figure["theirs_median"], figure["unit"]),
        f"**{figure['ratio']:.2f}** ({min(figure['ratios']):.2f} to {max(figure['ratios']):.2f})",
        _number(figure["wanted"]) + (" missed" if figure["reached"] is False else ""),
        _number(figure["aim"]),
    ]
    return f"| {' | '.join(cells)} |"


def _value(value: float, unit: str) -> str:
    return f"{value:.2f} {unit}" if value < 1000 else f"{value:,.0f} {unit}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _parts(figure: Mapping[str, Any]) -> str:
    return "; ".join(f"{value:.2f} {what}" for what, value in figure["parts"].items())


def with_figures(page: str, told: Mapping[str, Any]) -> str:
    """The page with these figures in the place of those that it has."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{markdown(told)}\n{END}{after}"


def main(file: Path) -> None:
    """Rewrite the page."""
    PAGE.write_text(with_figures(PAGE.read_text(), json.loads(file.read_text())))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
