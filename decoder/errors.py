"""Every error a user can meet, under one base.

An error says *what* is wrong, *where*, and the *way out*; the command prints these three and ends
with ``exit_code`` (the table in docs/errors.md).  ``retryable`` tells a scheduler whether waiting
can help.  Row values and secrets never go into a message.
"""

from __future__ import annotations

from typing import ClassVar

from decoder.lsn import format_lsn


class SlotlakeError(Exception):
    """Base of all errors shown to a user."""

    exit_code: ClassVar[int] = 70
    retryable: ClassVar[bool] = False

    def __init__(self, what: str, *, where: str = "", way_out: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.way_out = way_out

    def __str__(self) -> str:
        parts = [self.what]
        if self.where:
            parts.append(f"where: {self.where}")
        if self.way_out:
            parts.append(f"what to do: {self.way_out}")
        return "\n  ".join(parts)


class PipelineFileError(SlotlakeError):
    """The pipeline file cannot be read, or says something it may not."""

    exit_code = 2


class SourceError(SlotlakeError):
    """PostgreSQL cannot be reached, refuses, or is not set up for logical decoding."""

    exit_code = 3


class SourceUnavailableError(SourceError):
    """The server cannot be reached now; later it may."""

    retryable = True


class ChangedMeanwhileError(SourceError):
    """A table was rewritten, altered or renamed while it was copied; its rows are not those of one moment."""

    retryable = True


class StreamingError(SourceError):
    """The server failed at sending a transaction in progress; with streaming off it may not."""


class BulkError(SourceError):
    """The server cannot be read through SQL; as a replication connection it may."""


class SlotError(SlotlakeError):
    """The replication slot is missing, lost, or not ours."""

    exit_code = 4


class SlotBusyError(SlotError):
    """Another reader holds the slot."""

    retryable = True


class ProtocolError(SlotlakeError):
    """A replication message that the protocol's grammar does not allow.

    Attributes:
        message_type: the message's tag, one character, or "" when unknown.
        offset: byte offset in the message at which reading failed.
        lsn: the WAL position that came with the message, None when it is not known.
    """

    exit_code = 5

    def __init__(
        self, what: str, *, message_type: str = "", offset: int = 0, where: str = "", lsn: int | None = None
    ) -> None:
        position = "" if lsn is None else f", WAL {format_lsn(lsn)}"
        super().__init__(
            what,
            where=where or f"message {message_type!r}, byte offset {offset}{position}",
            way_out="the stream is damaged or of an unknown version; nothing of this batch was kept, "
            "and nothing was confirmed to the server",
        )
        self.message_type = message_type
        self.offset = offset
        self.lsn = lsn

    def at(self, lsn: int | None) -> ProtocolError:
        """The same error, naming the position too."""
        return ProtocolError(self.what, message_type=self.message_type, offset=self.offset, lsn=lsn)


class ChangeLogError(SlotlakeError):
    """A change log batch cannot be written or is not what its manifest says."""

    exit_code = 6


class LakeError(SlotlakeError):
    """The catalog or the warehouse cannot be reached, or holds something unexpected."""

    exit_code = 7


class ApplyError(SlotlakeError):
    """A batch holds a change that cannot be applied to the lake as it is."""

    exit_code = 8


class BusyError(SlotlakeError):
    """Another run of the same pipeline is at work."""

    exit_code = 9
    retryable = True


class SetupError(SlotlakeError):
    """This machine lacks something slotlake needs (Java, jars, a program)."""

    exit_code = 10


class ConsumerError(SlotlakeError):
    """A consumer of decoded changes lacks a callback, or failed in one; its own error is the cause.

    Attributes:
        callback: the callback that failed, "" when none was called.
        xid: the transaction's id, None outside of transactions.
        lsn: position of what it was called with.
    """

    exit_code = 11

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        way_out: str = "",
        callback: str = "",
        xid: int | None = None,
        lsn: int = 0,
    ) -> None:
        super().__init__(what, where=where, way_out=way_out)
        self.callback = callback
        self.xid = xid
        self.lsn = lsn
