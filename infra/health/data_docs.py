"""Where the Data Docs of a pipeline are: Great Expectations' pages, which `verify` writes on its machine."""

from __future__ import annotations

from pathlib import Path

from slotlake.infra.config.pipeline_file import PipelineFile


def data_docs(file: PipelineFile) -> Path | None:
    """Return the index page that this machine has; None without it."""
    pages = sorted((file.state_dir / "expectations").glob("gx/uncommitted/data_docs/*/index.html"))
    return pages[0] if pages else None


def page_of(file: PipelineFile, path: str) -> Path | None:
    """Return a page of the Data Docs; None if there is no such page in them.

    Args:
        path: from the index page's folder on, as a browser asks for it.
    """
    index = data_docs(file)
    if index is None:
        return None
    folder = index.parent.resolve()
    page = (folder / path).resolve()
    return page if page.is_relative_to(folder) and page.suffix == ".html" and page.is_file() else None
