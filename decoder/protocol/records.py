"""Checks and error texts that the plain reader and the assembler share: messages at a transaction's end.

Invariant: each error names the message's type and the byte of the wrong field.
"""

from __future__ import annotations

from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.protocol.messages import (
    BeginPrepare,
    Commit,
    CommitPrepared,
    Message,
    Prepare,
    RollbackPrepared,
    StreamCommit,
    StreamPrepare,
)

# The tags that come only with this option.  A comes without it, too: from PostgreSQL 18 on the server takes
# a transaction that it finds rolled back for one that it has streamed (reorderbuffer.c,
# ReorderBufferCheckAndTruncateAbortedTXN), and says that it is rolled back.
STREAMING, TWO_PHASE = "SEcp", "bPKrp"
NOT_ENABLED = "the message belongs to streaming or two_phase, but this option is off"
NOT_STREAMED = "the message is about a transaction that is not being streamed"
SECOND_FIRST_BLOCK = "the block is marked as the first of its transaction, but a block came before it"
NO_FIRST_BLOCK = "the block is not marked as the first of its transaction, but no block came before it"
SENDER_ROLLED_BACK = "the message belongs to a subtransaction that was rolled back"
OTHER_WIDTH = "the row has another number of columns than its table"
_PREPARED_FIELDS = ((2, "prepare_lsn"), (10, "end_lsn"), (18, "prepare_time"), (26, "xid"), (30, "gid"))


def check_record(message: Message, tag: str) -> None:
    """Check that a record ends after its start.

    Raises:
        ProtocolError: it ends at its start or before.
    """
    match message:
        case Commit() | CommitPrepared():
            start, end, offset = message.commit_lsn, message.end_lsn, 10
        case StreamCommit():
            start, end, offset = message.commit_lsn, message.end_lsn, 14
        case Prepare() | StreamPrepare():
            start, end, offset = message.prepare_lsn, message.end_lsn, 10
        case RollbackPrepared():
            start, end, offset = message.prepare_end_lsn, message.rollback_end_lsn, 10
        case _:
            return
    if end <= start:
        raise ProtocolError("the record ends before it starts", message_type=tag, offset=offset)


def check_agreement(begin: BeginPrepare | None, end: Prepare) -> None:
    """Check that Begin Prepare and Prepare have the same fields (proto.c: they come from one record).

    Raises:
        ProtocolError: they differ.
    """
    for offset, name in _PREPARED_FIELDS:
        if getattr(end, name) != getattr(begin, name):
            what = f"Prepare and Begin Prepare have different values of {name}"
            raise ProtocolError(what, message_type="P", offset=offset)


def prepared_already(tag: str) -> ProtocolError:
    """The error for a transaction that is prepared a second time, before its outcome."""
    return ProtocolError("the transaction is prepared already", message_type=tag, offset=30)


def sender_of_another(top: int) -> str:
    """The error text for a subtransaction of ``top`` that sends in a block of another transaction."""
    return f"the message belongs to a subtransaction of transaction {top}"


def check_described(lost: int | None, tag: str, offset: int) -> None:
    """Check that a transaction needs no description that was rolled back: the server sends it again.

    Args:
        lost: OID of a table whose description was rolled back; None if there is none.

    Raises:
        ProtocolError: a description is missing.
    """
    if lost is not None:
        what = f"relation {lost} was described only by a subtransaction that was rolled back"
        raise ProtocolError(what, message_type=tag, offset=offset)
