"""What runs in a reader's browser, in a real Chromium: the script of the page, and the site's search."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.errors import SetupError
from slotlake.infra.health.html import document
from slotlake.infra.health.model import health_of
from tests.conftest import ROOT
from tests.e2e.browser import open_browser
from tests.e2e.chromium import Chromium, find_chromium
from tests.infra.test_pages import noted, pipeline

pytestmark = pytest.mark.seconds
_QUESTION = re.compile(r"^\| (.+?) \| \[[^\]]+\]\(([^)#]+)", re.MULTILINE)
_FOUND_AMONG = 8
_ONCE_LOADED = "new Promise(done => { document.readyState === 'complete' ? done() : onload = done; })"
# Asked as a person asks: in the field of the page, which is empty between two questions.
_SEARCH = """
(async questions => {
  const field = document.querySelector('.md-search__input');
  const links = () => [...document.querySelectorAll('.md-search-result__link')];
  const ask = async (question, answered) => {
    field.value = question;
    field.dispatchEvent(new KeyboardEvent('keyup'));
    while (!answered()) await new Promise(done => setTimeout(done, 10));
  };
  const found = [];
  for (const question of questions) {
    await ask(question, () => links().length > 0);
    found.push(links().map(link => decodeURI(link.pathname)));
    await ask('', () => links().length === 0);
  }
  return found;
})(%s)
"""


@pytest.fixture(scope="module")
def chromium() -> Chromium:
    try:
        return find_chromium(fetch=not os.environ.get("SLOTLAKE_OFFLINE"))
    except SetupError as error:
        pytest.skip(f"no browser: {error}")


@contextmanager
def _served(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        pass


def test_the_page_follows_airflows_theme_and_reads_itself_again(
    chromium: Chromium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the policy that the page in Airflow has; what a person has chosen on it stays."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow-home"))
    from slotlake.infra.airflow.page import live_policy

    file = pipeline(tmp_path, "shop")
    noted(file, now=time.time())
    answers = {"state": 200}

    class Page(_Quiet):
        def do_GET(self) -> None:
            text = document([], [(health_of(file), file)], version="1", nonce="n0nce", live=True).encode()
            self.send_response(answers["state"])
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Security-Policy", live_policy("n0nce"))
            self.end_headers()
            self.wfile.write(text)

    back = "getComputedStyle(document.body).backgroundColor"
    with _served(Page) as address, open_browser(chromium) as browser:
        browser.go(address)
        browser.wait_text("✓ ready")
        light = browser.value(back)
        browser.value("localStorage.setItem('theme', 'dark')")
        browser.go(address)
        browser.wait_text("✓ ready")
        assert browser.value(back) != light
        browser.click("label", "week")
        noted(file, state="slot missing", now=time.time())
        browser.wait_text("✕ slot missing", seconds_max=90)
        assert browser.value("document.querySelector('input:checked').id") == "shop-week"
        answers["state"] = 500
        browser.wait_text("The server does not answer", seconds_max=90)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    subprocess.run(built, cwd=ROOT, capture_output=True, check=True)
    return folder


@pytest.mark.parametrize("files", [False, True], ids=["from a server", "as files"])
def test_the_sites_search_finds_the_answers_to_forty_questions(
    chromium: Chromium, site: Path, files: bool
) -> None:
    asked = _QUESTION.findall((ROOT / "docs" / "questions.md").read_text())
    words = [" ".join(re.findall(r"\w+", question)) for question, _ in asked]
    with _served(partial(_Quiet, directory=str(site))) as address, open_browser(chromium) as browser:
        browser.go(f"{site.as_uri() if files else address.rstrip('/')}/index.html")
        browser.resize(1400, 900)
        browser.click(".md-search__input")
        browser.wait_text("Type to start searching")
        found = browser.value(_SEARCH % json.dumps(words))
    lost = []
    for (question, page), locations in zip(asked, found, strict=True):
        pages = dict.fromkeys(each.removeprefix(str(site)).lstrip("/") for each in locations)
        ranked = [each for each in pages if each != "questions.html"]
        wanted = page.replace("README.md", "index.html").replace(".md", ".html")
        if wanted not in ranked[:_FOUND_AMONG]:
            lost.append((question, page, ranked.index(wanted) if wanted in ranked else None))
    assert len(asked) == 40
    assert lost == [], lost


def test_no_page_of_the_site_asks_another_host_or_for_what_is_not_there(
    chromium: Chromium, site: Path
) -> None:
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    if not os.environ.get("SLOTLAKE_TEST_LONG"):  # their links are checked whenever the site is built
        pages = [page for page in pages if not page.startswith("adr/")][::2]
    with _served(partial(_Quiet, directory=str(site))) as address, open_browser(chromium) as browser:
        browser.count_requests()
        for page in pages:
            browser.go(address + page)
            browser.value(_ONCE_LOADED)
        asked, refused = list(browser.requested), list(browser.refused)
    assert set(pages) <= {url.removeprefix(address) for url in asked}
    assert [url for url in asked if not url.startswith((address, "data:"))] == []
    assert refused == []


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_wide_tables_scroll_by_themselves(chromium: Chromium, site: Path, width: int) -> None:
    """The page itself never does; in light and dark its text stands out from its ground."""
    wide = ["index", "reading", "compared", "types", "benchmarks", "pipeline-file", "CONTRIBUTING"]
    with open_browser(chromium) as browser:
        browser.resize(width, 900)
        for page in wide:
            for dark in (False, True):
                browser.dark(dark)
                browser.go((site / f"{page}.html").as_uri())
                browser.wait_text("slotlake")
                assert browser.value("document.documentElement.scrollWidth") == width, page
                text, ground = browser.value(
                    "['color', 'backgroundColor'].map(name => "
                    "+getComputedStyle(document.body)[name].match(/[0-9]+/)[0])"
                )
                assert (text > ground) == dark, (page, text, ground)
                if folder := os.environ.get("SLOTLAKE_PICTURES"):
                    shade = "dark" if dark else "light"
                    browser.picture(Path(folder) / f"site-{page}-{width}-{shade}.png")
