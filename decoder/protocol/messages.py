"""The messages of pgoutput, protocol versions 1 to 4.

One frozen class a message, fields in wire order and under the names of PostgreSQL's manual ("Logical
Replication Message Formats").  LSNs are integers; times are microseconds since 1970-01-01 UTC.  Which
message may follow which is `decoder.protocol.reader`'s matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from slotlake.decoder.protocol.relations import Relation


class NoValue(Enum):
    """What stands in a tuple where no text is sent."""

    NULL = "n"
    UNCHANGED = "u"


@dataclass(frozen=True)
class BinaryValue:
    """A value in its type's own binary format (``typsend``), where ``binary`` was asked for."""

    data: bytes


Value: TypeAlias = str | BinaryValue | NoValue
Tuple: TypeAlias = tuple[Value, ...]


@dataclass(frozen=True)
class Begin:
    """'B': a transaction starts; ``final_lsn`` is its commit record's position."""

    final_lsn: int
    commit_time: int
    xid: int


@dataclass(frozen=True)
class Commit:
    """'C': it ends; ``commit_lsn`` is where the commit record starts, ``end_lsn`` where it ends."""

    commit_lsn: int
    end_lsn: int
    commit_time: int


@dataclass(frozen=True)
class Origin:
    """'O': the transaction was replicated to the source from another node."""

    origin_lsn: int
    name: str


@dataclass(frozen=True)
class RelationMessage:
    """'R': what the table looks like from here on."""

    relation: Relation


@dataclass(frozen=True)
class TypeMessage:
    """'Y': the name of a user type; of a domain, the name of its base type."""

    type_oid: int
    schema: str
    name: str


@dataclass(frozen=True)
class Insert:
    """'I': a new row."""

    relation_id: int
    new: Tuple


@dataclass(frozen=True)
class Update:
    """'U': a changed row; ``old_kind`` is "" (none), "K" (key, sent when it changed) or "O" (whole row)."""

    relation_id: int
    old_kind: str
    old: Tuple | None
    new: Tuple


@dataclass(frozen=True)
class Delete:
    """'D': a removed row, by key ("K") or whole ("O")."""

    relation_id: int
    old_kind: str
    old: Tuple


@dataclass(frozen=True)
class Truncate:
    """'T': these tables were emptied in one statement."""

    cascade: bool
    restart_identity: bool
    relation_ids: tuple[int, ...]


@dataclass(frozen=True)
class LogicalMessage:
    """'M': pg_logical_emit_message; outside of any transaction when it is not transactional."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


@dataclass(frozen=True)
class StreamStart:
    """'S': a block of a transaction that is still open; ``first`` says that it is its first block."""

    xid: int
    first: bool


@dataclass(frozen=True)
class StreamStop:
    """'E': the block ends; the transaction stays open."""


@dataclass(frozen=True)
class StreamCommit:
    """'c': a streamed transaction is committed."""

    xid: int
    commit_lsn: int
    end_lsn: int
    commit_time: int


@dataclass(frozen=True)
class StreamAbort:
    """'A': of a streamed transaction a subtransaction was rolled back, or all when both numbers are equal.

    Position and time are told with streaming 'parallel' only; the position is 0 when the server crashed
    before it could log the abort.
    """

    xid: int
    subxid: int
    abort_lsn: int | None = None
    abort_time: int | None = None


@dataclass(frozen=True)
class BeginPrepare:
    """'b': a transaction starts that ends with PREPARE TRANSACTION, under the name ``gid``."""

    prepare_lsn: int
    end_lsn: int
    prepare_time: int
    xid: int
    gid: str


@dataclass(frozen=True)
class Prepare:
    """'P': it ends; whether it is committed is told later."""

    prepare_lsn: int
    end_lsn: int
    prepare_time: int
    xid: int
    gid: str


@dataclass(frozen=True)
class CommitPrepared:
    """'K': a prepared transaction is committed."""

    commit_lsn: int
    end_lsn: int
    commit_time: int
    xid: int
    gid: str


@dataclass(frozen=True)
class RollbackPrepared:
    """'r': a prepared transaction is rolled back; ``prepare_end_lsn`` is where its prepare record ended."""

    prepare_end_lsn: int
    rollback_end_lsn: int
    prepare_time: int
    rollback_time: int
    xid: int
    gid: str


@dataclass(frozen=True)
class StreamPrepare:
    """'p': a streamed transaction ends with PREPARE TRANSACTION."""

    prepare_lsn: int
    end_lsn: int
    prepare_time: int
    xid: int
    gid: str


Change: TypeAlias = Insert | Update | Delete | Truncate | LogicalMessage
StreamedContent: TypeAlias = RelationMessage | TypeMessage | Change


@dataclass(frozen=True)
class Streamed:
    """A message of a stream block with the transaction or subtransaction that made it."""

    xid: int
    message: StreamedContent


Message: TypeAlias = (
    Begin
    | Commit
    | Origin
    | RelationMessage
    | TypeMessage
    | Insert
    | Update
    | Delete
    | Truncate
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | BeginPrepare
    | Prepare
    | CommitPrepared
    | RollbackPrepared
    | StreamPrepare
    | Streamed
)
