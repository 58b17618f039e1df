"""Pull: from the slot to one whole batch of the change log.

Owns the choice of how a batch is read: through SQL, streamed, streamed without transactions in progress, or
in binary.  `preflight` makes the checks before.  Nothing is confirmed to the server: `decoder.slots.confirm`
does that after the lake has published.

`Puller` does the work; this module decides whether there is work, and up to which position.
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
    ProtocolError,
    SlotlakeError,
    SourceError,
    SourceUnavailableError,
    StreamingError,
    UnsendableError,
    UntranslatableError,
)
from slotlake.decoder.failpoints import reach
from slotlake.decoder.server.position import writers_open
from slotlake.decoder.server.source import SourceSettings, Streaming
from slotlake.decoder.server.waiting import WatchedConnection
from slotlake.decoder.slots.slot import SlotState
from slotlake.decoder.stream.bulk import worth_bulk
from slotlake.decoder.stream.options import Options, as_stored_options, negotiate
from slotlake.decoder.stream.preflight import Planned, PullRequest, no_matter, prepare
from slotlake.decoder.stream.puller import Progress, Puller, PullProgress

__all__ = ["WHOLE_TRANSACTIONS", "Progress", "PullProgress", "pull", "without_streaming_may_help"]

WHOLE_TRANSACTIONS = "this server cannot send transactions in progress, so each is read when it has ended"
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
    planned: Planned = no_matter,
    progress: Progress | None = None,
) -> Batch:
    """Write all transactions from ``start`` on into one batch of the change log.

    Args:
        until: the batch's exact end; without it, a position after everything that was committed before
            the call, or the end of a batch from ``start`` that is on disk already.
        max_bytes: payload bytes after which the batch ends early, at the next commit.
        max_seconds: seconds after which the batch ends early, at the next commit.
        memory_bytes: memory for transactions that have not ended; more goes to disk.
        pass_over, noted: as of a `Puller`.
        stream_by_need: let the server send transactions in progress only if none is open now. A transaction
            that is open now cannot end before ``until``: its changes would come for nothing, and again in the
            next batch (docs/adr/0007).
        planned: called before anything is read.
        progress: called a few times a second.

    Returns:
        The batch, whole and on disk; `Batch.empty` (and not on disk) when start and end are the same.

    Raises:
        SourceError, SlotError: the server or the slot cannot be used; the error says what to do.
        ChangeLogError: the batch cannot be written, or an old batch is damaged.
        ProtocolError: the stream breaks the protocol.
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
    planned(plan.covered)
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
    """Read in UTF-8; if the server cannot, read texts as stored, so that an error can name the table."""
    try:
        return _first_that_works(write_batch, options, bulk_until)
    except UntranslatableError as error:
        _log.warning(
            "the server cannot translate all texts of this batch to UTF-8: slotlake reads it again as it is "
            "stored, and translates it itself"
        )
        refused = error
    try:
        return write_batch(as_stored_options(options))
    except UntranslatableError:  # the text does not belong to a change
        raise refused from None


def _first_that_works(write_batch: Callable[..., Batch], options: Options, bulk_until: int | None) -> Batch:
    """Read through SQL (if ``bulk_until``), else stream, else without transactions in progress, else binary.

    Binary is needed because the text of a bytea is twice as long, and the server's limit is 1 GiB: a bytea of
    more than 512 MB would stop the pipeline for ever.
    """
    if bulk_until is not None:
        try:
            return write_batch(options, bulk_until)
        except (BulkError, ProtocolError) as error:
            if error.table is not None:
                raise
            _log.warning(
                "a backlog cannot be read through SQL, so it is read over a replication connection: %s",
                error.what,
            )
    try:
        return _stream_batch(write_batch, options)
    except UnsendableError as error:
        if options.binary:
            raise
        _log.warning("the server cannot send a batch as text, so it is read in binary: %s", error.what)
        unsendable = error
    try:
        return write_batch(replace(options, streaming="off", binary=True))
    except SourceUnavailableError:
        raise
    except SourceError:  # a type that has no binary format, or a value that is too large in binary too
        raise unsendable from None


def _stream_batch(write_batch: Callable[..., Batch], options: Options) -> Batch:
    try:
        return write_batch(options)
    except (StreamingError, ProtocolError) as error:
        if not without_streaming_may_help(error, options.streaming):
            raise
        _log.warning("%s; %s", error.what, WHOLE_TRANSACTIONS)
    return write_batch(replace(options, streaming="off"))


def without_streaming_may_help(error: SlotlakeError, streaming: Streaming) -> bool:
    """Return whether a batch is to be read again, each transaction whole when it ends.

    PostgreSQL 18 loses tables while it streams a transaction in which a TRUNCATE or an ALTER TABLE was rolled
    back, and sends blocks of transactions that it never began.  Of a transaction that has ended it knows what
    was rolled back.
    """
    return streaming != "off" and error.table is None
