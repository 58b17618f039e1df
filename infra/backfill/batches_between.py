"""The batches of the change log that have brought the lake from one position to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotlake.decoder.changelog.batches import Batch, batch_positions, batches
from slotlake.decoder.errors import ChangeLogError

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline


def batches_between(pipeline: OpenPipeline, since: int, position: int) -> list[Batch] | None:
    """Return the batches that lead from one position to another; None if the change log lacks one.

    Args:
        pipeline: the pipeline, with its change log.
        since: the earlier LSN.
    """
    if position < since:
        return None
    if pipeline.stored is not None:
        pipeline.stored.fetch(lambda name: since < (batch_positions(name) or (0, 0))[1] <= position)
    by_start = {
        positions[0]: (positions[1], path)
        for path in batches(pipeline.file.changelog_dir)
        if (positions := batch_positions(path.name)) is not None and positions[0] < positions[1] <= position
    }
    chain: list[Batch] = []
    try:
        while since < position:
            since, path = by_start[since]
            chain.append(Batch.open(path))
    except (KeyError, ChangeLogError):
        return None
    return chain if since == position else None
