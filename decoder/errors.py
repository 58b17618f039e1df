"""Every error a user can meet, under one base.

An error says *what* is wrong, *where*, and the *way out*; the command prints these three and ends
with ``exit_code`` (the table in docs/errors.md).  ``retryable`` tells a scheduler whether waiting
can help.  Row values and secrets never go into a message.

``table`` names the table that causes the error.  An error with a table sets that table aside while the
other tables go on (`infra.selection.aside`); an error without one stops all tables.  Code that raises an
error about one table names the table: ``SourceError(…).of(schema, table)``, or `concerning` around the work
on that table.
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
        """The same error, caused by one table of the source alone (its names are not quoted)."""
        self.table = (schema, table)
        return self


class PipelineFileError(SlotlakeError):
    """The pipeline file cannot be read, or has a setting that is not allowed."""

    exit_code = 2


class SourceError(SlotlakeError):
    """PostgreSQL cannot be reached, refuses a request, or is not set up for logical decoding."""

    exit_code = 3


class SourceUnavailableError(SourceError):
    """The server cannot be reached now; a later attempt may succeed."""

    retryable = True


class LockedError(SourceUnavailableError):
    """A table of the source is locked for longer than slotlake waits."""


class ChangedMeanwhileError(SourceError):
    """A table was rewritten, altered or renamed during its copy, so the rows are not of one moment."""

    retryable = True


class UnreadableRowsError(SourceError):
    """The server fails at a row of a table: it cannot read it, print a value, or evaluate the filter."""


class StreamingError(SourceError):
    """The server failed to send a transaction in progress; with streaming off it may succeed."""


class UnsendableError(SourceError):
    """The server failed to build a message, as for a row whose text is too large; binary may succeed."""


class UntranslatableError(SourceError):
    """The server cannot translate a text to UTF-8; without the translation it can be read."""


class BulkError(SourceError):
    """The changes cannot be read through SQL; over a replication connection they may be."""

    def __init__(self, what: str, *, where: str = "", way_out: str = "") -> None:
        instead = (
            "nothing: slotlake reads the changes over a replication connection (as with source.bulk: false)"
        )
        super().__init__(what, where=where, way_out=way_out or instead)


class SlotError(SlotlakeError):
    """The replication slot is missing, lost, or not ours."""

    exit_code = 4


class SlotBusyError(SlotError):
    """Another reader uses the slot."""

    retryable = True


# The server sends the same bytes again, so a second run does not help; a new slot starts after them.
DAMAGED = (
    "the stream is damaged, or the server uses a format that this version of slotlake does not know. Nothing "
    "of this batch was stored or confirmed, so the server sends it again. If it is refused at the same place "
    "again, please report it with the file that `slotlake decode --record FILE` writes. A new slot continues "
    "after that place (SELECT pg_drop_replication_slot(…), then `slotlake recover --yes`)"
)
UNREADABLE = (
    "the value is at fault, not the stream: correct it at the source, or leave its column out "
    "(tables.<name>.columns). Then run the same command again; a table that `slotlake status` calls set "
    "aside is copied again by `slotlake resume`, or by a later sync"
)
NOT_UTF8 = (
    "the source has bytes that are not UTF-8, in a value or a name: correct them at the source. Changes that "
    "are in the WAL already keep these bytes: drop the slot (SELECT pg_drop_replication_slot(…)); then "
    "`slotlake recover --yes` compares source and lake, and writes what differs"
)
LAKE_ALTERED = "run `slotlake recover`: it reports what is damaged in the lake, and repairs what it can"
DEFECT = "this is a defect of slotlake: please report it. Nothing of this batch was stored or confirmed"


class ProtocolError(SlotlakeError):
    """A replication message that breaks the protocol's grammar, or a value that its type does not allow.

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
        of = f"message {message_type!r}" if message_type else "a message of the stream"
        super().__init__(
            what,
            where=where or f"{of}, byte offset {offset}{position}",
            way_out=way_out,
        )
        self.message_type = message_type
        self.offset = offset
        self.lsn = lsn

    def at(self, lsn: int | None) -> ProtocolError:
        """The same error with the position."""
        same = ProtocolError(
            self.what, message_type=self.message_type, offset=self.offset, lsn=lsn, way_out=self.way_out
        )
        same.table = self.table
        return same

    def of(self, schema: str, table: str) -> Self:
        """The same error, caused by one table: the stream is not damaged."""
        self.way_out = UNREADABLE if self.way_out == DAMAGED else self.way_out
        if f"{schema}.{table}" not in self.what + self.where:
            self.where = f"{self.where}, table {schema}.{table}"
        return super().of(schema, table)


class ChangeLogError(SlotlakeError):
    """A change log batch cannot be written, or differs from its manifest."""

    exit_code = 6


class LakeError(SlotlakeError):
    """The catalog or the warehouse cannot be reached, or contains something unexpected."""

    exit_code = 7


class DamagedError(LakeError):
    """A file of one table of the lake cannot be read, or has what slotlake does not write."""


class ApplyError(SlotlakeError):
    """A batch contains a change that cannot be applied to the lake.

    Attributes:
        choice: the key of the pipeline file that demands the refusal; "" when no key does.
    """

    exit_code = 8
    choice: str = ""


class GateError(SlotlakeError):
    """A batch does not meet the user's expectations, so it is not published.

    A later attempt can succeed: it takes what the source has committed since into the same batch.
    """

    exit_code = 13
    retryable = True


class BusyError(SlotlakeError):
    """Another run of the same pipeline is in progress."""

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
        lsn: the position of the change or message that the callback received.
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
    """Say that errors inside this block are caused by one table: a refusal, an unreadable or unfit change.

    Errors about a server that cannot be reached, a slot, a disk or the lake stay without a table.
    """
    try:
        yield
    except (SourceError, ProtocolError, ApplyError) as error:
        unreachable = isinstance(error, SourceUnavailableError) and not isinstance(error, LockedError)
        if error.table is None and not unreachable:
            error.of(schema, table)
        raise
