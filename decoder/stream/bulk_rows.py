r"""Turns the rows of a binary COPY of (lsn, message) into the messages of a replication connection.

Grammar (COPY manual page, "Binary Format"; each row is one CopyData, the first also has the header):

    header  = "PGCOPY\n\377\r\n\0"  int32 flags = 0  int32 extension_length  extension
    row     = int16 2  int32 8  int64 lsn  int32 length  message
    trailer = int16 -1

A row becomes the content of an XLogData message, 'w' int64 lsn  int64 0  int64 0  message, so that the next
step (framing.py) sees one kind of stream.  Every length is checked before it is used; a wrong one is a
ProtocolError.
"""

from __future__ import annotations

import struct

import numpy as np

from slotlake.decoder.compiled.jit import (
    Bytes,
    Ints,
    compiled,
    frozen,
    inlined,
    read_uint16,
    read_uint32,
    signed,
)
from slotlake.decoder.compiled.memory import bare
from slotlake.decoder.compiled.words import copy_bytes
from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.stream.copy_data import Frames

_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES = len(_SIGNATURE) + 8
_ROW_BYTES, _XLOG_BYTES = 18, 25
_KEEPALIVE = struct.Struct(">cQQB")


class CopiedRows:
    """Turns the rows of one COPY into XLogData contents, drain by drain."""

    def __init__(self) -> None:
        self._headed = self._finished = False
        self._data, self._lengths = np.empty(0, np.uint8), np.empty(0, np.int64)

    def take(self, frames: Frames) -> tuple[Bytes, Ints]:
        """The XLogData contents, back to back, and the length of each: views that the next call overwrites.

        Raises:
            ProtocolError: it is not a binary COPY of two columns, lsn and message.
        """
        count = len(frames.lengths)
        if count == 0:
            return np.empty(0, np.uint8), np.empty(0, np.int64)
        skipped = 0 if self._headed else _header(frames)
        self._headed = True
        self._make_room(len(frames.data) + count * (_XLOG_BYTES - _ROW_BYTES), count)
        data, lengths = self._data, self._lengths
        report = np.zeros(3, np.int64)
        report[2] = self._finished
        bad_offset = _rows(frozen(frames.data), frozen(frames.lengths), skipped, data, lengths, report)
        if bad_offset >= 0:
            raise _error("a row does not have the two columns lsn and message", bad_offset)
        self._finished = bool(report[2])
        return data[: report[0]], lengths[: report[1]]

    def _make_room(self, size: int, count: int) -> None:
        if size > len(self._data):
            self._data = np.empty(2 * size, np.uint8)
        if count > len(self._lengths):
            self._lengths = np.empty(2 * count, np.int64)

    def end(self) -> None:
        """Check that the rows ended with the COPY trailer.

        Raises:
            ProtocolError: the trailer is missing.
        """
        if not self._finished:
            raise _error("the rows end without the COPY trailer", 0)


def keepalive(position: int) -> tuple[Bytes, Ints]:
    """The keepalive of a server that has sent everything before ``position``, as from `CopiedRows.take`."""
    content = _KEEPALIVE.pack(b"k", position, 0, 0)
    return np.frombuffer(content, np.uint8), np.array([len(content)], np.int64)


def _header(frames: Frames) -> int:
    """Bytes of the header, which is part of the first CopyData."""
    first = frames.data[: int(frames.lengths[0])].tobytes()
    if len(first) < _HEADER_BYTES or not first.startswith(_SIGNATURE):
        raise _error("the COPY does not begin with the signature of the binary format", 0)
    flags, extension = struct.unpack_from(">II", first, len(_SIGNATURE))
    if flags or _HEADER_BYTES + extension > len(first):
        raise _error(
            "the COPY header has unknown flags, or an extension that ends too early", len(_SIGNATURE)
        )
    return int(_HEADER_BYTES + extension)


def _error(what: str, offset: int) -> ProtocolError:
    where = f"COPY of changes, byte offset {offset} of what arrived last"
    way_out = "set source.bulk: false, which reads the same changes over a replication connection"
    return ProtocolError(what, message_type="d", offset=offset, where=where, way_out=way_out)


@inlined
def _message(data: Bytes, p: int, end: int, data_end: int, out: Bytes, at: int, out_end: int) -> None:
    """The XLogData content for the row at p."""
    out[at] = 119  # w
    for j in range(8):
        out[at + 1 + j] = data[p + 6 + j]
        out[at + 9 + j] = 0
        out[at + 17 + j] = 0
    copy_bytes(data, p + _ROW_BYTES, end, data_end, out, at + _XLOG_BYTES, out_end)


@inlined
def _is_row(data: Bytes, p: int, end: int) -> bool:
    return (
        end - p >= 18
        and read_uint16(data, p) == 2
        and read_uint32(data, p + 2) == 8
        and read_uint32(data, p + 14) == end - p - 18
    )


@compiled
def _rows(data: Bytes, row_lengths: Ints, skipped: int, out: Bytes, lengths: Ints, report: Ints) -> int:
    """Fill out and lengths; return the offset of a bad row, else -1.

    ``report``: bytes and contents written, and whether the trailer was seen.
    """
    p = signed(skipped)
    end = signed(0)
    count, data_end, out_end = len(row_lengths), len(data), len(out)
    data, row_lengths, out, lengths, report = (
        bare(data),
        bare(row_lengths),
        bare(out),
        bare(lengths),
        bare(report),
    )
    for i in range(count):
        end += row_lengths[i]
        if report[2] == 0 and end - p == 2 and data[p] == 255 and data[p + 1] == 255:
            report[2] = 1
        elif report[2] != 0 or not _is_row(data, p, end):
            if end != p or i > 0 or skipped == 0:  # only the header may come without a row
                return p
        else:
            _message(data, p, end, data_end, out, report[0], out_end)
            lengths[report[1]] = end - p + 7
            report[0] += end - p + 7
            report[1] += 1
        p = end
    return -1
