"""Bring the lake to the LSN of a snapshot that waits for nobody, to compare both sides or read rows again.

Where no such snapshot can be judged (`infra.source.snapshots`), a slot's snapshot is used, which waits for
open transactions.

Invariant: what `at_nonblocking_snapshot` yields stands at the lake's position.  A table whose place in the
publications changed is never copied under such a snapshot: a transaction of before may still be open.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from slotlake.decoder.server.position import source_position
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.infra.source.snapshots import nonblocking_snapshot
from slotlake.infra.source.wal_notes import note_source_position
from slotlake.infra.sync.at_lsn import Advance
from slotlake.infra.sync.schema.evolution import UnsettledError

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing


@contextmanager
def at_nonblocking_snapshot(
    pipeline: OpenPipeline, timeout_seconds: float, progress: Progressing
) -> Iterator[ExportedSnapshot]:
    """Bring the lake exactly to the position of a snapshot of the source, and keep that snapshot open.

    Args:
        pipeline: a pipeline whose lake has its tables.
        timeout_seconds: how long transactions may stay open if a slot's snapshot must be used.

    Raises:
        SlotError: a slot's snapshot had to be used, and transactions stayed open longer; it names them.
    """
    with ExitStack() as resources:
        snapshot = enter_nonblocking_snapshot(pipeline, progress, resources)
        if snapshot is None:
            snapshot = resources.enter_context(Advance(pipeline).at_slot_snapshot(timeout_seconds, progress))
        yield snapshot


def enter_nonblocking_snapshot(
    pipeline: OpenPipeline, progress: Progressing, resources: ExitStack
) -> ExportedSnapshot | None:
    """As `at_nonblocking_snapshot`, but without a slot's snapshot.

    Args:
        pipeline: a pipeline whose lake has its tables.

    Returns:
        The snapshot, at the lake's position; None if none can be judged.
    """
    if pipeline.source.plugin != "pgoutput":
        return None
    # Also where nothing is new: what is wrong with the pipeline is reported first, as by any other pull.
    asked_at = time.time()
    target = max(source_position(pipeline.source), pipeline.position())
    note_source_position(pipeline.file.state_dir, pipeline.source.dsn, target, asked_at)
    Advance(pipeline).advance(target, progress)
    snapshot = resources.enter_context(nonblocking_snapshot(pipeline, progress))
    if snapshot is None:
        return None
    try:
        Advance(pipeline).advance(snapshot.lsn, progress, snapshot)
    except UnsettledError:
        return None
    return snapshot
