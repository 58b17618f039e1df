"""An S3 server that knows no user: only keys that were lent, each for one prefix and for some seconds."""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import parse_qs, unquote, urlsplit

from slotlake.infra.local.java import find_java
from slotlake.infra.local.object_store import LocalObjectStore
from tests.faulty_store import FaultyStore

_USER: Final = re.compile(r"Credential=([^/]+)/")


class OpenStore(LocalObjectStore):
    """S3Proxy that asks nobody who he is."""

    def _conf(self) -> dict[str, str]:
        return {
            **super()._conf(),
            "s3proxy.authorization": "none",
            "s3proxy.ignore-unknown-headers": "true",  # the token of temporary keys
        }


class LendingStore:
    """One server; a context manager.

    Args:
        folder: where its objects are.

    Attributes:
        inside: the server itself, which the REST catalog uses.
        refused: for each request that was refused: why, and its path.
        used: the places whose keys were used.
    """

    def __init__(self, folder: Path) -> None:
        self.inside = OpenStore(folder, find_java())
        self.refused: list[tuple[str, str]] = []
        self.used: set[str] = set()
        self._lent: dict[str, tuple[str, str, float]] = {}
        self._lock = threading.Lock()
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        self._closing.enter_context(self.inside)
        self._gate = self._closing.enter_context(FaultyStore(self.inside.endpoint, refusal=self._refusal))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    @property
    def endpoint(self) -> str:
        """Its address."""
        return self._gate.endpoint

    def lend(self, location: str, seconds: float) -> dict[str, str]:
        """New keys for what lies at a location, by Iceberg's names.

        Args:
            location: a table's.
            seconds: how long they are good.
        """
        key, token = f"LENT{secrets.token_hex(8).upper()}", secrets.token_hex(8)
        ends = time.time() + seconds
        with self._lock:
            self._lent[key] = location.partition("://")[2].rstrip("/") + "/", token, ends
        return {
            "s3.access-key-id": key,
            "s3.secret-access-key": secrets.token_hex(8),
            "s3.session-token": token,
            "s3.session-token-expires-at-ms": str(int(ends * 1000)),
        }

    def _refusal(self, _method: str, path: str, headers: Mapping[str, str], body: bytes) -> str | None:
        user = _USER.search(_header(headers, "authorization"))
        with self._lock:
            place, token, ends = self._lent.get(user[1] if user else "", ("", "", 0.0))
            why = None
            if not place:
                why = "InvalidAccessKeyId"
            elif _header(headers, "x-amz-security-token") != token:
                why = "InvalidToken"
            elif time.time() > ends:
                why = "ExpiredToken"
            elif not all(f"{each}/".startswith(place) for each in _objects(path, body)):
                why = "AccessDenied"
            if why is None:
                self.used.add(place)
            else:
                self.refused.append((why, path))
            return why


def _header(headers: Mapping[str, str], name: str) -> str:
    return next((text for given, text in headers.items() if given.lower() == name), "")


def _objects(path: str, body: bytes) -> list[str]:
    """``bucket/key`` of what a request is about: an object, those that it removes, or a list's prefix."""
    parts = urlsplit(path)
    bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
    query = parse_qs(parts.query, keep_blank_values=True)
    if key:
        return [f"{bucket}/{key}"]
    if "delete" in query:
        return [f"{bucket}/{each}" for each in re.findall(r"<Key>([^<]*)</Key>", body.decode())]
    return [f"{bucket}/{query.get('prefix', [''])[0].rstrip('/')}"]
