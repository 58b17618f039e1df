"""Hooks of mkdocs: the pages at the top of the repository become pages of the site, and links follow them.

README.md is the site's first page; the list of decisions is made from their titles.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files  # type: ignore[import-not-found,unused-ignore]

TOP = {"README.md": "index.md"} | {
    name: name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "GLOSSARY.md", "CHANGELOG.md")
}
# Who asks the search has more often slotlake to use than to change, and begins with what it does.
_FOUND = (
    (("adr/", "ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "a-change", "benchmarks", "roads"), 0.1),
    (("overview", "tutorial"), 2),
)
_LINK = re.compile(r"\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the repository's top, and the list of decisions."""
    root = Path(config.config_file_path).parent
    for name, page in TOP.items():
        files.append(File.generated(config, page, content=_from_top((root / name).read_text())))
    files.append(File.generated(config, "adr/index.md", content=_decisions(root / "docs" / "adr")))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links to the repository's top lead to the generated pages; how high the search puts a page."""
    boost = next((boost for starts, boost in _FOUND if page.file.src_uri.startswith(starts)), 1)
    page.meta["search"] = {"boost": boost}
    up = "../" * page.file.src_uri.count("/")
    return _LINK.sub(lambda link: _to_top(link[0], link[1], link[2] or "", up), markdown)


def _to_top(whole: str, target: str, anchor: str, up: str) -> str:
    if target.removeprefix(f"../{up}") in TOP and target.startswith(f"../{up}"):
        return f"]({up}{TOP[target.removeprefix(f'../{up}')]}{anchor})"
    return whole


def _from_top(markdown: str) -> str:
    """Links of a page at the top, as they are from within docs/."""
    return _LINK.sub(lambda link: f"]({_inside(link[1])}{link[2] or ''})", markdown)


def _inside(target: str) -> str:
    if target in TOP:
        return TOP[target]
    inside = target.removeprefix("docs/").rstrip("/")
    return {"adr": "adr/index.md", "runbook": "runbook/README.md"}.get(inside, inside)


def _decisions(folder: Path) -> str:
    lines = [
        "# Decisions",
        "",
        "Decisions that cost thought: what was chosen, what was rejected, what was measured.",
        "",
    ]
    for path in sorted(folder.glob("[0-9]*.md")):
        title = path.read_text().partition("\n")[0].removeprefix("#").strip()
        lines.append(f"- [{title}]({path.name})")
    return "\n".join([*lines, ""])
