"""A TCP proxy that spoils connections on purpose: cuts them, delays, splits and swallows what they carry."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from tests.conftest import Database


@dataclass(frozen=True)
class Fault:
    """What happens to the bytes that come from the server.

    Attributes:
        cut_after: close everything once so many have passed, counted over all connections.
        swallow_after: from then on nothing passes in either direction, and nothing is closed.
        freeze_at: once a client says this, nothing of it or to it passes any more, and nothing is closed.
        freeze_all: then every other connection is frozen as well.
        piece: pass on at most so many at a time, each piece a segment of its own.
        pause_seconds: wait so long before each read.
        reset: close by RST, as a machine does that knows nothing of the connection.
    """

    cut_after: int | None = None
    swallow_after: int | None = None
    freeze_at: bytes | None = None
    freeze_all: bool = True
    piece: int = 65536
    pause_seconds: float = 0.0
    reset: bool = False


class Proxy:
    """Listens on a loopback port and passes on to a server; a context manager.

    Attributes:
        passed: bytes from the server so far, over all connections.
    """

    def __init__(self, database: Database, fault: Fault | None = None) -> None:
        self.passed = 0
        self._database = database
        self._fault = fault or Fault()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def become(self, **fault: object) -> None:
        """From now on another fault; what has passed is counted anew."""
        with self._lock:
            self.passed = 0
            self._fault = replace(Fault(), **fault)  # type: ignore[arg-type]

    @property
    def dsn(self) -> str:
        """How to connect through the proxy."""
        port = self._listener.getsockname()[1]
        return self._database.dsn.replace(f"port={self._database.server.port}", f"port={port}")

    def _accept(self) -> None:
        while not self._ended.is_set():
            if not select.select([self._listener], [], [], 0.05)[0]:
                continue
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self._database.server.port))
            except OSError:
                client.close()
                continue
            self._open |= {client, server}
            thread = threading.Thread(target=self._pass_on, args=(client, server), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        frozen = False
        with contextlib.suppress(OSError, ValueError):
            while not self._ended.is_set():
                ready = select.select([client, server], [], [], 0.05)[0]
                frozen = frozen or (client in ready and self._freezes(client))
                if frozen or self._swallows():
                    time.sleep(0.01)
                    continue
                if client in ready and not _copy(client, server, 65536):
                    break
                if server in ready and not self._answer(server, client):
                    break
        self._close(client, server)

    def _answer(self, server: socket.socket, client: socket.socket) -> bool:
        """Pass on from the server; False when that is over."""
        fault = self._fault
        time.sleep(fault.pause_seconds)
        data = server.recv(min(65536, fault.piece * 64))
        with self._lock:
            left = len(data) if fault.cut_after is None else max(0, fault.cut_after - self.passed)
            self.passed += len(data)
        for at in range(0, min(len(data), left), fault.piece):
            client.sendall(data[at : min(at + fault.piece, left)])
        return bool(data) and left >= len(data)

    def _swallows(self) -> bool:
        after = self._fault.swallow_after
        return after is not None and self.passed >= after

    def _freezes(self, client: socket.socket) -> bool:
        """Is this what the fault waits for?"""
        word, every = self._fault.freeze_at, self._fault.freeze_all
        found = word is not None and word in client.recv(65536, socket.MSG_PEEK)
        if found and every:
            self.become(swallow_after=0)
        return found

    def _close(self, client: socket.socket, server: socket.socket) -> None:
        for each in (client, server):
            if self._fault.reset:
                with contextlib.suppress(OSError):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            each.close()
            self._open.discard(each)

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(5)
        self._listener.close()


def _copy(source: socket.socket, target: socket.socket, size: int) -> bool:
    data = source.recv(size)
    target.sendall(data)
    return bool(data)
