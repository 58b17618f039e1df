"""The report in a real Chromium: a file, without a network, wide and as on a phone, light and dark."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from slotlake.decoder.errors import SetupError
from slotlake.infra.health.html import document
from slotlake.infra.health.model import health_of
from tests.e2e.browser import Browser, open_browser
from tests.e2e.chromium import find_chromium
from tests.infra.test_pages import noted, pipeline

pytestmark = pytest.mark.seconds
# Charts of the period that is shown, and whether anything is wider than the page.
_CHARTS = (
    "[...document.querySelectorAll('.pane')].filter(e => e.offsetHeight)"
    ".map(e => e.querySelectorAll('path').length)"
)
_TOO_WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
_BACK = "getComputedStyle(document.body).backgroundColor"
_REQUESTS = "performance.getEntriesByType('resource').length"


def test_a_report_is_read_as_a_person_does(tmp_path: Path) -> None:
    try:
        chromium = find_chromium(fetch=not os.environ.get("SLOTLAKE_OFFLINE"))
    except SetupError as error:
        pytest.skip(f"no browser: {error}")
    now = time.time()
    files = [pipeline(tmp_path / name, name) for name in ("shop", "desk")]
    noted(files[0], equal=False, now=now)
    noted(files[1], lag=7000, state="slot lost", now=now)
    known = [health_of(file, now) for file in files]
    page = tmp_path / "report.html"
    page.write_text(document(known, list(zip(known, files, strict=True)), version="1"))
    with open_browser(chromium) as browser:
        browser.go(page.as_uri())
        browser.wait_text(
            "2, the worst first", "2 rows differ", "slot lost", "id=•••", "What recover would do"
        )
        assert browser.value("document.scripts.length") == 0
        assert browser.value(_REQUESTS) == 0
        assert browser.value(_CHARTS) == [7, 7]  # lag, rows, four steps, retained WAL
        light = browser.value(_BACK)
        browser.click("label", "week")
        assert browser.value("document.querySelectorAll('input:checked').length") == 2
        assert browser.value("[...document.querySelectorAll('input:checked')].map(e => e.id)").count(
            "shop-week"
        )
        for dark in (False, True):
            browser.dark(dark)
            for width in (1200, 390):
                browser.resize(width, 900)
                assert not browser.value(_TOO_WIDE), width
                _picture(browser, f"page-{width}-{'dark' if dark else 'light'}")
        assert browser.value(_BACK) != light


def _picture(browser: Browser, name: str) -> None:
    if folder := os.environ.get("SLOTLAKE_PICTURES"):
        browser.picture(Path(folder) / f"{name}.png")
