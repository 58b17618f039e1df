"""Where a slot stands once nobody else can move it: asked when its stream has begun, or its copy was made.

A slot is looked at before it is read, and between the two another reader, or pg_replication_slot_advance, may
move it.  The server says nothing of that: START_REPLICATION from a position that the slot has left behind
begins at its confirmed position instead (logical.c, CreateDecodingContext), and so does a copy of the slot.
The batch would lack what lies between.  And where a connection string leads to several servers, the one that
is read need not be the one that was looked at.

Invariant: what these functions let pass is read from the position asked for, of the server asked for.
"""

from __future__ import annotations

from slotlake.decoder.errors import SourceUnavailableError
from slotlake.decoder.server.source import SourceSettings, connect, connect_replication, redact, source_errors
from slotlake.decoder.server.timeline import Origin, require_same
from slotlake.decoder.server.waiting import WatchedConnection, same_server
from slotlake.decoder.slots.slot import check_confirmed, inspect_slot


def require_slot_at(stream: WatchedConnection, source: SourceSettings, start: int) -> None:
    """Check that the slot of a running stream stands at ``start``, or before it.

    Args:
        stream: the connection that streams.
        start: the position that was asked for.

    Raises:
        SlotError: it was moved beyond it.
        SourceUnavailableError: it cannot be asked where the stream comes from.
    """
    with (
        connect(same_server(stream)) as connection,
        source_errors(source.dsn, "looking at the slot that is read"),
    ):
        state = inspect_slot(connection, source.slot)
        if state is None:
            raise _elsewhere(source)
        if state.active_pid is None:
            raise SourceUnavailableError(
                "the replication stream broke off as it began, or the connections of this run "
                "lead to different servers: one has taken over meanwhile",
                where=f"slot {source.slot!r} at {redact(source.dsn)}",
                way_out="run the same command again: nothing of the unfinished batch was kept",
            )
        check_confirmed(state.confirmed_flush_lsn, start, f"slot {source.slot!r} at {redact(source.dsn)}")


def require_server_of(reader: WatchedConnection, source: SourceSettings, copy: str, origin: Origin) -> None:
    """Check that the server with the copy of the slot is the one that was looked at.

    An ordinary session cannot ask for the timeline; a replication connection can, and sees whose copy it is.

    Args:
        reader: the session that made the copy.
        copy: name of the copied slot.
        origin: the cluster and timeline that was looked at.

    Raises:
        SourceUnavailableError: another server has taken over.
    """
    with (
        connect_replication(same_server(reader)) as connection,
        source_errors(source.dsn, "looking at the server that is read"),
    ):
        require_same(connection, origin, source.dsn)
        name = copy.replace("'", "''")
        query = f"SELECT 1 FROM pg_catalog.pg_replication_slots WHERE slot_name = '{name}'"
        if connection.execute(query.encode()).fetchone() is None:
            raise _elsewhere(source)


def _elsewhere(source: SourceSettings) -> SourceUnavailableError:
    return SourceUnavailableError(
        "the connections of this run lead to different servers: one has taken over meanwhile",
        where=redact(source.dsn),
        way_out="run the same command again: nothing of the unfinished batch was kept",
    )
