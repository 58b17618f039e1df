"""Pull the next batch of the change log: from the standing puller if one runs, else by a connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.plugins.changelog import pull_rows
from slotlake.decoder.stream.pull import PullProgress
from slotlake.infra.source import standing_puller
from slotlake.infra.source.fingerprints import ask_ahead

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.opened.standing import PullSettings, StandingStream
    from slotlake.infra.progress import Progressing


def pull_batch(
    pipeline: OpenPipeline, position: int, until: int | None, progress: Progressing, *, whole: bool = False
) -> Batch:
    """Return the batch that follows a position: from the standing puller if one runs, else by a connection.

    Args:
        pipeline: the pipeline, with its slot and change log.
        position: LSN at which the batch starts.
        until: LSN at which it ends; None for where the source is now.
        progress: called with the bytes that are received.
        whole: take all up to ``until``, however much that is; else a batch has a greatest size.

    Raises:
        SlotlakeError: the slot cannot be read, or the change log cannot be written.
    """
    settings = replace(pipeline.pulling, batch_bytes_max=None) if whole else pipeline.pulling
    if settings.source.plugin != "pgoutput":
        return _pull_by_plugin(settings, position, until)
    batch = standing_puller.batch(pipeline, position, until, whole=whole)
    if batch is not None:
        return batch

    def note_received(received: PullProgress) -> None:
        progress("pull: bytes received", received.received_bytes)

    if not whole and pipeline.stream.worth_it():
        return _pull_by_stream(pipeline.stream, position, until, note_received)
    if whole:
        pipeline.stream.end()
    settings = replace(settings, planned=partial(ask_ahead, pipeline))
    return settings.pull(position, until, note_received)


def _pull_by_plugin(settings: PullSettings, position: int, until: int | None) -> Batch:
    return pull_rows(
        settings.source,
        settings.pipeline,
        settings.changelog,
        start=position,
        until=until,
        memory_bytes=settings.memory_bytes,
        pass_over=True,
    )


def _pull_by_stream(
    stream: StandingStream, position: int, until: int | None, note_received: Callable[[PullProgress], None]
) -> Batch:
    """Pull over the pipeline's own connection, and close that if it is not worth keeping."""
    batch = stream.batch(position, until, note_received)
    if not stream.worth_keeping():
        stream.end()
    return batch
