"""Puts a run's figures into docs/benchmarks.md: ``python -m slotlake.bench.page FIGURES.json``.

The page has the figures between two comments; the text around them is written by hand.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
COLUMNS = 120
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def markdown(document: Mapping[str, Any]) -> str:
    """The figures as lists, below the machine, of a document that ``slotlake bench --json`` writes."""
    machine = document["machine"]
    head = (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}; "
        f"Python {machine['python']}, PostgreSQL {machine['postgres']}; commit {machine['commit']}, "
        f"{machine['taken']}, load before the start {machine['load']}."
    )
    blocks = [
        f"\n`{name}`:\n\n" + "\n".join(_item(figure) for figure in figures)
        for name, figures in document["figures"].items()
    ]
    return "\n".join([*textwrap.wrap(head, COLUMNS), *blocks])


def _item(figure: Mapping[str, Any]) -> str:
    """One figure as an item of a list, in lines that are short enough for a page."""
    ours, theirs = (_value(figure[name], figure["unit"]) for name in ("ours_median", "theirs_median"))
    ratio = f"**{figure['ratio']:.2f}** ({min(figure['ratios']):.2f} to {max(figure['ratios']):.2f})"
    parts = [f"Medians: {_parts(figure)}"] if figure["parts"] else []
    result = f"{figure['what']}: {ratio}; ours {ours}; {figure['peer']} {theirs}"
    sentences = [result, *_targets(figure), *parts]
    text = f"{'. '.join(sentences)}."
    return textwrap.fill(text, COLUMNS, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)


def _targets(figure: Mapping[str, Any]) -> list[str]:
    """What is wanted, and what is aimed at beyond that, where there is such a thing."""
    missed = ", **missed**" if figure["reached"] is False else ""
    wanted = [] if figure["wanted"] is None else [f"Wanted: {figure['wanted']:.2f}{missed}"]
    return wanted if figure["aim"] is None else [*wanted, f"Aim: {figure['aim']:.2f}"]


def _value(value: float, unit: str) -> str:
    return f"{value:.2f} {unit}" if value < 1000 else f"{value:,.0f} {unit}"


def _parts(figure: Mapping[str, Any]) -> str:
    return "; ".join(f"{value:.2f} {what}" for what, value in figure["parts"].items())


def with_figures(page: str, document: Mapping[str, Any]) -> str:
    """The page with these figures in the place of those that it has."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{markdown(document)}\n{END}{after}"


def main(file: Path) -> None:
    """Rewrite the page."""
    PAGE.write_text(with_figures(PAGE.read_text(), json.loads(file.read_text())))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
