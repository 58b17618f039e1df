"""The lake at the LSN of a snapshot that waits for nobody: to look at both sides, and to read rows again.

Where no such snapshot can be judged (`infra.source.snapshots`) there is the slot's, which waits.

Invariant: what `beside_writers` yields stands at the lake's position.  A table whose place in the
publications changed is never copied under such a snapshot: a transaction of before may still be open.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from slotlake.decoder.server.position import source_position
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.infra.advance.advance import advance, at_exact_lsn
from slotlake.infra.schema.evolution import UnsettledError
from slotlake.infra.source.snapshots import standing
from slotlake.infra.source.wal_notes import note_source

if TYPE_CHECKING:
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.infra.progress import Progressing


@contextmanager
def beside_writers(
    pipeline: OpenPipeline, timeout_seconds: float, progress: Progressing
) -> Iterator[ExportedSnapshot]:
    """Bring the lake exactly to the position of a snapshot of the source, and keep that snapshot.

    Args:
        timeout_seconds: how long transactions may stay open, should the snapshot have to be a slot's.

    Raises:
        SlotError: it had to be, and they stayed open longer; the message names them.
    """
    with ExitStack() as held:
        snapshot = found_beside_writers(pipeline, progress, held)
        if snapshot is None:
            snapshot = held.enter_context(at_exact_lsn(pipeline, timeout_seconds, progress))
        yield snapshot


def found_beside_writers(
    pipeline: OpenPipeline, progress: Progressing, held: ExitStack
) -> ExportedSnapshot | None:
    """`beside_writers`, but None where none can be judged; what is opened goes with ``held``."""
    if pipeline.source.plugin != "pgoutput":
        return None
    # Also where nothing is new: whatever is wrong with the pipeline is told first, as by any other pull.
    asked = time.time()
    target = max(source_position(pipeline.source), pipeline.position())
    note_source(pipeline, target, asked)
    advance(pipeline, target, progress)
    snapshot = held.enter_context(standing(pipeline, progress))
    if snapshot is None:
        return None
    try:
        advance(pipeline, snapshot.lsn, progress, snapshot)
    except UnsettledError:
        return None
    return snapshot
