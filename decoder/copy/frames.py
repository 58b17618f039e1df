r"""Reads COPY's binary format into columns.

Grammar (COPY manual page, "Binary Format"):

    file   = "PGCOPY\n\377\r\n\0"  int32 flags  int32 extension_length  extension  row*  int16 -1
    row    = int16 field_count  field*
    field  = int32 length  bytes            length -1: NULL

Compiled code checks every length before it is used; a wrong one is a ProtocolError with its offset.
"""

from __future__ import annotations

import numpy as np

from slotlake.decoder.compiled.jit import (
    Bytes,
    Ints,
    Lengths,
    compiled,
    frozen,
    inlined,
    read_uint16,
    read_uint32,
)
from slotlake.decoder.compiled.memory import bare
from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.types.slices import Slices

_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_FAULTS = (
    "",
    "a row has another number of fields than the table has columns",
    "a field has a negative length",
    "there is data after the COPY trailer",
)
_WAY_OUT = (
    "the data of the copy is damaged, or has a format that this version of slotlake does not know. Nothing "
    "of it was published, and the next run reads the table again. If the same place is refused again, please "
    "report it"
)
_ROWS, _CONSUMED, _FINISHED, _BAD = range(4)


class CopyFrames:
    """Turns the bytes of one COPY, given in pieces of any size, into columns of slices."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._rest = b""
        self._headed = self.finished = False
        self._offset = 0

    def take(self, raw: bytes, rows_max: int) -> tuple[int, list[Slices]]:
        """The complete rows in the rest of the last call and ``raw``: their number, and each column's slices.

        Args:
            rows_max: it contains at most this many rows.

        Raises:
            ProtocolError: it is not binary COPY data with that many columns.
        """
        data = self._rest + raw if self._rest else raw
        begin = self._header(data)
        body = np.frombuffer(data, dtype=np.uint8)
        start = np.empty((self._columns, rows_max), np.int64)
        length = np.empty((self._columns, rows_max), np.int32)
        report = np.zeros(4, np.int64)
        fault = _walk(frozen(body), begin, self.finished, start, length, report)
        if fault:
            raise _error(_FAULTS[fault], self._offset + int(report[_BAD]))
        rows, used = int(report[_ROWS]), int(report[_CONSUMED])
        self.finished = bool(report[_FINISHED])
        self._rest, self._offset = data[used:], self._offset + used
        view = frozen(body)
        return rows, [Slices(view, start[i, :rows], length[i, :rows]) for i in range(self._columns)]

    def end(self) -> None:
        """Check that the data ended with the COPY trailer.

        Raises:
            ProtocolError: the trailer is missing.
        """
        if not self.finished or self._rest:
            raise _error("the data ends without the COPY trailer", self._offset)

    def _header(self, data: bytes) -> int:
        """Offset of the first row in ``data``."""
        if self._headed:
            return 0
        if len(data) < 19 or not data.startswith(_SIGNATURE):
            raise _error("the data does not begin with the signature of binary COPY", 0)
        if data[11:15] != b"\0\0\0\0":
            raise _error("the COPY header has unknown flags", 11)
        self._headed = True
        begin = 19 + int.from_bytes(data[15:19], "big")
        if begin > len(data):
            raise _error("the extension of the COPY header ends too early", 15)
        return begin


def _error(what: str, offset: int) -> ProtocolError:
    where = f"COPY data, byte offset {offset}"
    return ProtocolError(what, message_type="d", offset=offset, where=where, way_out=_WAY_OUT)


@inlined
def _int16(data: Bytes, p: int) -> int:
    return (read_uint16(data, p) ^ 0x8000) - 0x8000


@inlined
def _int32(data: Bytes, p: int) -> int:
    return (read_uint32(data, p) ^ 0x80000000) - 0x80000000


@compiled
def _walk(  # noqa: C901, PLR0911
    data: Bytes, begin: int, finished: bool, start: Ints, length: Lengths, report: Ints
) -> int:
    """Note the span of each field; stop before a row that is not complete."""
    columns, rows_max = start.shape
    size = len(data)
    data, start, length, report = bare(data), bare(start), bare(length), bare(report)
    p = begin
    rows = 0
    while True:
        report[_ROWS], report[_CONSUMED], report[_FINISHED], report[_BAD] = rows, p, finished, p
        if p == size:
            return 0
        if finished:
            return 3
        if p + 2 > size or (rows == rows_max and _int16(data, p) != -1):
            return 0
        count = _int16(data, p)
        if count == -1:
            finished = True
            p += 2
            continue
        if count != columns:
            return 1
        q = p + 2
        for i in range(columns):
            if q + 4 > size:
                return 0
            field = _int32(data, q)
            q += 4
            if field < -1:
                report[_BAD] = q - 4
                return 2
            start[i * rows_max + rows], length[i * rows_max + rows] = q, field
            if field > 0:
                q += field
            if q > size:
                return 0
        p = q
        rows += 1
