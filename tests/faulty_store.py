"""A faulty way to an S3 server: a real HTTP server before it that fails as stores and networks do, by rules.

A request goes to the server as it came, so its signature holds.  Each rule says which requests it meets, how
many of them or with which probability (seeded), and what becomes of them (`Fault`).
"""

from __future__ import annotations

import http.client
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

_HOP: Final = {"connection", "keep-alive", "transfer-encoding", "expect"}
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER of no time: closing sends RST
_ANSWER: Final = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{}</Code><Message>{}</Message></Error>'


# Says by an error code of S3 why a request (its method, path, headers and body) is refused.
Refusal = Callable[[str, str, Mapping[str, str], bytes], str | None]


class Fault(Enum):
    """What becomes of a request."""

    SLOW_DOWN = "503 SlowDown; the server does not see it"
    ERROR = "500 InternalError; the server does not see it"
    EXPIRED = "403 ExpiredToken; the server does not see it"
    RESET_BEFORE = "the connection is reset; the server does not see it"
    RESET_AFTER = "the server does it; the connection is reset before the answer"
    CUT = "the answer's body ends in the middle"
    SLOW = "the server does it; the answer takes `seconds`"
    SILENT = "the server does not see it, and no answer ever comes"


@dataclass
class Rule:
    """Which requests meet a fault.

    Attributes:
        fault: what becomes of them.
        methods: ``GET``, ``PUT``, …; empty: all.
        path: a regular expression that the request's path and query must match somewhere.
        times: so many requests at most.
        probability: of each request that fits.
        seconds: how long a slow answer takes.
        met: how many requests it met.
    """

    fault: Fault
    methods: tuple[str, ...] = ()
    path: str = ""
    times: float = float("inf")
    probability: float = 1.0
    seconds: float = 1.0
    met: int = 0


@dataclass
class _State:
    """What the threads of the server share."""

    server: tuple[str, int]
    rules: list[Rule] = field(default_factory=list)
    random: random.Random = field(default_factory=lambda: random.Random(1))
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, str, Fault | None]] = field(default_factory=list)
    refusal: Refusal = lambda _method, _path, _headers, _body: None

    def rule_for(self, method: str, path: str) -> Rule | None:
        with self.lock:
            fitting = (rule for rule in self.rules if self._meets(rule, method, path))
            rule = next(fitting, None)
            if rule is not None:
                rule.met += 1
            self.requests.append((method, path, rule.fault if rule else None))
            return rule

    def _meets(self, rule: Rule, method: str, path: str) -> bool:
        fits = (not rule.methods or method in rule.methods) and re.search(rule.path, path) is not None
        return fits and rule.met < rule.times and self.random.random() < rule.probability


class FaultyStore:
    """The faulty way to one S3 server; a context manager.

    Args:
        endpoint: ``http://host:port`` of the server.
        seed: of the rules that have a probability.
        refusal: says which requests are refused; None: none is.

    Attributes:
        requests: method, path with query, and fault of each request so far.
    """

    def __init__(self, endpoint: str, seed: int = 1, refusal: Refusal | None = None) -> None:
        parts = urlsplit(endpoint)
        self._state = _State((parts.hostname or "", parts.port or 80), random=random.Random(seed))
        if refusal is not None:
            self._state.refusal = refusal
        state = self._state

        class Handler(_Handler):
            shared = state

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def endpoint(self) -> str:
        """Where clients reach it."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def requests(self) -> list[tuple[str, str, Fault | None]]:
        """A copy of what was asked."""
        with self._state.lock:
            return list(self._state.requests)

    def add(self, fault: Fault, *methods: str, **options: Any) -> Rule:
        """Add a rule; of several that fit the first counts.

        Args:
            fault: what becomes of a request.
            methods: ``GET``, ``PUT``, …; none: all.
            options: the other attributes of `Rule`.
        """
        rule = Rule(fault, methods, **options)
        with self._state.lock:
            self._state.rules.append(rule)
        return rule

    def heal(self) -> Counter[Fault]:
        """Remove all rules, and return how many requests met which fault since the last time."""
        with self._state.lock:
            met = Counter({rule.fault: 0 for rule in self._state.rules})
            for rule in self._state.rules:
                met[rule.fault] += rule.met
            self._state.rules.clear()
            self._state.ended.set()
            self._state.ended = threading.Event()
            return met

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.heal()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client, and one to the server."""

    shared: _State
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    _upstream: http.client.HTTPConnection | None = None

    def _serve(self) -> None:
        body = self._body()
        refused = self.shared.refusal(self.command, self.path, dict(self.headers), body)
        if refused is not None:
            self._refuse(403, refused, "These keys may not.")
            return
        rule = self.shared.rule_for(self.command, self.path)
        fault = rule.fault if rule else None
        if fault is Fault.SLOW_DOWN:
            self._refuse(503, "SlowDown", "Please reduce your request rate.")
        elif fault is Fault.ERROR:
            self._refuse(500, "InternalError", "We encountered an internal error.")
        elif fault is Fault.EXPIRED:
            self._refuse(403, "ExpiredToken", "The provided token has expired.")
        elif fault is Fault.RESET_BEFORE:
            self._reset()
        elif fault is Fault.SILENT:
            self.shared.ended.wait(300)
            self._reset()
        else:
            self._forward(body, rule)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _forward(self, body: bytes, rule: Rule | None) -> None:
        fault = rule.fault if rule else None
        status, headers, content = self._ask(body)
        if fault is Fault.RESET_AFTER:
            self._reset()
            return
        if rule is not None and fault is Fault.SLOW:
            self.shared.ended.wait(rule.seconds)
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _HOP:
                self.send_header(name, value)
        if not any(name.lower() == "content-length" for name, _ in headers):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if fault is Fault.CUT and self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            time.sleep(0.05)  # so that the client has the half before the connection ends
            self._reset()
            return
        self.wfile.write(content)
        self.wfile.flush()

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        if self._upstream is None:
            self._upstream = http.client.HTTPConnection(*self.shared.server, timeout=60)
        self._upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _HOP and name.lower() != "content-length":
                self._upstream.putheader(name, value)
        if body or self.command in ("PUT", "POST"):
            self._upstream.putheader("Content-Length", str(len(body)))
        try:
            self._upstream.endheaders(body or None)
            answer = self._upstream.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        except (OSError, http.client.HTTPException):
            self._upstream = None
            raise

    def _refuse(self, status: int, code: str, message: str) -> None:
        content = b"" if self.command == "HEAD" else _ANSWER.format(code, message).encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.connection.close()

    def handle(self) -> None:
        """Serve a connection; a client that goes away is no error of the test."""
        try:
            super().handle()
        except (OSError, ValueError, http.client.HTTPException):
            self.close_connection = True

    def finish(self) -> None:
        """Close what is left of a connection."""
        with suppress(OSError, ValueError):
            super().finish()
        if self._upstream is not None:
            self._upstream.close()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""
