"""Every error a user can meet, under one base.

An error says *what* is wrong, *where*, and the *way out*; the command prints these three and ends
with ``exit_code`` (the table in docs/errors.md).  ``retryable`` tells a scheduler whether waiting
can help.  Row values and secrets never go into a message.

``table`` says whose trouble it is: an error that names one table lets that table be set aside, while the
others go on (`infra.selection.aside`); one without stops all.  Whoever raises an error over what one table
is, holds or
allows, names it there: ``SourceError(…).of(schema, table)``, or `concerning` around what is done for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Self

from slotlake.decoder.lsn import format_lsn


class SlotlakeError(Exception):
    """Base of all errors shown to a user."""

    exit_code: ClassVar[int] = 70
    retryable: ClassVar[bool] = False
    table: tuple[str, str] | None = None

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

    def of(self, schema: str, table: str) -> Self:
        """The same error, as the trouble of one table of the source alone (its names, not quoted)."""
        self.table = (schema, table)
        return self


class PipelineFileError(SlotlakeError):
    """The pipeline file cannot be read, or says something it may not."""

    exit_code = 2


class SourceError(SlotlakeError):
    """PostgreSQL cannot be reached, refuses, or is not set up for logical decoding."""

    exit_code = 3


class SourceUnavailableError(SourceError):
    """The server cannot be reached now; later it may."""

    retryable = True


class LockedError(SourceUnavailableError):
    """A table of the source is locked for longer than it is waited for."""


class ChangedMeanwhileError(SourceError):
    """A table was rewritten, altered or renamed while it was copied; its rows are not those of one moment."""

    retryable = True


class UnreadableRowsError(SourceError):
    """The server fails at a row of a table: at reading it, at printing a value, or at the filter."""


class StreamingError(SourceError):
    """The server failed at sending a transaction in progress; with streaming off it may not."""


class UnsendableError(SourceError):
    """The server failed at making a message, as of a row whose text is too large; in binary it may not."""


class UntranslatableError(SourceError):
    """The server cannot translate a text to UTF-8; as it is stored it may be read."""


class BulkError(SourceError):
    """The server cannot be read through SQL; as a replication connection it may."""

    def __init__(self, what: str, *, where: str = "", way_out: str = "") -> None:
        instead = (
            "nothing: the changes are read over a replication connection instead (as by source.bulk: false)"
        )
        super().__init__(what, where=where, way_out=way_out or instead)


class SlotError(SlotlakeError):
    """The replication slot is missing, lost, or not ours."""

    exit_code = 4


class SlotBusyError(SlotError):
    """Another reader holds the slot."""

    retryable = True


# The same bytes come again, so no second run helps; what is behind them can be had.
DAMAGED = (
    "the stream is damaged, or of a version that is not known here; nothing of this batch was kept or "
    "confirmed, so "
    "it comes again. If it is refused at the same place, please report it with what `slotlake decode "
    "--record FILE` "
    "writes; a new slot goes on behind it (SELECT pg_drop_replication_slot(…), then `slotlake recover`)"
)
UNREADABLE = (
    "the value is at fault, not the stream: correct it at the source, or leave its column out "
    "(tables.<name>.columns); then have the table copied again, by `slotlake resume` if status says that it "
    "is set aside, else by `slotlake backfill --table`"
)
LAKE_ALTERED = "run `slotlake recover`: it says what of the lake is damaged, and mends what can be mended"
DEFECT = "this is a defect of slotlake: please report it; nothing of this batch was kept or confirmed"


class ProtocolError(SlotlakeError):
    """A replication message that the protocol's grammar does not allow, or a value that its type does not.

    Attributes:
        message_type: the message's tag, one character, or "" when unknown.
        offset: byte offset in the message at which reading failed.
        lsn: the WAL position that came with the message, None when it is not known.
    """

    exit_code = 5

    def __init__(
        self,
        what: str,
        *,
        message_type: str = "",
        offset: int = 0,
        where: str = "",
        lsn: int | None = None,
        way_out: str = DAMAGED,
    ) -> None:
        position = "" if lsn is None else f", WAL {format_lsn(lsn)}"
        super().__init__(
            what,
            where=where or f"message {message_type!r}, byte offset {offset}{position}",
            way_out=way_out,
        )
        self.message_type = message_type
        self.offset = offset
        self.lsn = lsn

    def at(self, lsn: int | None) -> ProtocolError:
        """The same error, naming the position too."""
        same = ProtocolError(
            self.what, message_type=self.message_type, offset=self.offset, lsn=lsn, way_out=self.way_out
        )
        same.table = self.table
        return same

    def of(self, schema: str, table: str) -> Self:
        """The trouble of one table is no damage of the stream."""
        self.way_out = UNREADABLE if self.way_out == DAMAGED else self.way_out
        if f"{schema}.{table}" not in self.what + self.where:
            self.where = f"{self.where}, table {schema}.{table}"
        return super().of(schema, table)


class ChangeLogError(SlotlakeError):
    """A change log batch cannot be written or is not what its manifest says."""

    exit_code = 6


class LakeError(SlotlakeError):
    """The catalog or the warehouse cannot be reached, or holds something unexpected."""

    exit_code = 7


class ApplyError(SlotlakeError):
    """A batch holds a change that cannot be applied to the lake as it is.

    Attributes:
        choice: the key of the pipeline file that asks for the refusal; "" when nobody asked for it.
    """

    exit_code = 8
    choice: str = ""


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


@contextmanager
def concerning(schema: str, table: str) -> Iterator[None]:
    """What the source refuses, or what cannot be read or applied, is within this block one table's trouble.

    Not so a server that cannot be reached, or a slot, a disk or a lake that fails.
    """
    try:
        yield
    except (SourceError, ProtocolError, ApplyError) as error:
        unreachable = isinstance(error, SourceUnavailableError) and not isinstance(error, LockedError)
        if error.table is None and not unreachable:
            error.of(schema, table)
        raise
