"""Counts the requests to a server of this machine: how many, whose, and how many of them one after another.

A TCP forwarder that only looks for the heads of HTTP requests; what it passes on stays as it is, so
signatures hold.  A client sends the next request of a connection after the answer to the one before, so a
head is always at the beginning of what is received.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import unquote

_HEAD: Final = re.compile(rb"(GET|PUT|HEAD|POST|DELETE) (\S+) HTTP/1\.1\r\n")
_AGENT: Final = re.compile(rb"(?i)\r\nuser-agent: ([^\r\n]*)")
_CHUNK_BYTES: Final = 1 << 16
# By the end of an object's name; pyiceberg's and Iceberg's names are alike.
_KINDS: Final = {
    r"\.metadata\.json$": "metadata file",
    r"/snap-[^/]*\.avro$": "list of manifests",
    r"\.avro$": "manifest",
    r"\.puffin$": "vectors",
    r"\.parquet$": "data file",
    r"\.zip$": "batch",
}


@dataclass
class Request:
    """A request and when it was under way, in seconds of the monotonic clock.

    Attributes:
        by: ``Spark`` or ``slotlake``.
        ended: when the last of its answer came; as long as none has come, when it was begun.
    """

    method: str
    target: str
    by: str
    begun: float
    ended: float

    @property
    def kind(self) -> str:
        """What it was about."""
        path, _, query = self.target.partition("?")
        if "prefix=" in query or "list-type" in query:
            return "list of objects"
        kind = next((kind for end, kind in _KINDS.items() if re.search(end, unquote(path))), "other")
        return f"{kind} of commits" if "/commits/" in path else kind

    def __str__(self) -> str:
        return f"{self.by}: {self.method} {self.kind}"


def counted(requests: Sequence[Request]) -> Counter[str]:
    """Return how many requests there were of whom, by which method, about what."""
    return Counter(map(str, requests))


def one_after_another(requests: Sequence[Request]) -> int:
    """Return the length of the longest chain of requests of which each began after the one before had ended.

    A request that waits for another begins after it, so no chain of waiting is longer.
    """
    length, last = 0, float("-inf")
    for request in sorted(requests, key=lambda each: each.ended):
        if request.begun >= last:
            length, last = length + 1, request.ended
    return length


class Forwarder:
    """A way to a server of this machine that notes requests; a context manager.

    Args:
        target: the server's port.

    Attributes:
        port: where clients reach it.
        latency_seconds: for so long each request is withheld. Requests that do not wait for each other are
            seen to be under way together only where each takes a while, as over a network.
    """

    def __init__(self, target: int) -> None:
        self.latency_seconds = 0.0
        self._target = target
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def take(self) -> list[Request]:
        """Return the requests since the last time."""
        with self._lock:
            requests, self._requests = self._requests, []
        return requests

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                under_way: list[Request] = []
                for pair in ((self._ask, client, server), (self._answer, server, client)):
                    threading.Thread(target=_pass_on, args=(*pair, under_way), daemon=True).start()

    def _ask(self, content: bytes, under_way: list[Request]) -> None:
        head = _HEAD.match(content)
        if head is None:
            return
        agent = _AGENT.search(content)
        by = "Spark" if agent and b"aws-sdk-java" in agent[1] else "slotlake"
        now = time.monotonic()
        request = Request(head[1].decode(), head[2].decode(), by, now, now)
        under_way[:] = [request]
        with self._lock:
            self._requests.append(request)
        time.sleep(self.latency_seconds)

    def _answer(self, content: bytes, under_way: list[Request]) -> None:
        del content
        for request in under_way:
            request.ended = time.monotonic()


def _pass_on(
    look: Callable[[bytes, list[Request]], None],
    source: socket.socket,
    target: socket.socket,
    under_way: list[Request],
) -> None:
    with suppress(OSError):
        while content := source.recv(_CHUNK_BYTES):
            look(content, under_way)
            target.sendall(content)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
            each.close()
