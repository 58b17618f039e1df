"""A browser as a person uses it: pages, real mouse clicks, typed text, pictures.

Chromium is driven by its own DevTools protocol over a websocket, so no driver program and no library beside
the locked ones is needed.  Waiting is always for something that can be seen.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

from websockets.sync.client import connect

from tests.e2e.chromium import Chromium

WIDTH, HEIGHT = 1200, 900
_OPTIONS = (
    "--headless=new",
    "--remote-debugging-port=0",
    "--no-first-run",
    "--no-sandbox",  # there may be neither root's helper nor user namespaces; it visits loopback only
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-proxy-server",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    f"--window-size={WIDTH},{HEIGHT}",
)
_SECONDS_MAX = 60.0
_TRIES, _TAKEN_SECONDS = 4, 5.0
_LOADED = (
    "document.readyState + performance.getEntriesByType('resource').length"
    " + (document.body ? document.body.innerText : '')"
)
# A string that a statement is looked up by: the innermost element that shows it.
_FIND = """
(wanted => {
  const [selector, text, number] = wanted;
  const seen = e => { const r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0; };
  const label = e => (e.innerText || e.value || e.getAttribute('aria-label') || '').trim();
  const all = [...document.querySelectorAll(selector)].filter(seen);
  const named = e => label(e) === text || e.getAttribute('aria-label') === text;
  const found = text === null ? all : all.filter(named);
  if (!found.length) return null;
  const element = found.at(number);
  if (!element) return null;
  element.scrollIntoView({block: 'center', inline: 'center'});
  const box = element.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
})(%s)
"""


class Browser:
    """One page of a running Chromium; ``with open_browser(chromium) as it``."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.requested: list[str] = []  # addresses, once `count_requests` has been called
        self.refused: list[str] = []  # those of them that were answered with an error, or not at all
        for domain in ("Page", "Runtime"):
            self._call(f"{domain}.enable")

    def count_requests(self) -> None:
        """From now on, note what the page asks for."""
        self._call("Network.enable")

    def go(self, url: str) -> None:
        """Open an address."""
        self._call("Page.navigate", url=url)

    def value(self, script: str) -> Any:
        """What a JavaScript expression gives."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"])
        return found["result"].get("value")

    def text(self) -> str:
        """What the page shows, as text; an editor's spaces, which do not break, are spaces."""
        return str(self.value("document.body ? document.body.innerText : ''")).replace("\xa0", " ")

    def wait_text(self, *wanted: str, seconds_max: float = _SECONDS_MAX) -> str:
        """Wait until the page shows all of these."""
        shown = self._until(
            lambda: next((text for text in [self.text()] if all(w in text for w in wanted)), None),
            f"the page shows {wanted}",
            seconds_max,
        )
        return str(shown)

    def click(
        self,
        selector: str,
        text: str | None = None,
        *,
        number: int = -1,
        seconds_max: float = _SECONDS_MAX,
    ) -> None:
        """Click on one of these, with the mouse: the last, or that number; by its text or label, if given."""
        script = _FIND % json.dumps([selector, text, number])
        x, y = self._until(lambda: self._still(script), f"there is {selector} {text or ''}", seconds_max)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            count = 0 if kind == "mouseMoved" else 1
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=count)

    def do(self, step: Callable[[], None], true: str) -> None:
        """Do something, and again if the page has not taken it: it may move between the look and the click.

        Args:
            step: what is done.
            true: a JavaScript expression that is true then.
        """
        for _ in range(_TRIES):
            step()
            give_up = time.monotonic() + _TAKEN_SECONDS
            while time.monotonic() < give_up:
                if self.value(true):
                    return
                time.sleep(0.1)
        raise AssertionError(f"the page does not take it: {true}; the page:\n{self.text()}")

    def _still(self, script: str) -> Any:
        """Where something is, once it moves no more."""
        before = self.value(script)
        time.sleep(0.15)
        return before if before is not None and self.value(script) == before else None

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self._call("Input.insertText", text=text)

    def select_all(self) -> None:
        """What is typed next takes the place of all that the field holds."""
        self.value("document.activeElement.select()")

    def press(self, key: str, code: int) -> None:
        """Press a key that is no letter."""
        for kind in ("rawKeyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def resize(self, width: int, height: int) -> None:
        """Give the page another size, as of a phone."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)

    def dark(self, dark: bool) -> None:
        """Let the page know that its reader likes it dark, or light."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", features=features)

    def picture(self, path: Path) -> None:
        """Save what is to be seen."""
        time.sleep(0.4)  # animations end
        shot = self._until(lambda: self._call("Page.captureScreenshot", format="png"), "a picture", 20.0)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _until(self, asked: Any, what: str, seconds_max: float) -> Any:
        """Wait for something; the seconds count from when the page last changed."""
        shown, since = "", time.monotonic()
        while True:
            with contextlib.suppress(AssertionError):
                found = asked()
                if found is not None:
                    return found
            try:
                now = str(self.value(_LOADED))
            except AssertionError:  # the page is just being left for another
                now = ""
            if now != shown or not now:
                shown, since = now, time.monotonic()
            if time.monotonic() - since > seconds_max:
                raise AssertionError(f"not so after {seconds_max:.0f} s: {what}; the page:\n{self.text()}")
            time.sleep(0.1)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=_SECONDS_MAX))
            self._note(answer.get("method"), answer.get("params", {}))
            if answer.get("id") == number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def _note(self, event: str | None, said: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requested.append(said["request"]["url"])
        if event == "Network.responseReceived" and said["response"]["status"] >= 400:
            self.refused.append(said["response"]["url"])
        if event == "Network.loadingFailed" and not said.get("canceled"):
            self.refused.append(said["errorText"])


@contextlib.contextmanager
def open_browser(chromium: Chromium) -> Iterator[Browser]:
    """Start a Chromium with a profile of its own; it ends with the block, and nothing of it stays."""
    folder = Path(tempfile.mkdtemp(prefix="slotlake-browser-"))
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [str(chromium.program), *_OPTIONS, f"--user-data-dir={folder}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **chromium.environment, "HOME": str(folder)},
        )
    try:
        with connect(_page(folder, process), max_size=None, proxy=None) as socket:
            yield Browser(socket)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _page(folder: Path, process: subprocess.Popen[bytes]) -> str:
    """Where the page can be driven."""
    note = folder / "DevToolsActivePort"
    give_up = time.monotonic() + _SECONDS_MAX
    while time.monotonic() < give_up and process.poll() is None:
        with contextlib.suppress(OSError, ValueError, IndexError, StopIteration):  # it may be empty yet
            port = int(note.read_text().split()[0])
            opened = build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}/json/list", timeout=10)
            pages = json.loads(opened.read())
            return str(next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page"))
        time.sleep(0.1)
    said = (folder / "chromium.log").read_text(errors="replace")[-1000:]
    raise AssertionError(f"Chromium cannot be driven: {said}")
