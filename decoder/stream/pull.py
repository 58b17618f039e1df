"""Pull: from the slot to one whole batch of the change log.

Owns how a batch is read: through SQL, streamed, with no transaction in progress, or in binary.  What is
checked before is `preflight`'s matter.  Nothing is confirmed to the server: that is `decoder.slots.confirm`,
after the lake has published.

The work is done by `Puller`; this module decides whether and how far.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from slotlake.decoder.assembly.prepared import Noted
from slotlake.decoder.assembly.spool import MEMORY_BYTES
from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.errors import (
    BulkError,
    SourceError,
    SourceUnavailableError,
    StreamingError,
    UnsendableError,
    UntranslatableError,
)
from slotlake.decoder.failpoints import reach
from slotlake.decoder.server.position import writers_open
from slotlake.decoder.server.source import SourceSettings
from slotlake.decoder.server.waiting import WatchedConnection
from slotlake.decoder.slots.slot import SlotState
from slotlake.decoder.stream.bulk import worth_bulk
from slotlake.decoder.stream.options import Options, as_stored_options, negotiate
from slotlake.decoder.stream.preflight import PullRequest, prepare
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
    writes_open = False

    def look_for_writers(connection: WatchedConnection, _: SlotState) -> None:
        nonlocal writes_open
        writes_open = stream_by_need and writers_open(connection)

    request = PullRequest(source, pipeline, changelog_dir, start, until)
    plan = prepare(request, ask=look_for_writers)
    if isinstance(plan, Batch):
        return plan
    options = plan.state.options or negotiate(source, plan.state.server.server_version)
    if writes_open:
        options = replace(options, streaming="off")
    deadline = None if max_seconds is None else time.monotonic() + max_seconds

    def write_batch(options: Options, bulk_until: int | None = None) -> Batch:
        with Puller(
            source,
            options,
            changelog_dir,
            plan.identity,
            start,
            memory_bytes=memory_bytes,
            pass_over=pass_over,
            bulk_until=bulk_until,
            noted=noted,
        ) as puller:
            return puller.next_batch(plan.until, max_bytes=max_bytes, deadline=deadline, progress=progress)

    slot = plan.state.slot
    bulk = deadline is None and slot is not None and worth_bulk(source, slot, start, plan.until)
    batch = _as_utf8_or_stored(write_batch, options, plan.until if bulk else None)
    reach("pull.renamed")
    return batch


def _as_utf8_or_stored(write_batch: Callable[..., Batch], options: Options, bulk_until: int | None) -> Batch:
    """In UTF-8; else as the database stores it: a value that has no UTF-8 is then found, with its table."""
    try:
        return _first_that_works(write_batch, options, bulk_until)
    except UntranslatableError as error:
        _log.warning("a batch is read as it is stored, because the server cannot translate all of it")
        refused = error
    try:
        return write_batch(as_stored_options(options))
    except UntranslatableError:  # it is no text of a change
        raise refused from None


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
