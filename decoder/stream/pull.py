"""Pull: from the slot to one whole batch of the change log.

Owns the order of things: the slot is judged, the end position fixed, a batch that is on disk already
is taken as it is, else changes are streamed, decoded and written side by side, and the batch is
renamed.  Nothing is confirmed to the server: that is `decoder.slots.confirm`, after the lake has
published.

The work is done by `Puller`; this module decides whether and how far.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from slotlake.decoder.assembly.prepared import Noted, forget_settled
from slotlake.decoder.assembly.spool import MEMORY_BYTES
from slotlake.decoder.catalog.publications import check_publications
from slotlake.decoder.changelog.batches import Batch, batch_starting_at
from slotlake.decoder.changelog.incoming import remove_leftovers
from slotlake.decoder.changelog.writer import BatchIdentity, empty_batch
from slotlake.decoder.errors import (
    BulkError,
    ChangeLogError,
    SourceError,
    SourceUnavailableError,
    StreamingError,
    UnsendableError,
)
from slotlake.decoder.failpoints import reach
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.position import page_floor, settled_position, writers_open
from slotlake.decoder.server.source import (
    ServerIdentity,
    SourceSettings,
    identify,
    redact,
    source_session,
)
from slotlake.decoder.slots.failover import await_standbys, turn_failover
from slotlake.decoder.slots.slot import check_slot
from slotlake.decoder.stream.bulk import worth_bulk
from slotlake.decoder.stream.options import Options, negotiate
from slotlake.decoder.stream.puller import Progress, Puller, PullProgress

__all__ = ["Progress", "PullProgress", "pull"]

_log = logging.getLogger(__name__)


def pull(  # noqa: PLR0913 - each a choice of the caller's, by name
    source: SourceSettings,
    pipeline: str,
    changelog_dir: Path,
    *,
    start: int,
    until: int | None = None,
    max_bytes: int | None = None,
    max_seconds: float | None = None,
    memory_bytes: int = MEMORY_BYTES,
    pass_over: bool = False,
    stream_by_need: bool = False,
    noted: Noted = tuple,
    progress: Progress | None = None,
) -> Batch:
    """Bring all transactions from ``start`` on into one batch of the change log.

    Args:
        start: the lake's position.
        until: the batch's exact end; without it, a position behind all that was committed before
            the call, or the end of a batch from ``start`` that is on disk already.
        max_bytes: payload bytes after which the batch ends early, at the next commit.
        max_seconds: likewise in time.
        memory_bytes: how much of transactions that have not ended is kept in memory; more goes to disk.
        pass_over, noted: as of a `Puller`.
        stream_by_need: let the server send transactions in progress only if none is open now. One that is
            open cannot end before ``until``: its changes would come in vain, and again in the next batch
            (docs/adr/0007).
        progress: called a few times a second.

    Returns:
        The batch, whole and on disk; `Batch.empty` (and not on disk) when start and end are the same.

    Raises:
        SourceError, SlotError: the server or the slot, each with its way out.
        ChangeLogError: the disk does not take the batch, or an old batch is damaged.
        ProtocolError: the stream is not what it should be.
        In every case nothing of an unfinished batch is left and nothing was confirmed.
    """
    remove_leftovers(changelog_dir)
    server = identify(source.dsn)
    with source_session(source.dsn, "looking at the slot") as connection:
        options = negotiate(source, server.server_version)
        slot = check_slot(connection, source, position=start)
        check_publications(connection, source.publications)
        settled = settled_position(connection)
        if stream_by_need and options.streaming != "off" and writers_open(connection):
            options = replace(options, streaming="off")
    identity = identity_of(server, pipeline, source)
    forget_settled(changelog_dir, start)
    existing_batch = batch_starting_at(changelog_dir, start, until)
    if existing_batch is not None:
        return reused(existing_batch, identity)
    until = _end_position(source, start, until, settled)
    if until == start:
        return empty_batch(changelog_dir, identity, start)
    turn_failover(source, slot.failover, server.server_version)
    if slot.failover or source.failover:
        await_standbys(source, until)
    deadline = None if max_seconds is None else time.monotonic() + max_seconds

    def write_batch(options: Options, bulk_until: int | None = None) -> Batch:
        with Puller(
            source,
            options,
            changelog_dir,
            identity,
            start,
            memory_bytes=memory_bytes,
            pass_over=pass_over,
            bulk_until=bulk_until,
            noted=noted,
        ) as puller:
            return puller.next_batch(until, max_bytes=max_bytes, deadline=deadline, progress=progress)

    bulk = deadline is None and worth_bulk(source, slot, start, until)
    batch = _first_that_works(write_batch, options, until if bulk else None)
    reach("pull.renamed")
    return batch


def _first_that_works(write_batch: Callable[..., Batch], options: Options, bulk_until: int | None) -> Batch:
    """Through SQL, if that is asked for; else streamed; else with no transaction in progress; else in binary.

    Binary because the server doubles a bytea's size to make a text of it, and has room for 1 GiB: one of more
    than 512 MB would stop the pipeline for ever.
    """
    if bulk_until is not None:
        try:
            return write_batch(options, bulk_until)
        except BulkError as error:
            _log.warning("a backlog is streamed, because it cannot be read through SQL: %s", error.what)
    try:
        return _stream_batch(write_batch, options)
    except UnsendableError as error:
        if options.binary:
            raise
        _log.warning("a batch is read in binary, because the server cannot send it as text: %s", error.what)
        unsendable = error
    try:
        return write_batch(replace(options, streaming="off", binary=True))
    except SourceUnavailableError:
        raise
    except SourceError:  # a type that does not come in binary, or too large also so
        raise unsendable from None


def _stream_batch(write_batch: Callable[..., Batch], options: Options) -> Batch:
    try:
        return write_batch(options)
    except StreamingError:
        return write_batch(replace(options, streaming="off"))


def identity_of(server: ServerIdentity, pipeline: str, source: SourceSettings) -> BatchIdentity:
    """What a batch's manifest says of its source."""
    return BatchIdentity(
        pipeline=pipeline,
        system_identifier=server.system_identifier,
        timeline=server.timeline,
        database=server.database,
        slot=source.slot,
        server_version=server.version_text,
    )


def _end_position(source: SourceSettings, start: int, until: int | None, settled: int) -> int:
    if until is not None and until < start:
        raise ValueError(f"a batch from {format_lsn(start)} cannot end at {format_lsn(until)}")
    needed_lsn = start if until is None else until
    if page_floor(needed_lsn) > settled:
        raise SourceError(
            f"the server's WAL ends at {format_lsn(settled)}, before {format_lsn(needed_lsn)}",
            where=redact(source.dsn),
            way_out="this is not the server that the lake was fed from, or it was restored to an earlier "
            "moment: connect to the right one, or run `slotlake recover`",
        )
    return max(start, settled) if until is None else until


def reused(batch: Batch, identity: BatchIdentity) -> Batch:
    """A batch on disk is used again if it is whole and of the same source."""
    if str(batch.manifest["system_identifier"]) != identity.system_identifier:
        raise ChangeLogError(
            "the change log holds a batch of another server from the lake's position on",
            where=str(batch.path),
            way_out="connect to the server that the lake was fed from, or move a wrong batch away",
        )
    if (batch.manifest["slot"], batch.manifest["database"]) != (identity.slot, identity.database):
        raise ChangeLogError(
            f"the change log holds a batch from slot {batch.manifest['slot']!r} in database "
            f"{batch.manifest['database']!r} from the lake's position on",
            where=str(batch.path),
            way_out="give each pipeline a change log directory of its own, or move that batch away",
        )
    batch.verify()
    return batch
