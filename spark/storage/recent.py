"""Small metadata files read or written lately, each asked for once: a file of a lake never changes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection
from typing import Final

_FILE_BYTES_MAX: Final = 1 << 20


class RecentContent:
    """Bytes by location; those that were used longest ago leave first.

    Args:
        bytes_max: so much is kept in memory.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._contents: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, location: str) -> bytes | None:
        """Return a file's bytes, if they are known."""
        with self._lock:
            if location in self._contents:
                self._contents.move_to_end(location)
            return self._contents.get(location)

    def put(self, location: str, content: bytes) -> None:
        """Keep the bytes of a small metadata file.

        Data files and deletion vectors are read each time: a verification must see what is stored.
        """
        if len(content) > _FILE_BYTES_MAX or "/metadata/" not in location:
            return
        with self._lock:
            self._bytes += len(content) - len(self._contents.pop(location, b""))
            self._contents[location] = content
            while self._bytes > self._bytes_max:
                self._bytes -= len(self._contents.popitem(last=False)[1])

    def drop(self, locations: Collection[str]) -> None:
        """Forget files that are removed, or are not what they were taken for."""
        with self._lock:
            for location in locations:
                self._bytes -= len(self._contents.pop(location, b""))
