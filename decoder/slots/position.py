"""Checks a slot's position when nobody else can move it: after its stream has begun, or its copy was created.

Between the check of a slot and its reading, another reader or pg_replication_slot_advance may move it.  The
server does not report this: START_REPLICATION from a position before the slot's confirmed position begins at
the confirmed position instead (logical.c, CreateDecodingContext), and so does a copy of the slot.  The batch
would lack the changes in between.  And if a connection string names several servers, the server that is read
may be another one than the server that was checked.

Invariant: after these checks, the reading begins at the wanted position, on the wanted server.
"""

from __future__ import annotations

from slotlake.decoder.errors import SourceUnavailableError
from slotlake.decoder.server.source import SourceSettings, connect, connect_replication, redact, source_errors
from slotlake.decoder.server.timeline import Origin, require_same
from slotlake.decoder.server.waiting import WatchedConnection, same_server
from slotlake.decoder.slots.slot import check_confirmed, inspect_slot


def require_slot_at(stream: WatchedConnection, source: SourceSettings, start: int) -> None:
    """Check that the slot of a running stream is confirmed up to ``start`` at most.

    Args:
        start: the position at which the stream was asked to begin.

    Raises:
        SlotError: the slot was moved past ``start``.
        SourceUnavailableError: the stream ended, or the slot is not on the server that was reached.
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
                "the replication stream ended right after its start, or the connections of this run lead to "
                "different servers because one has taken over during it",
                where=f"slot {source.slot!r} at {redact(source.dsn)}",
                way_out="run the same command again: nothing of the unfinished batch was stored",
            )
        check_confirmed(state.confirmed_flush_lsn, start, f"slot {source.slot!r} at {redact(source.dsn)}")


def require_server_of(reader: WatchedConnection, source: SourceSettings, copy: str, origin: Origin) -> None:
    """Check that the server with the copy of the slot is the one that was checked before.

    An ordinary session cannot ask for the timeline.  A replication connection can, and it also shows whether
    its server has the copy.

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
        "the connections of this run lead to different servers: one has taken over during it",
        where=redact(source.dsn),
        way_out="run the same command again: nothing of the unfinished batch was stored",
    )
