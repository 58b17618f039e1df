"""The messages of pgoutput, protocol versions 1 to 4.

Each message is one frozen class, with fields in wire order and with the names of PostgreSQL's manual
("Logical Replication Message Formats").  LSNs are integers; times are microseconds since 1970-01-01 UTC.
`decoder.protocol.reader` decides which message may follow which.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from slotlake.decoder.protocol.relations import Relation


class NoValue(Enum):
    """The entry of a tuple for which the server sends no value."""

    NULL = "n"
    UNCHANGED = "u"


@dataclass(frozen=True)
class BinaryValue:
    """A value in its type's own binary format (``typsend``), in a stream with the option ``binary``."""

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
    """'C': the transaction ends; its commit record starts at ``commit_lsn`` and ends at ``end_lsn``."""

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
    """'R': describes a table from here on."""

    relation: Relation


@dataclass(frozen=True)
class TypeMessage:
    """'Y': the name of a user type; for a domain, the name of its base type."""

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
    """'M': pg_logical_emit_message; outside of any transaction if it is not transactional."""

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
    """'A': a subtransaction of a streamed transaction was rolled back, or all of it if both ids are equal.

    Position and time come with streaming 'parallel' only; the position is 0 if the server crashed
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
    """'P': the prepared transaction ends; its outcome comes later."""

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
    """A message of a stream block, with the transaction or subtransaction that sent it."""

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
