"""The steps before every pull: check server and slot, and decide the end of the batch.

Three readers pull: a connection for one batch (`stream/pull.py`), a standing stream
(`infra/opened/standing.py`) and the slot of another plugin (`plugins/changelog.py`).  All of them call
`prepare`, so that all make the same checks in the same order.

Invariant: a batch that is on disk already is used unchanged; nothing is read that has not reached the
standbys of synchronized_standby_slots; nothing is confirmed to the server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from slotlake.decoder.assembly.prepared import forget_settled
from slotlake.decoder.catalog.publications import check_publications
from slotlake.decoder.changelog.batches import Batch, batch_starting_at
from slotlake.decoder.changelog.incoming import remove_leftovers
from slotlake.decoder.changelog.writer import BatchIdentity, empty_batch
from slotlake.decoder.errors import ChangeLogError, SourceError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.position import page_floor, settled_position
from slotlake.decoder.server.source import ServerIdentity, SourceSettings, identify, redact, source_session
from slotlake.decoder.server.waiting import WatchedConnection
from slotlake.decoder.slots.failover import await_standbys, turn_failover
from slotlake.decoder.slots.slot import SlotState, check_slot
from slotlake.decoder.slots.upgraded import quiet_xid
from slotlake.decoder.stream.options import Options, negotiate

Question: TypeAlias = Callable[[WatchedConnection, SlotState], None]
# Called with the `covered` position of a plan.
Planned: TypeAlias = Callable[[int], None]


@dataclass(frozen=True)
class PullRequest:
    """Which batch is wanted.

    Attributes:
        changelog: the change log's directory.
        start: the lake's position.
        until: the batch's exact end; None: a position after everything that was committed before the call,
            or the end of a batch from ``start`` that is on disk already.
    """

    source: SourceSettings
    pipeline: str
    changelog: Path
    start: int
    until: int | None


@dataclass(frozen=True)
class SourceState:
    """Server and slot as they are before a pull.

    Attributes:
        options: pgoutput's options; None for another plugin.
        slot: None if it was not checked, because the caller's own stream reads it.
        settled: a position after everything that was committed before the check.
        next_xid: the transaction id below which all had ended before; None if an older one was open.
    """

    server: ServerIdentity
    options: Options | None
    slot: SlotState | None
    settled: int
    next_xid: str | None = None


@dataclass(frozen=True)
class PullPlan:
    """A pull that can begin.

    Attributes:
        identity: what the batch's manifest will say about its source.
        until: the batch's end, after its start.
    """

    state: SourceState
    identity: BatchIdentity
    until: int

    @property
    def covered(self) -> int:
        """The highest LSN up to the batch's end before which all had been committed when it was planned."""
        return min(self.until, self.state.settled)


def no_matter(position: int) -> None:
    """For a caller who does not want to know what is planned."""


def prepare(
    request: PullRequest, *, own_stream: bool = False, ask: Question | None = None
) -> Batch | PullPlan:
    """Do the steps before a pull.

    Args:
        own_stream: a stream of the caller reads the slot now, so the slot is not checked.
        ask: called with the connection and the slot after both have passed the checks; it may raise.

    Returns:
        The batch, if there is nothing to read: one that is on disk already, or an empty one; else the plan.

    Raises:
        SourceError, SlotError: the server or the slot cannot be used; the error says what to do.
        ChangeLogError: the batch on disk is damaged, or from another source.
    """
    source, start = request.source, request.start
    state = look_at_source(request, own_stream=own_stream, ask=ask)
    quiet = None if state.next_xid is None else (state.settled, state.next_xid)
    identity = replace(identity_of(state.server, request.pipeline, source), quiet=quiet)
    forget_settled(request.changelog, start)
    existing_batch = batch_starting_at(request.changelog, start, request.until)
    if existing_batch is not None:
        return reusable_batch(existing_batch, identity)
    until = _end_position(source, start, request.until, state.settled)
    if until == start:
        return empty_batch(request.changelog, identity, start)
    if state.slot is not None:
        turn_failover(source, state.slot.failover, state.server.server_version)
    if state.slot is None or state.slot.failover or source.failover:
        await_standbys(source, until)
    return PullPlan(state, identity, until)


def look_at_source(
    request: PullRequest, *, own_stream: bool = False, ask: Question | None = None
) -> SourceState:
    """Remove what dead processes left in the change log, then check server, slot and publications.

    Args:
        own_stream: a stream of the caller uses the slot and the change log, so both are left unchanged.
        ask: called with the connection and the slot after both have passed the checks; it may raise.

    Raises:
        SourceError, SlotError: the server or the slot cannot be used; the error says what to do.
    """
    source = request.source
    if not own_stream:
        remove_leftovers(request.changelog)
    server = identify(source.dsn)
    options = negotiate(source, server.server_version) if source.plugin == "pgoutput" else None
    with source_session(source.dsn, "looking at the slot") as connection:
        slot = None if own_stream else check_slot(connection, source, position=request.start)
        if ask is not None and slot is not None:
            ask(connection, slot)
        check_publications(connection, source.publications)
        next_xid = quiet_xid(connection)  # before the position: then that is behind their commits
        return SourceState(server, options, slot, settled_position(connection), next_xid)
    raise AssertionError("unreachable")


def identity_of(server: ServerIdentity, pipeline: str, source: SourceSettings) -> BatchIdentity:
    """Return what a batch's manifest says about its source."""
    return BatchIdentity(
        pipeline=pipeline,
        system_identifier=server.system_identifier,
        timeline=server.timeline,
        database=server.database,
        slot=source.slot,
        server_version=server.version_text,
    )


def reusable_batch(batch: Batch, identity: BatchIdentity) -> Batch:
    """Verify a batch that is on disk, and return it.

    Raises:
        ChangeLogError: it is damaged, or from another server, slot or database.
    """
    if str(batch.manifest["system_identifier"]) != identity.system_identifier:
        raise ChangeLogError(
            "the change log's batch from the lake's position on comes from another server",
            where=str(batch.path),
            way_out="point source.dsn at the server from which the lake was filled; or, if the batch is "
            "wrong, move it to another folder",
        )
    if (batch.manifest["slot"], batch.manifest["database"]) != (identity.slot, identity.database):
        raise ChangeLogError(
            f"the change log's batch from the lake's position on comes from slot {batch.manifest['slot']!r} "
            f"in database {batch.manifest['database']!r}, not from slot {identity.slot!r} in database "
            f"{identity.database!r}",
            where=str(batch.path),
            way_out="give each pipeline a change log folder of its own (changelog.path), or move that batch "
            "to another folder",
        )
    batch.verify()
    return batch


def _end_position(source: SourceSettings, start: int, until: int | None, settled: int) -> int:
    if until is not None and until < start:
        raise ValueError(f"a batch from {format_lsn(start)} cannot end at {format_lsn(until)}")
    needed_lsn = start if until is None else until
    if page_floor(needed_lsn) > settled:
        raise SourceError(
            f"the server's WAL ends at {format_lsn(settled)}, before {format_lsn(needed_lsn)}",
            where=redact(source.dsn),
            way_out="this is not the server from which the lake was filled, or it was restored to an earlier "
            "moment: correct source.dsn, or run `slotlake recover`",
        )
    return max(start, settled) if until is None else until
