"""The report in a real Chromium: a file, without a network, wide and as on a phone, light and dark.

The pictures of the README and of docs/metrics.md are those of a real run, with a fault that is one:
``SLOTLAKE_PICTURES=docs/pictures SLOTLAKE_PICTURES_MINUTES=12`` and the last test.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import SetupError
from slotlake.infra.health.html import document
from slotlake.infra.health.model import health_of
from slotlake.infra.status.noted import look
from tests.conftest import Database
from tests.e2e.browser import Browser, open_browser
from tests.e2e.chromium import Chromium, find_chromium
from tests.e2e.oracle import pipeline_file
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


_MINUTES = float(os.environ.get("SLOTLAKE_PICTURES_MINUTES", "0.2"))


@pytest.fixture(scope="module")
def chromium() -> Chromium:
    try:
        return find_chromium(fetch=not os.environ.get("SLOTLAKE_OFFLINE"))
    except SetupError as error:
        pytest.skip(f"no browser: {error}")


def test_a_report_is_read_as_a_person_does(chromium: Chromium, tmp_path: Path) -> None:
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
                _picture(browser, f"example-{width}-{'dark' if dark else 'light'}")
        assert browser.value(_BACK) != light


@pytest.mark.timeout(3600)
def test_a_real_run_with_a_real_fault(chromium: Chromium, database: Database, tmp_path: Path) -> None:
    """Two pipelines of one source; of one somebody drops the slot. At three widths, light and dark."""
    for columns in (
        "orders (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, total numeric(9,2) DEFAULT 9.90",
        "items (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int DEFAULT 1",
        "invoices (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, paid bool DEFAULT false",
    ):
        database.execute(f"CREATE TABLE {columns})")
    tables = {"shop": ["orders", "items"], "billing": ["invoices"]}
    with ExitStack() as opened:
        shop, billing = (
            opened.enter_context(Pipeline.open(pipeline_file(tmp_path / n, database, tables[n], name=n)))
            for n in tables
        )
        for each in (shop, billing):
            each.init()
        _work(database, [shop, billing], _MINUTES * 60)
        assert shop.verify().equal
        assert billing.verify().equal
        database.execute("SELECT pg_drop_replication_slot(%s)", [billing.source.slot])
        _work(database, [shop], _MINUTES * 20)
        for each in (shop, billing):
            look(each)
        files = [shop.file, billing.file]
    known = [(health_of(file), file) for file in files]
    page = tmp_path / "report.html"
    page.write_text(document([health for health, _ in known], known, version="0.3"))
    with open_browser(chromium) as browser:
        browser.go(page.as_uri())
        browser.wait_text("billing", "✕ slot missing", "✓ ready", "slotlake recover")
        for dark in (False, True):
            browser.dark(dark)
            for width, name in ((1200, "report"), (820, "tablet"), (390, "phone")):
                browser.resize(width, 900)
                assert not browser.value(_TOO_WIDE), width
                _picture(browser, f"page-{name}{'-dark' if dark else ''}")


def _work(database: Database, pipelines: list[Pipeline], seconds: float) -> None:
    draw, until = random.Random(7), time.monotonic() + seconds
    while time.monotonic() < until:
        rows = draw.randint(5, 400)
        database.execute(
            f"INSERT INTO orders (total) SELECT i FROM generate_series(1, {rows}) i;"
            f"INSERT INTO items (n) SELECT i FROM generate_series(1, {rows}) i;"
            f"UPDATE orders SET total = total + 1 WHERE id % 97 = {rows % 97};"
            "INSERT INTO invoices DEFAULT VALUES"
        )
        for each in pipelines:
            each.sync()
        time.sleep(draw.uniform(4, 15) if seconds > 60 else 0.5)


def _picture(browser: Browser, name: str) -> None:
    if folder := os.environ.get("SLOTLAKE_PICTURES"):
        browser.picture(Path(folder) / f"{name}.png")
