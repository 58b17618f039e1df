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
# The site's own worker, which its search page asks: one index for all questions.
_SEARCH = """
(async questions => {
  const worker = new Worker('search/worker.js');
  const answer = test => new Promise(done => {
    worker.addEventListener('message', function once(event) {
      if (test(event.data)) { worker.removeEventListener('message', once); done(event.data); }
    });
  });
  worker.postMessage({init: true});
  await answer(data => data.allowSearch);
  const found = [];
  for (const query of questions) {
    worker.postMessage({query});
    found.push((await answer(data => data.results)).results.map(each => each.location));
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
        browser.wait_text("✕ slot missing", seconds_max=30)
        assert browser.value("document.querySelector('input:checked').id") == "shop-week"
        answers["state"] = 500
        browser.wait_text("The server does not answer", seconds_max=30)


def test_the_sites_search_finds_the_answers_to_forty_questions(chromium: Chromium, tmp_path: Path) -> None:
    built = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    subprocess.run(built, cwd=ROOT, capture_output=True, check=True)
    asked = _QUESTION.findall((ROOT / "docs" / "questions.md").read_text())
    words = [" ".join(re.findall(r"\w+", question)) for question, _ in asked]
    with (
        _served(partial(_Quiet, directory=str(tmp_path))) as address,
        open_browser(chromium) as browser,
    ):
        browser.go(f"{address}index.html")
        browser.wait_text("slotlake")
        found = browser.value(_SEARCH % json.dumps(words))
    lost = []
    for (question, page), locations in zip(asked, found, strict=True):
        pages = dict.fromkeys(each.partition("#")[0] for each in locations)
        ranked = [each for each in pages if each != "questions.html"]
        wanted = page.replace("README.md", "index.html").replace(".md", ".html")
        if wanted not in ranked[:_FOUND_AMONG]:
            lost.append((question, page, ranked.index(wanted) if wanted in ranked else None))
    assert len(asked) == 40
    assert lost == [], lost
