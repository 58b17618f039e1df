"""What every reader gives and every consumer gets: transactions, changes, truncations, messages.

The same for all output plugins.  Values are PostgreSQL's canonical text (what the type's output
function prints under DateStyle ISO, IntervalStyle postgres, TimeZone UTC, extra_float_digits 1,
bytea_output hex), or `NoValue.NULL`, or `NoValue.UNCHANGED` for a TOASTed value that the server did
not log again.  A table is a `decoder.protocol.relations.Relation`, as pgoutput describes it; what a plugin
does not tell is 0, -1 or "" there, and None here.

LSNs are integers; times are microseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from slotlake.decoder.protocol.messages import NoValue
from slotlake.decoder.protocol.relations import Relation

__all__ = [
    "Change",
    "Event",
    "Message",
    "NoValue",
    "Startup",
    "Transaction",
    "Truncate",
    "Tuple",
    "Value",
]


Value: TypeAlias = str | NoValue
Tuple: TypeAlias = tuple[Value, ...]


@dataclass(frozen=True)
class Startup:
    """What is about to be read.

    Attributes:
        plugin: name of the output plugin.
        options: its options as given to the server.
        start_lsn: transactions whose commit record lies before it are not shown.
        server_version: as libpq gives it (180004), 0 when unknown.
        two_phase: the slot was made with it.
    """

    plugin: str
    options: Mapping[str, str] = field(default_factory=dict)
    start_lsn: int = 0
    server_version: int = 0
    two_phase: bool = False


@dataclass(frozen=True)
class Transaction:
    """One transaction, as far as its plugin tells at the moment of the callback.

    Attributes:
        xid: its 32-bit id.
        commit_lsn: where its commit (or prepare) record starts; test_decoding and decoderbufs never
            tell, wal2json in format 1 neither.
        end_lsn: where that record ends; pgoutput tells it with the commit only.
        commit_time: of the commit (or prepare).
        origin: the node it was replicated from, None for one of the server's own.
        gid: of a prepared transaction.
    """

    xid: int | None
    commit_lsn: int | None = None
    end_lsn: int | None = None
    commit_time: int | None = None
    origin: str | None = None
    gid: str | None = None


@dataclass(frozen=True)
class Change:
    """One row inserted, updated or deleted.

    Attributes:
        lsn: position of the change, or of its transaction where the plugin does not tell.
        old_kind: "" (no old tuple), "K" (columns of the replica identity, the others NULL) or "O" (all).
        old, new: values in the order of ``relation.columns``; both None when the plugin shows only
            that something happened (a table without replica identity).
    """

    lsn: int
    relation: Relation
    kind: Literal["insert", "update", "delete"]
    old_kind: Literal["", "K", "O"] = ""
    old: Tuple | None = None
    new: Tuple | None = None


@dataclass(frozen=True)
class Truncate:
    """Tables emptied in one statement (wal2json: one event a table, flags unknown and False)."""

    lsn: int
    relations: tuple[Relation, ...]
    cascade: bool = False
    restart_identity: bool = False


@dataclass(frozen=True)
class Message:
    """What pg_logical_emit_message wrote."""

    lsn: int
    transactional: bool
    prefix: str
    content: bytes


Callback: TypeAlias = Literal[
    "begin",
    "change",
    "truncate",
    "commit",
    "message",
    "stream_start",
    "stream_stop",
    "stream_abort",
    "stream_commit",
    "stream_change",
    "stream_message",
    "stream_truncate",
    "stream_prepare",
    "begin_prepare",
    "prepare",
    "commit_prepared",
    "rollback_prepared",
]


@dataclass(frozen=True)
class Event:
    """One callback that is due.

    Attributes:
        callback: its name in `decoder.plugins.consumer`.
        transaction: None for a message outside of transactions.
        lsn: position, for the error's context.
        body: what the callback is about, None for those about the transaction itself (and for a
            streamed change whose content the plugin hides).
        subxid: of stream_change, stream_truncate, stream_message, stream_abort: the (sub)transaction.
    """

    callback: Callback
    transaction: Transaction | None
    lsn: int
    body: Change | Truncate | Message | None = None
    subxid: int | None = None
