"""Before a pull: check that the server continues what the lake holds, and remove batches of a dead timeline.

Invariant: nothing is pulled from a server whose history does not contain the lake's position.  A batch that
was pulled from a primary that has failed since, and that reaches beyond the place where the new one took
over, is not applied: it is removed, and pulled again from the new one.
"""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING

from slotlake.decoder.assembly.prepared import forget_from
from slotlake.decoder.changelog.batches import Batch, batch_positions, batch_starting_at, batches
from slotlake.decoder.errors import SlotError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.timeline import AnotherClusterError, HistoryError, Origin, require_history
from slotlake.decoder.slots.upgraded import UpgradedSlot, require_upgraded_slot

if TYPE_CHECKING:
    from pathlib import Path

    from slotlake.decoder.server.source import SourceSettings
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.spark.lake import LakeSettings

_log = logging.getLogger(__name__)


def lake_origin(lake: LakeSettings) -> Origin | None:
    """The server that the lake was fed from last; None if the lake does not say."""
    from slotlake.spark.catalog.base import load_one
    from slotlake.spark.catalog.open import open_catalog
    from slotlake.spark.publish.commits import commits_name
    from slotlake.spark.publish.origins import origin_of

    with open_catalog(lake) as catalog:
        commits = load_one(catalog, commits_name(lake.namespace))
    return origin_of(commits.metadata)


def server_origin(source: SourceSettings) -> Origin:
    """The server that answers now."""
    from slotlake.decoder.server.source import identify

    server = identify(source.dsn)
    return Origin(server.system_identifier, server.timeline)


def follow_history(pipeline: OpenPipeline, position: int) -> None:
    """Check that the server continues what the lake holds; remove batches that the server does not have.

    Args:
        pipeline: the pipeline, with its source, lake and change log.

    Raises:
        HistoryError: the server does not continue it.
    """
    origin = lake_origin(pipeline.lake)
    continuation = require_history(pipeline.source.dsn, origin, position)
    if continuation.history:
        _forget_dead_branches(pipeline.file, position, continuation.history)


def upgraded_slot(pipeline: OpenPipeline, position: int, error: AnotherClusterError) -> UpgradedSlot:
    """Return the slot that pg_upgrade has kept for this pipeline.

    Args:
        pipeline: the pipeline, whose server is of another cluster than its lake.
        error: what says so.

    Raises:
        HistoryError: that is not proven; or the given error, if no slot is there that could be one.
    """
    origin = lake_origin(pipeline.lake)
    assert origin is not None
    try:
        slot = require_upgraded_slot(pipeline.source, origin, position)
    except SlotError:
        raise error from None
    waiting = batch_starting_at(pipeline.file.changelog_dir, position)
    if waiting is not None and not waiting.empty and waiting.end_lsn != slot.position:
        raise HistoryError(
            f"{error.what}, and batch {waiting.name} of the old cluster waits to be applied",
            where=error.where,
            way_out=error.way_out,
        )
    return slot


def _forget_dead_branches(file: PipelineFile, position: int, history: dict[int, int]) -> None:
    """Remove batches not in the lake yet, of a timeline that the server left before their end."""
    for path in batches(file.changelog_dir):
        positions = batch_positions(path.name)
        if positions is None or positions[0] < position:
            continue
        switch_lsn = history.get(int(Batch.open(path).manifest["timeline"]))
        if switch_lsn is not None and positions[1] > switch_lsn:
            _log.warning(
                "batch %s reaches beyond the failover at %s: pulled again", path.name, format_lsn(switch_lsn)
            )
            remove_batch(path)
            forget_from(file.changelog_dir, position)


def remove_batch(path: Path) -> None:
    """Remove a batch that is not in the lake, with its sidecar."""
    from slotlake.spark.publish import sidecar

    shutil.rmtree(sidecar.place(path), ignore_errors=True)
    shutil.rmtree(path)
