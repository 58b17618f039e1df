r"""A file of a slot's raw messages, byte for byte, which can be decoded again anywhere.

    file    = "slotlake raw 1\n" header record* end
    record  = kind:1 byte  length:u32  body:length bytes          integers big-endian
    header    'h' JSON: plugin, options, start_lsn, server_version, two_phase
    message   'w' lsn:u64 payload            lsn as in XLogData's start
    answer    't' JSON: the catalog's answer that came while the message before it was read
    end       'e' count:u64 of messages

Invariant: a file without its end record, or with anything after it, is an error, so that an incomplete
recording cannot be taken for a complete one.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from slotlake.decoder.errors import ProtocolError, SlotlakeError
from slotlake.decoder.plugins.catalog import RecordedCatalog, table_facts
from slotlake.decoder.plugins.model import Startup

MAGIC = b"slotlake raw 1\n"
_HEAD = struct.Struct(">cI")
_LSN = struct.Struct(">Q")
BROKEN = "the recording is damaged or incomplete: record the slot again (`slotlake decode --record`)"
BODY_BYTES_MAX = 1 << 30  # no message of PostgreSQL is larger (MaxAllocSize)


class RecordingWriter:
    """Writes a recording; a context manager that writes the end record if no error occurred.

    Messages stay in memory until `keep`, so that a message after the end position is not written.
    """

    def __init__(self, path: Path, startup: Startup) -> None:
        self._count = 0
        self._pending: list[tuple[bytes, bytes]] = []
        self._path = path
        try:
            self._file: IO[bytes] = open(path, "wb", opener=_private)  # noqa: SIM115 (closed by `close`)
        except OSError as error:
            raise _unusable(path, f"cannot be written: {error.strerror}") from None
        self._file.write(MAGIC)
        header = {
            "plugin": startup.plugin,
            "options": dict(startup.options),
            "start_lsn": startup.start_lsn,
            "server_version": startup.server_version,
            "two_phase": startup.two_phase,
        }
        self._record(b"h", _json(header))

    def message(self, lsn: int, payload: bytes) -> None:
        """Add one message."""
        self._pending.append((b"w", _LSN.pack(lsn) + payload))

    def answer(self, fields: dict[str, Any]) -> None:
        """Add an answer of the catalog."""
        self._pending.append((b"t", _json(fields)))

    def keep(self) -> None:
        """Write everything that was added since the last call."""
        for kind, body in self._pending:
            self._record(kind, body)
            self._count += kind == b"w"
        self._pending.clear()

    def _record(self, kind: bytes, body: bytes) -> None:
        self._file.write(_HEAD.pack(kind, len(body)) + body)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._record(b"e", _LSN.pack(self._count))
        self._file.close()


class Recording:
    """Reads a recording.

    Attributes:
        startup: the facts in its header.
        catalog: the catalog's answers up to the message read last.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.catalog = RecordedCatalog()
        try:
            self._file: IO[bytes] = path.open("rb")
        except OSError as error:
            raise _unusable(path, f"cannot be read: {error.strerror}") from None
        self._offset = 0
        try:
            self.startup = self._opened()
        except ProtocolError:
            self._file.close()
            raise

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Each message with its position; ``catalog`` has the answers that came while it was read.

        Raises:
            ProtocolError: the file is damaged or incomplete.
        """
        count, pending = 0, None
        while True:
            at = self._offset
            kind, body = self._record()
            if kind == b"t":
                self._answer(self._parsed(body))
                continue
            if pending is not None:
                yield pending
                pending = None
            if kind == b"e":
                self._check_end(body, count, at)
                return
            if kind != b"w" or len(body) < _LSN.size:
                raise self._error("a record has an unknown kind, or lacks its position", at)
            pending = (_LSN.unpack_from(body)[0], body[_LSN.size :])
            count += 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _check_end(self, body: bytes, count: int, at: int) -> None:
        if len(body) != _LSN.size or _LSN.unpack(body)[0] != count:
            raise self._error("the end record has another number of messages than the file", at)
        if self._file.read(1):
            raise self._error("bytes are left over after the end record", self._offset)

    def _opened(self) -> Startup:
        if self._take(len(MAGIC), "the file") != MAGIC:
            raise self._error("the file is not a recording of raw messages", 0)
        kind, body = self._record()
        if kind != b"h":
            raise self._error("the first record is not a header", len(MAGIC))
        return self._header(self._parsed(body))

    def _header(self, fields: dict[str, Any]) -> Startup:
        try:
            options = {str(name): str(value) for name, value in fields["options"].items()}
            version, start = int(fields["server_version"]), int(fields["start_lsn"])
            return Startup(str(fields["plugin"]), options, start, version, bool(fields["two_phase"]))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._error("the header lacks a field, or has a wrong one", len(MAGIC)) from None

    def _answer(self, fields: dict[str, Any]) -> None:
        try:
            if "origin" in fields:
                self.catalog.origins[int(fields["origin"])] = fields["name"]
                return
            rows = fields["columns"]
            facts = table_facts(rows) if rows else None
            self.catalog.answers[str(fields["schema"]), str(fields["table"])] = facts
        except (KeyError, TypeError, ValueError, IndexError):
            raise self._error(
                "an answer of the catalog lacks a field, or has a wrong one", self._offset
            ) from None

    def _record(self) -> tuple[bytes, bytes]:
        kind, length = _HEAD.unpack(self._take(_HEAD.size, "the recording"))
        if length > BODY_BYTES_MAX:
            raise self._error("a record is longer than any message can be", self._offset - 4)
        return kind, self._take(length, "a record")

    def _take(self, length: int, what: str) -> bytes:
        part = self._file.read(length)
        if len(part) != length:
            raise self._error(f"the file ends before the end of {what}", self._offset + len(part))
        self._offset += length
        return part

    def _parsed(self, body: bytes) -> dict[str, Any]:
        try:
            record = json.loads(body)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise self._error("a record is not a JSON object", self._offset - len(body))
        return record

    def _error(self, what: str, offset: int) -> ProtocolError:
        where = f"{self._path}, byte offset {offset}"
        return ProtocolError(what, offset=offset, where=where, way_out=BROKEN)


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode()


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner can read, because it contains rows."""
    return os.open(path, flags, 0o600)


def _unusable(path: Path, what: str) -> SlotlakeError:
    way_out = "check the name of the file, and the permissions of the file and its folder"
    return ProtocolError(f"the recording {what}", where=str(path), way_out=way_out)
