"""The documentation builds as a site, strictly: links and anchors exist, nothing is loaded from outside."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.seconds
# What a browser fetches by itself; an ordinary link (<a href>) is followed by people only.
_LOADED = re.compile(
    r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//[^\s\"'>]+", re.IGNORECASE
)
_LOADED_BY_STYLE = re.compile(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", re.IGNORECASE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. With --quiet, mkdocs would not count warnings and --strict would let them pass."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there_and_search_finds_words(site: Path) -> None:
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {
        "index.html",
        "ARCHITECTURE.html",
        "GLOSSARY.html",
        "adr/index.html",
        "runbook/index.html",
    } <= pages
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert name.replace("README", "index") in pages
    assert "replica identity" in (site / "search" / "search_index.json").read_text()


@pytest.mark.parametrize("words", ["quickstart", "aurora", "supabase", "cloud sql", "neon", "rds", "azure"])
def test_search_finds_the_page_of_a_service(site: Path, words: str) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    titled = [entry["location"] for entry in entries if words in entry["title"].lower()]
    assert any(location.startswith("managed/") for location in titled)


SERVICES = sorted(set((ROOT / "docs" / "managed").glob("*.md")) - {ROOT / "docs" / "managed" / "README.md"})
HEADINGS = [
    "Switch on logical decoding",
    "The role",
    "Slots and failover",
    "Limits",
    "Logins",
    "Poolers",
    "Upgrade",
]


@pytest.mark.parametrize("page", SERVICES, ids=lambda page: str(page.stem))
def test_the_pages_of_services_are_alike(page: Path) -> None:
    """Each says first that nothing was tried; each fact has a link, and each link a day."""
    text = page.read_text()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    assert re.search(r"^slotlake has not been tried on ", text, re.MULTILINE)
    used = re.findall(r"\[read 20\d\d-\d\d-\d\d\]\[(\w+)\]", text)
    assert set(used) == set(re.findall(r"^\[(\w+)\]:", text, re.MULTILINE))
    assert f"({page.name})" in (page.parent / "README.md").read_text()


def test_every_cell_about_another_tool_says_where_and_when_it_was_read() -> None:
    page = (ROOT / "docs" / "compared.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    cells = [cell for tool, *said in rows if tool not in {"tool", "---"} for cell in said]
    assert len(cells) > 100
    assert [cell for cell in cells if "][" not in cell] == []
    definitions = dict(re.findall(r"^\[(\w+)\]: (\S+(?:\s+\"[^\"]+\")?)$", page, re.MULTILINE))
    assert set(re.findall(r"\]\[(\w+)\]", page)) == set(definitions)
    undated = [
        name
        for name, where in definitions.items()
        if where.startswith("https:") and not re.search(r'"read 20\d\d-\d\d-\d\d"$', where)
    ]
    assert undated == []


def test_nothing_is_loaded_from_outside(site: Path) -> None:
    loaded = [
        f"{path.relative_to(site)}: {found[0]}"
        for path in site.rglob("*.html")
        for found in _LOADED.finditer(path.read_text())
        if 'rel="canonical"' not in found[0]
    ]
    styles = [
        str(path.relative_to(site))
        for path in site.rglob("*.css")
        if _LOADED_BY_STYLE.search(path.read_text())
    ]
    assert (loaded, styles) == ([], [])


def test_the_diffs_of_a_first_change_fit_the_code() -> None:
    """Each line that a diff of the page shows as it is, or takes away, is in the repository."""
    page = ROOT / "docs" / "a-change-in-half-an-hour.md"
    diffs = re.findall(r"^```diff\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    shown = {line[1:] for diff in diffs for line in diff.splitlines() if line[0] in " -"}
    folders = (ROOT / name for name in ("dags", "decoder", "docs", "infra", "tests"))
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in {".py", ".md"}]
    lines = {line for path in files if path != page for line in path.read_text().splitlines()}
    assert len(shown) >= 6
    assert sorted(shown - lines) == []


def test_every_page_is_in_the_menu() -> None:
    listed = (ROOT / "mkdocs.yml").read_text()
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if f" {page.name}\n" not in listed]
    assert missing == []
