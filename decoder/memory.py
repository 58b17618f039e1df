"""What is remembered of something while it is open, and forgotten with it.

A memory belongs to what is opened and closed (a pipeline, the settings of a lake); each module has at most
one object of each of its classes there.  So two lakes, or two runs, never share what they remember.
"""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar

T = TypeVar("T")


class Memory:
    """At most one object of each class; threads may use it together. A forked process begins with none."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._parts: dict[type, Any] = {}

    def get(self, kind: type[T]) -> T | None:
        """Return the object of a class; None if there is none."""
        part: T | None = self._own().get(kind)
        return part

    def put(self, part: object) -> None:
        """Remember an object instead of the one of its class before."""
        self._own()[type(part)] = part

    def of(self, kind: type[T]) -> T:
        """Return the object of a class; who asks first makes it."""
        parts = self._own()
        with self._lock:
            if kind not in parts:
                parts[kind] = kind()
            part: T = parts[kind]
            return part

    def forget(self, kind: type) -> None:
        """Forget the object of a class, if there is one."""
        self._own().pop(kind, None)

    def close(self) -> None:
        """Forget all, and close what has connections."""
        parts, self._parts = self._own(), {}
        for part in parts.values():
            if hasattr(part, "close"):
                part.close()

    def _own(self) -> dict[type, Any]:
        if self._process != os.getpid():  # connections are their process's, and a lock may have been held
            self._begin()
        return self._parts
