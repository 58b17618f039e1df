"""The model between readers and consumers: transactions, changes, truncations, messages.

It is the same for all output plugins.  Values are PostgreSQL's canonical text (that of the type's output
function with DateStyle ISO, IntervalStyle postgres, TimeZone UTC, extra_float_digits 1,
bytea_output hex), or `NoValue.NULL`, or `NoValue.UNCHANGED` for a TOASTed value that the server did
not log again.  A table is a `decoder.protocol.relations.Relation`, as pgoutput describes it.  Facts that a
plugin does not send are 0, -1 or "" in the relation, and None in this model.

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
    """The facts about a stream before it is read.

    Attributes:
        plugin: name of the output plugin.
        options: its options as given to the server.
        start_lsn: transactions whose commit record is before it are not shown.
        server_version: as libpq gives it (180004), 0 if unknown.
        two_phase: the slot was created with two_phase.
    """

    plugin: str
    options: Mapping[str, str] = field(default_factory=dict)
    start_lsn: int = 0
    server_version: int = 0
    two_phase: bool = False


@dataclass(frozen=True)
class Transaction:
    """One transaction, with the facts that its plugin has sent when the callback comes.

    Attributes:
        xid: its 32-bit id.
        commit_lsn: where its commit (or prepare) record starts; test_decoding, decoderbufs and wal2json in
            format 1 never send it.
        end_lsn: where that record ends; pgoutput sends it with the commit only.
        commit_time: time of the commit (or prepare).
        origin: the origin from which it was replicated, None for one of the server's own.
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
        lsn: position of the change, or of its transaction if the plugin does not send it.
        old_kind: "" (no old tuple), "K" (columns of the replica identity, the others NULL) or "O" (all).
        old, new: values in the order of ``relation.columns``; both None if the plugin shows only
            that a row changed (in a table without replica identity).
    """

    lsn: int
    relation: Relation
    kind: Literal["insert", "update", "delete"]
    old_kind: Literal["", "K", "O"] = ""
    old: Tuple | None = None
    new: Tuple | None = None


@dataclass(frozen=True)
class Truncate:
    """Tables truncated in one statement (wal2json: one event per table, flags unknown and False)."""

    lsn: int
    relations: tuple[Relation, ...]
    cascade: bool = False
    restart_identity: bool = False


@dataclass(frozen=True)
class Message:
    """A logical message, written by pg_logical_emit_message."""

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
        body: the callback's content, None for callbacks about the transaction itself (and for a
            streamed change whose content the plugin does not show).
        subxid: the (sub)transaction, for stream_change, stream_truncate, stream_message, stream_abort.
    """

    callback: Callback
    transaction: Transaction | None
    lsn: int
    body: Change | Truncate | Message | None = None
    subxid: int | None = None
