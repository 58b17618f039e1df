"""A webhook on loopback that keeps what it gets, and answers late, with an error, or not at all."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "hush-3f9a71c4"


@dataclass
class Webhook:
    """A receiver of messages; ``messages`` are apprise's: title, message, type."""

    port: int = 0
    code: int = 200
    delay_seconds: float = 0.0
    messages: list[dict[str, Any]] = field(default_factory=list)
    tries: int = 0
    release: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        """Its address for apprise, with a secret in it."""
        return f"json://127.0.0.1:{self.port}/{SECRET}"

    def take(self) -> list[dict[str, Any]]:
        """Return the messages so far, and forget them."""
        taken, self.messages = self.messages, []
        return taken

    def one(self) -> dict[str, Any]:
        """Return the only message since the last call."""
        (message,) = self.take()
        return message


@contextmanager
def webhook() -> Iterator[Webhook]:
    """A webhook that takes all messages, until told otherwise."""
    hook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == f"/{SECRET}"
            hook.tries += 1
            if hook.delay_seconds:
                hook.release.wait(hook.delay_seconds)
            if hook.code == 200:
                hook.messages.append(json.loads(content))
            self.send_response(hook.code)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hook.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hook
    finally:
        hook.release.set()
        server.shutdown()
        server.server_close()
