"""Plain words: those that GLOSSARY.md replaced do not come back, lines are short, paths in pages exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import ROOT, modules, tree

pytestmark = pytest.mark.fast

FLOORS = ("decoder", "spark", "expectations", "infra", "dags", "bench")
LINE_COLUMNS_MAX = 120
WORDS_MAX = 40
# Word → what the glossary says instead. In prose, as whole words.
INSTEAD = {
    r"annex(es)?": "batch sidecar",
    r"beside": "derived tables; next to",
    r"lowering|(taking|taken|takes) back": "rewind",
    r"marks?": "catalog fingerprint",
    r"cuts?(?! (off|short))": "read point, batch boundary",
    r"rare messages?": "control messages",
    r"located": "value spans",
    r"stretch(es)?": "fold segment",
    r"forms": "representations",
    r"anew": "again",
    r"told|foretold": "reports, says, warns",
}
# As parts of names that code gives (functions, arguments, variables).
NAMES = (
    *("annex", "beside", "lowering", "taking_back", "mark", "marks", "cut", "cuts", "rare", "located"),
    *("stretch", "stretches", "forms", "told", "found", "held", "kept"),
)
# Names that programs read: keys of JSON, attributes of reports.
STORED = {"beside", "held_back_by", "ranges_kept"}
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")


def pages() -> list[Path]:
    """All pages but the decisions, which are records of their day, and the changelog."""
    top = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "GLOSSARY.md")]
    return [*top, *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "runbook").glob("*.md"))]


def _prose(page: Path) -> str:
    text = page.read_text()
    if page.name == "GLOSSARY.md":
        text = re.sub(r"\(Before: [^)]*\)", "", text)
    return _CODE.sub("", _FENCED.sub("", text))


def _help_texts() -> str:
    """What `--help` prints: docstrings and help= of the commands."""
    said = []
    for path in sorted((ROOT / "infra" / "cli").glob("*.py")):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef) and node.decorator_list:
                said.append(ast.get_docstring(node) or "")
            if isinstance(node, ast.keyword) and node.arg == "help" and isinstance(node.value, ast.Constant):
                said.append(str(node.value.value))
    return "\n".join(said)


def words_left() -> dict[str, dict[str, int]]:
    """Per page (and the help texts) the words that are still there, counted."""
    texts = {str(page.relative_to(ROOT)): _prose(page) for page in pages()} | {"--help": _help_texts()}
    return {name: counts for name, text in texts.items() if (counts := _counted(text))}


def _counted(text: str) -> dict[str, int]:
    counts = {word: len(re.findall(rf"\b(?:{word})\b", text, re.IGNORECASE)) for word in INSTEAD}
    return {word: count for word, count in counts.items() if count}


def long_lines() -> dict[str, int]:
    """Per page the lines that are too long; recordings are as they were printed."""
    counts = {
        str(page.relative_to(ROOT)): sum(
            len(line) > LINE_COLUMNS_MAX for line in page.read_text().splitlines()
        )
        for page in pages()
        if page.name != "recordings.md"
    }
    return {name: count for name, count in counts.items() if count}


def names_left() -> list[str]:
    """Names that the code gives and that have such a word as a part, each with its module."""
    return [
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules(*FLOORS)
        for name in _given(path)
        if name not in STORED and any(f"_{word}_" in f"_{name}_" for word in NAMES)
    ]


def _given(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name.lower()
        elif isinstance(node, ast.arg):
            yield node.arg.lower()
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id.lower()


def test_words_that_were_replaced_do_not_come_back() -> None:
    """Say it with the word of GLOSSARY.md; code and file names in backticks do not count."""
    assert words_left() == {}, INSTEAD


def test_names_that_say_nothing_do_not_come_back() -> None:
    assert names_left() == []


def test_pages_have_short_lines() -> None:
    assert long_lines() == {}, f"lines of more than {LINE_COLUMNS_MAX} columns"


def test_the_glossary_is_short() -> None:
    words = re.findall(r"^- \*\*(.+?)\*\*:", (ROOT / "GLOSSARY.md").read_text(), re.MULTILINE)
    assert 0 < len(words) <= WORDS_MAX
    assert len(set(words)) == len(words)


@pytest.mark.parametrize(
    "page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "docs/a-change-in-half-an-hour.md"]
)
def test_paths_named_in_a_page_exist(page: str) -> None:
    named = _CODE.findall(_FENCED.sub("", (ROOT / page).read_text()))
    paths = [name.strip("`") for name in named if re.fullmatch(r"`[\w.-]+(/[\w.-]+)*/?`", name)]
    tops = {path.name for path in ROOT.iterdir()}
    wrong = [
        path for path in paths if "/" in path and path.split("/")[0] in tops and not (ROOT / path).exists()
    ]
    assert wrong == []
