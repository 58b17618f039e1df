"""A server before a REST catalog that lends keys for each table, for some seconds, as real ones do."""

from __future__ import annotations

import json
from collections import Counter
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.lending_store import LendingStore
from tests.spark.login_proxy import LoginProxy


class LendingProxy(LoginProxy):
    """One server.

    Args:
        to: the REST catalog.
        store: the server that knows the keys.
        seconds: how long keys are good.

    Attributes:
        lent: for which places keys were lent, and how often.
        begun: the names of tables that were begun (``stage-create``), in order.
        lends, signs: what it does for who asks for lent keys.
        elsewhere: it puts tables where it likes.
        whole: it says that keys are for all of S3, as some do, and not for the table's place.
    """

    def __init__(self, to: str, store: LendingStore, seconds: float = 3600) -> None:
        super().__init__(to)
        self.store, self.seconds = store, seconds
        self.lent: Counter[str] = Counter()
        self.begun: list[str] = []
        self.lends, self.signs, self.whole, self.elsewhere = True, False, False, False

    def answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        """The catalog's answer; with keys, if it is about a table and they were asked for."""
        if handler.command == "POST" and b'"stage-create": true' in body:
            self.begun.append(json.loads(body)["name"])
        status, content = self.passed_on(handler, body)
        asked = "vended-credentials" in (handler.headers.get("X-Iceberg-Access-Delegation") or "")
        if status >= 300 or not asked or b'"metadata"' not in content:
            return status, content
        said: dict[str, Any] = json.loads(content)
        if self.elsewhere:
            said["metadata"]["location"] += "-1"
        plain = {
            "s3.endpoint": self.store.endpoint,
            "s3.path-style-access": "true",
            "client.region": "us-east-1",
        }
        said["config"] = {**plain, **({"s3.remote-signing-enabled": "true"} if self.signs else {})}
        if self.lends:
            location = said["metadata"]["location"]
            self.lent[location] += 1
            keys = self.store.lend(location, self.seconds)
            prefix = "s3" if self.whole else location
            said["storage-credentials"] = [{"prefix": prefix, "config": {**plain, **keys}}]
        return status, json.dumps(said).encode()
