"""Keeps the messages of transactions that have not ended yet, in memory and, above a limit, on disk.

There is one `Spool` per transaction, in arrival order: payload, WAL position and the (sub)transaction id of
the sender.  There is one `SpoolRoom` for all of them, with one limit: above it, the largest spool goes to
disk, as in PostgreSQL itself (logical_decoding_work_mem, reorderbuffer.c).  An aborted subtransaction is only
noted: its messages are left out when the spool is read.

Files are Arrow IPC streams, so that they are read in pieces of limited size.  Invariant: the output of a
spool does not depend on whether, or how often, it went to disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from slotlake.decoder.changelog.incoming import make_incoming, release_renamed
from slotlake.decoder.changelog.writer import writing
from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.compiled.arrays import arrow, arrow_buffer, elements, integers
from slotlake.decoder.compiled.jit import Bytes, Ints, Lengths, Unsigned, frozen

MEMORY_BYTES = 64 << 20
_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("payload", pa.large_binary()),
    ("lsn", pa.uint64()),
    ("xid", pa.int64()),
]
SCHEMA = pa.schema(_COLUMNS)
_MESSAGE_BYTES = 24  # offset, position and xid, in addition to each payload
# A message can be as large as a row (1 GB); otherwise a spilled piece is about this large.
PIECE_BYTES = 4 << 20


@dataclass(frozen=True)
class Piece:
    """Messages in order: message i is ``data[ends[i] : ends[i + 1]]``; all arrays are read-only views."""

    data: Bytes
    ends: Ints
    lsns: Unsigned
    xids: Ints

    @property
    def count(self) -> int:
        return len(self.lsns)

    def only(self, flags: np.ndarray) -> tuple[Ints, Lengths, Unsigned]:
        """Start, length and position of the messages where ``flags`` (bool) is set."""
        return self.ends[:-1][flags], np.diff(self.ends)[flags].astype(np.int32), self.lsns[flags]

    def record(self) -> pa.RecordBatch:
        """The record batch for a file."""
        offsets = arrow_buffer(np.ascontiguousarray(self.ends))
        payload = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), self.count, [None, offsets, arrow_buffer(self.data)]
        )
        return pa.record_batch([payload, arrow(self.lsns), arrow(self.xids)], schema=SCHEMA)

    @classmethod
    def read(cls, record: pa.RecordBatch) -> Piece:
        """The inverse of `record`."""
        payload = record.column(0)
        _, offsets, data = payload.buffers()
        ends = elements(offsets, np.int64)[payload.offset : payload.offset + len(payload) + 1]
        raw = elements(data, np.uint8)
        return cls(
            frozen(raw[ends[0] : ends[-1]]),
            frozen(ends - ends[0]),
            integers(record.column(1)),
            integers(record.column(2)),
        )


class Spool:
    """The messages of one transaction so far.

    Attributes:
        aborted: subtransactions that were rolled back.
        memory_bytes: size of the part in memory.
    """

    def __init__(self) -> None:
        self.aborted: set[int] = set()
        self._buffer = MessageBuffer()
        self._xids = np.empty(64, np.int64)
        self._files: list[Path] = []
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None
        self._sink: pa.OSFile | None = None

    @property
    def memory_bytes(self) -> int:
        return self._buffer.size_bytes + _MESSAGE_BYTES * self._buffer.count

    @property
    def spilled(self) -> bool:
        return bool(self._files)

    def extend(self, data: Bytes, start: Ints, length: Lengths, lsns: Unsigned, xids: Ints) -> None:
        """Append messages: message i is ``data[start[i] : start[i] + length[i]]``, sent by ``xids[i]``.

        Args:
            data: uint8[bytes].
            start: int64[messages], offsets into ``data``.
            length: int32[messages], bytes.
            lsns: uint64[messages], the WAL position of each.
            xids: int64[messages], the (sub)transaction that sent each.
        """
        before, count = self._buffer.count, self._buffer.count + len(xids)
        if count > len(self._xids):
            grown = np.empty(max(count, 2 * len(self._xids)), np.int64)
            grown[:before] = self._xids[:before]
            self._xids = grown
        self._xids[before:count] = xids
        self._buffer.extend(data, start, length, lsns)

    def spill(self, path: Path) -> None:
        """Move the part in memory to the spool's file; if the last file was read already, to ``path``."""
        with writing(path):
            if self._writer is None:
                self._files.append(path)
                self._sink = pa.OSFile(str(path), "wb")
                self._writer = pa.ipc.new_stream(self._sink, SCHEMA)
            for piece in self._in_memory():
                self._writer.write_batch(piece.record())
        self._buffer, self._xids = MessageBuffer(), np.empty(64, np.int64)

    def pieces(self) -> Iterator[Piece]:
        """All messages in order, those of aborted subtransactions too."""
        self._close_writer()
        for path in self._files:
            with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as reader:
                for record in reader:
                    yield Piece.read(record)
        yield from self._in_memory()

    def live_flags(self, piece: Piece) -> np.ndarray:
        """bool[messages], false for messages of an aborted subtransaction."""
        if not self.aborted:
            return np.ones(piece.count, dtype=np.bool_)
        return ~np.isin(piece.xids, np.fromiter(self.aborted, np.int64))

    def _in_memory(self) -> Iterator[Piece]:
        buffer, first = self._buffer, 0
        while first < buffer.count:
            until = int(np.searchsorted(buffer.ends, buffer.ends[first] + PIECE_BYTES, "right")) - 1
            until = min(max(until, first + 1), buffer.count)
            ends = buffer.ends[first : until + 1]
            yield Piece(
                frozen(buffer.data[ends[0] : ends[-1]]),
                frozen(ends - ends[0]),
                buffer.lsns[first:until],
                self._xids[first:until],
            )
            first = until

    def _close_writer(self) -> None:
        writer, sink, self._writer, self._sink = self._writer, self._sink, None, None
        if writer is not None and sink is not None:
            with writing(self._files[-1]):
                writer.close()
                sink.close()

    def drop(self) -> None:
        """Forget all messages, and remove the files."""
        with suppress(OSError, pa.ArrowException):
            if self._writer is not None and self._sink is not None:
                self._writer.close()
                self._sink.close()
        self._writer = self._sink = None
        for path in self._files:
            path.unlink(missing_ok=True)
        self._files = []
        self._buffer, self._xids = MessageBuffer(), np.empty(64, np.int64)


class SpoolRoom:
    """All open spools, within one limit of memory.

    Args:
        directory: for spools that go to disk; created with the first one.
        memory_bytes: the limit for all spools together.
    """

    def __init__(self, directory: Path, memory_bytes: int = MEMORY_BYTES) -> None:
        self._directory, self._limit = directory, memory_bytes
        self._spools: dict[int, Spool] = {}
        self._next = 0
        self.spilled_files = 0

    def open(self) -> Spool:
        """A new, empty spool."""
        spool = Spool()
        self._spools[id(spool)] = spool
        return spool

    def close(self, spool: Spool) -> None:
        """Forget a spool and its messages."""
        self._spools.pop(id(spool), None)
        spool.drop()

    @property
    def memory_bytes(self) -> int:
        return sum(spool.memory_bytes for spool in self._spools.values())

    def settle(self) -> None:
        """Move the largest spools to disk until the memory is below the limit."""
        total_bytes = self.memory_bytes
        while total_bytes > self._limit:
            largest = max(self._spools.values(), key=lambda spool: spool.memory_bytes)
            total_bytes -= largest.memory_bytes
            with writing(self._directory):
                make_incoming(self._directory)
            largest.spill(self._directory / f"{self._next}.spool")
            self._next += 1
            self.spilled_files += 1

    def close_all(self) -> None:
        """Forget all spools and remove the directory."""
        for spool in list(self._spools.values()):
            self.close(spool)
        with suppress(OSError):
            self._directory.rmdir()
        release_renamed()
