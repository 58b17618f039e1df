"""Checks that the server that answers continues the history from which a lake was filled.

A PostgreSQL cluster has one number for ever (its system identifier) and a timeline.  The timeline's number
grows by one with every promotion and every restore to an earlier moment.  The timeline's history says at
which position it left each earlier timeline.  Invariant: a position of an earlier timeline has the same
meaning on this one exactly if it is not after the place where the two separate.  What a lake has after that
place exists on no server any more.

Rules: timeline.c (tliSwitchPoint), the replication commands IDENTIFY_SYSTEM and TIMELINE_HISTORY
(protocol manual, section 54.4).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import psycopg

from slotlake.decoder.errors import SourceError, SourceUnavailableError
from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.decoder.server.source import (
    ServerIdentity,
    identity_of,
    redact,
    source_session,
)

_LINE = re.compile(r"^\s*(\d+)\s+([0-9A-F]+/[0-9A-F]+)", re.IGNORECASE)
_RECOVER = "run `slotlake recover`, which shows its plan before it changes anything"


@dataclass(frozen=True)
class Origin:
    """Which cluster, and which timeline of it, something was read from.

    Attributes:
        next_xid: the transaction id below which all had ended before the end of what was read; "" if it is
            not known (`decoder.slots.upgraded`).
    """

    system_identifier: str
    timeline: int
    next_xid: str = field(default="", compare=False)


class HistoryError(SourceError):
    """The server does not continue the history from which the lake was filled."""


class AnotherClusterError(HistoryError):
    """The server is of another cluster than the one from which the lake was filled."""


def switch_points(history: str) -> dict[int, int]:
    """Earlier timeline → the position at which it was left, from a timeline's history file."""
    matches = (_LINE.match(line) for line in history.splitlines())
    return {int(match[1]): parse_lsn(match[2]) for match in matches if match is not None}


@dataclass(frozen=True)
class Joined:
    """A server that continues the history of what was read.

    Attributes:
        history: earlier timeline → where it was left; empty if the server is on the expected timeline.
    """

    server: ServerIdentity
    history: dict[int, int]


def history_of(connection: psycopg.Connection[Any], timeline: int) -> dict[int, int]:
    """The switch points of one of the server's timelines; the first timeline has none."""
    if timeline == 1:
        return {}
    row = connection.execute(f"TIMELINE_HISTORY {timeline}".encode()).fetchone()
    assert row is not None
    return switch_points(row[1].decode() if isinstance(row[1], bytes) else str(row[1]))


def require_history(dsn: str, origin: Origin | None, position: int) -> Joined:
    """The server's identity, after a check that the server continues what was read up to ``position``.

    Args:
        origin: the cluster and timeline from which the lake was filled last; None if the lake does not say.

    Raises:
        HistoryError: another cluster, another branch of its history, or one left before the position.
        SourceError: as :func:`decoder.server.source.identify`.
    """
    with source_session(dsn, "reading the timeline's history", replication=True) as connection:
        server = identity_of(connection, dsn)
        if origin is None:
            return Joined(server, {})
        _check_cluster(server, origin, dsn)
        if server.timeline == origin.timeline:
            return Joined(server, {})
        history = history_of(connection, server.timeline)
        _check_fork(server, origin, position, history.get(origin.timeline), dsn)
        return Joined(server, history)
    raise AssertionError("unreachable")


def require_same(connection: psycopg.Connection[Any], origin: Origin, dsn: str) -> None:
    """Check that a replication connection leads to the expected server; a DSN may name several.

    Args:
        origin: the cluster and timeline that the other connection led to.

    Raises:
        SourceUnavailableError: another server has taken over meanwhile.
    """
    row = connection.execute("IDENTIFY_SYSTEM").fetchone()
    assert row is not None
    if (str(row[0]), int(row[1])) != (origin.system_identifier, origin.timeline):
        raise SourceUnavailableError(
            f"another server has taken over during this run: it is on timeline {row[1]}",
            where=redact(dsn),
            way_out="run the same command again",
        )


def _check_cluster(server: ServerIdentity, origin: Origin, dsn: str) -> None:
    if server.system_identifier != origin.system_identifier:
        raise AnotherClusterError(
            f"this is another PostgreSQL cluster (system identifier {server.system_identifier}) than the one "
            f"from which the lake was filled ({origin.system_identifier})",
            where=redact(dsn),
            way_out=f"correct source.dsn; or, if that cluster is gone for good, {_RECOVER}",
        )


def _check_fork(server: ServerIdentity, origin: Origin, position: int, fork: int | None, dsn: str) -> None:
    if fork is None:
        raise HistoryError(
            f"the server is on timeline {server.timeline}, which does not continue timeline "
            f"{origin.timeline}, from which the lake was filled",
            where=redact(dsn),
            way_out="point source.dsn at the server that was promoted last (several hosts with "
            f"target_session_attrs=read-write select it); or, if it is gone for good, {_RECOVER}",
        )
    if position > fork:
        raise HistoryError(
            f"the lake is at {format_lsn(position)} of timeline {origin.timeline}, but the server's timeline "
            f"{server.timeline} left that one at {format_lsn(fork)}: the lake has {position - fork} bytes of "
            "WAL that were lost with the old primary",
            where=redact(dsn),
            way_out=f"{_RECOVER}. To prevent this in future, name the standby's physical slot in "
            "synchronized_standby_slots on the primary (PostgreSQL 17 and later)",
        )
