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
from slotlake.decoder.changelog.batches import Batch, batch_positions, batches
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.timeline import Origin, require_history

if TYPE_CHECKING:
    from slotlake.infra.pipeline_open import OpenPipeline

_log = logging.getLogger(__name__)


def lake_origin(pipeline: OpenPipeline) -> Origin | None:
    """The server that the lake was fed from last; None if the lake does not say."""
    from slotlake.spark.catalog.base import load_one
    from slotlake.spark.catalog.open import open_catalog
    from slotlake.spark.publish.commits import commits_name, origin_of

    with open_catalog(pipeline.lake) as catalog:
        commits = load_one(catalog, commits_name(pipeline.lake.namespace))
    return origin_of(commits.metadata)


def server_origin(pipeline: OpenPipeline) -> Origin:
    """The server that answers now."""
    from slotlake.decoder.server.source import identify

    server = identify(pipeline.source.dsn)
    return Origin(server.system_identifier, server.timeline)


def follow_history(pipeline: OpenPipeline, position: int) -> None:
    """Check that the server continues what the lake holds; remove batches that the server does not have.

    Args:
        pipeline: the pipeline, with its source, lake and change log.
        position: the lake's position.

    Raises:
        HistoryError: the server does not continue it.
    """
    origin = lake_origin(pipeline)
    continuation = require_history(pipeline.source.dsn, origin, position)
    if continuation.history:
        _forget_dead_branches(pipeline, position, continuation.history)


def _forget_dead_branches(pipeline: OpenPipeline, position: int, history: dict[int, int]) -> None:
    """Remove batches not in the lake yet, of a timeline that the server left before their end."""
    from slotlake.spark.publish import sidecar

    for path in batches(pipeline.file.changelog_dir):
        positions = batch_positions(path.name)
        if positions is None or positions[0] < position:
            continue
        switch_lsn = history.get(int(Batch.open(path).manifest["timeline"]))
        if switch_lsn is not None and positions[1] > switch_lsn:
            _log.warning(
                "batch %s reaches beyond the failover at %s: pulled again", path.name, format_lsn(switch_lsn)
            )
            shutil.rmtree(sidecar.place(path), ignore_errors=True)
            shutil.rmtree(path)
            forget_from(pipeline.file.changelog_dir, position)
