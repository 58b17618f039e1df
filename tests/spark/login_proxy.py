"""A server before a REST catalog that lets nobody in without a token of its own, as real ones do.

It gives tokens for client credentials (and for an older token, as Iceberg's Java client asks for), which end
soon; it answers 401 to any other, and 403 to a user who may not.
"""

from __future__ import annotations

import base64
import itertools
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs

import requests

TOKENS = "/v1/oauth/tokens"
_SKIPPED = {
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "accept-encoding",
    "content-encoding",
}


class LoginProxy:
    """One server; a context manager that starts and ends it.

    Attributes:
        given: how many tokens it has given.
        passed: the programs whose requests it has passed on, by the first word of their User-Agent.
        forbids: it answers 403 to everything but a login.
        drops: how many requests more it answers by ending the connection.
        configs: how often its configuration was asked for.
    """

    def __init__(self, to: str, *, client: str = "me", secret: str = "s3cret", life: float = 3600) -> None:
        self._to, self._client, self._secret, self._life = to, client, secret, life
        self._numbers = itertools.count(1)
        self._ends: dict[str, float] = {}
        self.given = 0
        self.configs = 0
        self.passed: set[str] = set()
        self.refused = 0
        self.forbids = False
        self.drops = 0
        self.scopes: set[str] = set()

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.uri = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def revoke(self) -> None:
        """Accept no token that was given."""
        self._ends.clear()

    def token(self, form: dict[str, str], basic: bool) -> dict[str, Any] | None:
        """A new token, for who may have one."""
        known = (form.get("client_id"), form.get("client_secret")) == (self._client, self._secret)
        exchanges = "token-exchange" in form.get("grant_type", "")
        exchanged = exchanges and (basic or self.accepts(form["subject_token"]))
        if not (known or exchanged):
            return None
        self.scopes.add(form.get("scope", ""))
        self.given += 1
        token = f"token-{next(self._numbers)}"
        self._ends[token] = time.monotonic() + self._life
        return {"access_token": token, "token_type": "bearer", "expires_in": int(self._life)}

    def accepts(self, token: str) -> bool:
        """Whether this token is good now."""
        return self._ends.get(token, 0.0) > time.monotonic()

    def answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        """The status and the body of the answer to a request."""
        if handler.path.startswith(TOKENS):
            form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
            login = base64.b64encode(f"{self._client}:{self._secret}".encode()).decode()
            token = self.token(form, handler.headers.get("Authorization") == f"Basic {login}")
            refusal = {"error": "invalid_client", "error_description": "who are you?"}
            return (200, json.dumps(token).encode()) if token else (401, json.dumps(refusal).encode())
        given = (handler.headers.get("Authorization") or "").removeprefix("Bearer ")
        if self.forbids or not self.accepts(given):
            self.refused += 1
            status = 403 if self.forbids else 401
            error = {"message": "no", "type": "NotAuthorizedException", "code": status}
            return status, json.dumps({"error": error}).encode()
        return self.passed_on(handler, body)

    def passed_on(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        """The catalog's own answer."""
        self.passed.add((handler.headers.get("User-Agent") or "?").partition("/")[0].partition(" ")[0])
        self.configs += handler.path.startswith("/v1/config")
        headers = {k: v for k, v in handler.headers.items() if k.lower() not in _SKIPPED}
        answer = requests.request(
            handler.command, self._to + handler.path, data=body, headers=headers, timeout=60
        )
        return answer.status_code, answer.content


class _Handler(BaseHTTPRequestHandler):
    proxy: LoginProxy
    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.proxy.drops:
            self.proxy.drops -= 1
            self.close_connection = True
            return
        status, content = self.proxy.answer(self, body)
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if status != 204 and self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_POST = do_DELETE = do_HEAD = _pass_on  # noqa: N815 - http.server's names

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""
