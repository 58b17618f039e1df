"""A file of JSON lines that does not grow without end: when it is full, it becomes the older of two files.

Each record is written by one call of the operating system, with its line break before it. So several
processes may write, a record that a killed process has left unfinished spoils no other, and a reader passes
over it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]
_BYTES_MAX = 4 << 20
_RECORD_BYTES = 4096  # more than nearly all records have


class Lines:
    """Records with a key ``time`` (seconds since 1970), in the order in which they were written.

    Args:
        path: the newer file; the older one has the suffix ``.1``.
        bytes_max: size of the newer file at which it becomes the older one.
        leaving: called with the path of the older file before it is replaced.
    """

    def __init__(
        self, path: Path, bytes_max: int = _BYTES_MAX, leaving: Callable[[Path], None] = lambda path: None
    ) -> None:
        self.path = path
        self.older = path.with_name(f"{path.name}.1")
        self._bytes_max = bytes_max
        self._leaving = leaving

    def append(self, record: Record) -> None:
        """Write a record.

        Raises:
            OSError: it cannot be written.
        """
        line = ("\n" + json.dumps(record, ensure_ascii=False)).encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(handle, line)
            full = os.fstat(handle).st_size > self._bytes_max
        finally:
            os.close(handle)
        if full:
            if self.older.exists():
                self._leaving(self.older)
            self.path.replace(self.older)

    def since(self, moment: float) -> list[Record]:
        """Return the records from a moment on (seconds since 1970), the oldest first."""
        records = []
        for record in self._backwards():
            if record["time"] < moment:
                break
            records.append(record)
        return records[::-1]

    def newest(self, count: int = 1) -> list[Record]:
        """Return the last records, the oldest first."""
        records = [record for record, _ in zip(self._tail(count), range(count), strict=False)]
        if len(records) < count:
            records = [record for record, _ in zip(self._backwards(), range(count), strict=False)]
        return records[::-1]

    def _tail(self, count: int) -> Iterator[Record]:
        """The records at the end of the newer file, the newest first, without reading all of it."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = max(0, size - count * _RECORD_BYTES)
                file.seek(start)
                content = file.read()
        except OSError:
            return
        if start:
            content = content[content.find(b"\n") + 1 :]
        yield from parsed(content)

    def _backwards(self) -> Iterator[Record]:
        for path in (self.path, self.older):
            try:
                yield from parsed(path.read_bytes())
            except OSError:
                continue


def parsed(content: bytes) -> Iterator[Record]:
    """Yield the records of a file's content, the newest first, without unfinished ones."""
    for line in reversed(content.split(b"\n")):
        try:
            record = json.loads(line) if line else None
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("time"), int | float):
            yield record
