"""What the messages about a transaction's end must say, whoever reads them.

Invariant: each refusal names the message's type and the byte at which the wrong field stands.
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

# The tags that come only if it was asked for.
STREAMING, TWO_PHASE = "SEcAp", "bPKrp"
_PREPARED_FIELDS = ((2, "prepare_lsn"), (10, "end_lsn"), (18, "prepare_time"), (26, "xid"), (30, "gid"))


def check_record(message: Message, tag: str) -> None:
    """Check that a record ends behind its start.

    Raises:
        ProtocolError: it does not.
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
        raise ProtocolError("a commit record that ends before it starts", message_type=tag, offset=offset)


def check_agreement(begin: BeginPrepare | None, end: Prepare) -> None:
    """Check that Begin Prepare and Prepare agree in all of their fields (proto.c: of one record).

    Raises:
        ProtocolError: they differ.
    """
    for offset, name in _PREPARED_FIELDS:
        if getattr(end, name) != getattr(begin, name):
            what = f"prepare and begin prepare disagree on the {name}"
            raise ProtocolError(what, message_type="P", offset=offset)


def prepared_already(tag: str) -> ProtocolError:
    """The error for a transaction that is prepared a second time, before its outcome."""
    return ProtocolError("a transaction that is prepared already", message_type=tag, offset=30)


def check_described(lost: int | None, tag: str, offset: int) -> None:
    """Check that what comes out needs no description that was rolled back.

    The server describes a table again then.

    Args:
        lost: OID of a table whose description was rolled back; None: of none.
        tag: the message's type.
        offset: byte within the message.

    Raises:
        ProtocolError: a description is missing.
    """
    if lost is not None:
        what = f"relation {lost} was described by a part that was rolled back"
        raise ProtocolError(what, message_type=tag, offset=offset)
