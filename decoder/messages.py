"""The messages of pgoutput, protocol versions 1 to 4, outside of streaming and two-phase.

One frozen class a message, fields in wire order and under the names of PostgreSQL's manual ("Logical
Replication Message Formats").  LSNs are integers; times are microseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from decoder.relations import Relation


class NoValue(Enum):
    """What stands in a tuple where no text is sent."""

    NULL = "n"
    UNCHANGED = "u"


Value: TypeAlias = str | NoValue
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
)
