"""Pulls the next batch of the change log: from the standing puller if one runs, else by a connection."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.plugins.changelog import pull_rows
from slotlake.decoder.stream.pull import PullProgress
from slotlake.infra.source import standing_puller

if TYPE_CHECKING:
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.infra.progress import Progressing


def pull_batch(
    pipeline: OpenPipeline, position: int, until: int | None, progress: Progressing, *, whole: bool = False
) -> Batch:
    """The next batch: from the standing puller if one runs, else by a connection of its own.

    Args:
        whole: all up to ``until``, however much that is.
    """
    settings = replace(pipeline.pulling, batch_bytes_max=None) if whole else pipeline.pulling
    if settings.source.plugin != "pgoutput":
        return pull_rows(
            settings.source,
            settings.pipeline,
            settings.changelog,
            start=position,
            until=until,
            memory_bytes=settings.memory_bytes,
            pass_over=True,
        )
    followed = standing_puller.batch(pipeline, position, until, whole=whole)
    if followed is not None:
        return followed

    def tell(done: PullProgress) -> None:
        progress("pull: bytes received", done.received_bytes)

    stream = pipeline.stream
    if not whole and stream.worth_it():
        made = stream.batch(position, until, tell)
        if not stream.worth_keeping():
            stream.end()
        return made
    if whole:
        stream.end()
    return settings.pull(position, until, tell)
