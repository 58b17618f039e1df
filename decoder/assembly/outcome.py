"""The outcome of a transaction, as the messages of protocol 1 before and after its changes."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from slotlake.decoder.protocol.cursor import EPOCH_MICROSECONDS

_BEGIN = struct.Struct(">cQqI")
_COMMIT = struct.Struct(">cBQQq")


@dataclass(frozen=True)
class Outcome:
    """Where and when a transaction committed.

    Attributes:
        commit_lsn: where its commit record starts.
        end_lsn: where that record ends.
        commit_time: microseconds since 1970-01-01 UTC.
    """

    xid: int
    commit_lsn: int
    end_lsn: int
    commit_time: int

    @property
    def begin_message(self) -> bytes:
        """The message B (proto.c, logicalrep_write_begin)."""
        return _BEGIN.pack(b"B", self.commit_lsn, self.commit_time - EPOCH_MICROSECONDS, self.xid)

    @property
    def commit_message(self) -> bytes:
        """The message C (proto.c, logicalrep_write_commit)."""
        return _COMMIT.pack(b"C", 0, self.commit_lsn, self.end_lsn, self.commit_time - EPOCH_MICROSECONDS)
