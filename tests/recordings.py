"""Recordings of what a person sees, in docs/recordings.md: made by tests, and compared by them.

``SLOTLAKE_RECORD=1`` writes them. Without it a test fails whose program prints something else than the page
shows, apart from what moves: positions, times, sizes, and the widths of tables.
"""

from __future__ import annotations

import os
import re

from tests.conftest import ROOT

PAGE = ROOT / "docs" / "recordings.md"
_MOVES = [
    (r"\b[0-9A-F]{1,8}/[0-9A-F]{1,8}\b", "LSN"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?([+-]\d\d(:\d\d)?| UTC|Z)?", "TIME"),
    (r"\b\d[\d,.]* ?(ms|s|min|h|B|kB|MB|GB|MiB|GiB|bytes)\b", "SIZE"),
    (r"PostgreSQL [\d.]+", "PostgreSQL VERSION"),
    (r"\d+ of \d+ are in use", "SOME are in use"),
    (r"[─━═]+", "─"),
    (r"[ \t]+", " "),
]


def recorded(heading: str, text: str) -> None:
    """Compare with the page's block under a heading, or write it there if the environment asks for it.

    Args:
        text: what was typed and answered; names of this run's database and folder are taken out already.
    """
    page = PAGE.read_text()
    begin = page.index("```text\n", page.index(f"## {heading}\n")) + len("```text\n")
    end = page.index("```\n", begin)
    text = "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n"
    if os.environ.get("SLOTLAKE_RECORD"):
        PAGE.write_text(page[:begin] + text + page[end:])
        return
    assert _steady(text) == _steady(page[begin:end]), "SLOTLAKE_RECORD=1 writes docs/recordings.md again"


def _steady(text: str) -> list[str]:
    for moves, name in _MOVES:
        text = re.sub(moves, name, text)
    return text.strip().splitlines()
