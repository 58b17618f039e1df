"""CopyData messages, read from libpq many at a time, without the interpreter lock.

One call of psycopg's `get_copy_data` per message costs more than all of decoding.  So the loop over
libpq's own functions (PQgetCopyData, PQconsumeInput, PQfreemem; libpq manual, section 32.10) is
compiled; the connection stays psycopg's, which also handles notices and errors.  If libpq cannot be
identified with certainty in this process (libpq.py), the same loop runs in Python.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import psycopg
from llvmlite import binding
from numba.core import types
from psycopg import pq

from slotlake.decoder.compiled.jit import Bytes, Ints, compiled
from slotlake.decoder.server.libpq import address, library, same_library

DRAIN_BYTES = 4 << 20
_FIRST_MESSAGES = 1 << 15

_NAMES = {name: f"slotlake_{name}" for name in ("PQgetCopyData", "PQconsumeInput", "PQfreemem", "memcpy")}


def _external(name: str, result: Any, *arguments: Any) -> Any:
    """A C function under its name for compiled code; pointers are plain addresses here."""
    return types.ExternalFunction(_NAMES[name], result(*arguments))


_get_copy_data = _external("PQgetCopyData", types.int32, types.intp, types.intp, types.int32)
_consume_input = _external("PQconsumeInput", types.int32, types.intp)
_free = _external("PQfreemem", types.void, types.intp)
_copy_bytes = _external("memcpy", types.intp, types.intp, types.intp, types.intp)

_DRAINED, _FULL, _ENDED, _FAILED = range(4)
_USED, _COUNT, _WAITING_BYTES = range(3)


@dataclass(frozen=True)
class Frames:
    """The contents of some CopyData messages, back to back.

    Attributes:
        data: uint8[sum of lengths].
        lengths: int64[number of messages].
        ended: the server has ended the copy.
        The arrays are views that the next drain overwrites.
    """

    data: Bytes
    lengths: Ints
    ended: bool


class CopyReader:
    """Reads what has arrived on a connection that is in COPY OUT or COPY BOTH."""

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        self._pgconn = pgconn
        self._compiled = _registered() and same_library(pgconn)
        self._data = np.empty(DRAIN_BYTES + (1 << 20), dtype=np.uint8)
        self._lengths = np.empty(_FIRST_MESSAGES, dtype=np.int64)
        self._cells = np.zeros(1, dtype=np.int64)  # the pointer that PQgetCopyData sets
        self._report = np.zeros(3, dtype=np.int64)
        if self._compiled:
            self._run(0)  # it reads nothing, but loads the compiled code now, not while the server waits

    def drain(self) -> Frames:
        """Everything that has arrived, up to about DRAIN_BYTES, without waiting.

        Raises:
            psycopg.OperationalError: the connection failed.
        """
        return self._drain_compiled() if self._compiled else self._drain_plain()

    def _drain_compiled(self) -> Frames:
        report = self._report
        report[:] = 0
        while True:
            code = self._run(DRAIN_BYTES)
            if code != _FULL:
                break
            self._grow(int(report[_USED] + report[_WAITING_BYTES]))
        if code == _FAILED:
            # psycopg asks libpq for the reason and raises it.
            self._pgconn.consume_input()
            raise psycopg.OperationalError(self._pgconn.get_error_message())
        return Frames(self._data[: report[_USED]], self._lengths[: report[_COUNT]], code == _ENDED)

    def _run(self, bytes_max: int) -> int:
        return _drain(
            address(self._pgconn), self._cells, self._cells.ctypes.data, self._data, self._data.ctypes.data,
            self._lengths, bytes_max, self._report,
        )  # fmt: skip

    def _grow(self, needed: int) -> None:
        if needed > len(self._data):
            grown = np.empty(max(needed, 2 * len(self._data)), dtype=np.uint8)
            grown[: len(self._data)] = self._data
            self._data = grown
        if self._report[_COUNT] == len(self._lengths):
            self._lengths = np.concatenate([self._lengths, np.empty_like(self._lengths)])

    def _drain_plain(self) -> Frames:
        get, consume = self._pgconn.get_copy_data, self._pgconn.consume_input
        pieces: list[Any] = []
        total, fresh, ended = 0, False, False
        while total < DRAIN_BYTES:
            size, content = get(1)
            if size > 0:
                pieces.append(content)
                total += size
                fresh = False
            elif size < 0 or fresh:
                ended = size < 0
                break
            else:
                consume()
                fresh = True
        lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
        return Frames(np.frombuffer(b"".join(pieces), dtype=np.uint8), lengths, ended)


@compiled
def _drain(
    connection: int,
    cells: Ints,
    cells_at: int,
    data: Bytes,
    data_at: int,
    lengths: Ints,
    bytes_max: int,
    report: Ints,
) -> int:
    """Fill data and lengths from libpq.  A message that did not fit waits in the cell (_WAITING_BYTES)."""
    fresh = False
    while True:
        size = report[_WAITING_BYTES]
        if size == 0:
            if report[_USED] >= bytes_max:
                return 0
            size = _get_copy_data(connection, cells_at, 1)
        if size == 0:
            if fresh:
                return 0
            if _consume_input(connection) == 0:
                return 3
            fresh = True
            continue
        if size == -1:
            return 2
        if size < 0:
            return 3
        fresh = False
        used, count = report[_USED], report[_COUNT]
        if used + size > len(data) or count == len(lengths):
            report[_WAITING_BYTES] = size
            return 1
        _copy_bytes(data_at + used, cells[0], size)
        _free(cells[0])
        report[_WAITING_BYTES] = 0
        lengths[count] = size
        report[_USED], report[_COUNT] = used + size, count + 1


@cache
def _registered() -> bool:
    """Make libpq's functions known to compiled code, under names of our own.

    By name, not by address, so that the code cached on disk works in every process.
    """
    libpq = library()
    for name, symbol in _NAMES.items():
        function = getattr(ctypes.CDLL(None) if name == "memcpy" else libpq, name, None)
        if function is None:
            return False
        binding.add_symbol(symbol, ctypes.cast(function, ctypes.c_void_p).value)
    return True
