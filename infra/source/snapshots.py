"""A snapshot of the source that waits for nobody, and stands at the lake's position or behind it.

A snapshot of `decoder.slots.visible` is judged by the transactions around it: those of a batch that is pulled
past it, and those that the lake has already, back to where an earlier one was judged.  Where none can be
judged (on a standby, with another plugin, or with so many writers that no snapshot falls between two commits)
the result is None.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from slotlake.decoder.changelog.batches import Batch, batch_positions, batches
from slotlake.decoder.server.position import source_position
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.decoder.slots.visible import Reader, VisibleTransactions, readers
from slotlake.infra.source.pulling import pull_batch
from slotlake.infra.state.notes import SHOWN, StateFile

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing

_AT_ONCE = 4
_TRIES = 5
_PAUSE_SECONDS = 0.1


@contextmanager
def nonblocking_snapshot(pipeline: OpenPipeline, progress: Progressing) -> Iterator[ExportedSnapshot | None]:
    """Open a snapshot that stands at the lake's position or behind it; yield None if none can be judged."""
    with ExitStack() as resources:
        yield None if pipeline.source.plugin != "pgoutput" else _first_judged(pipeline, progress, resources)


def _first_judged(
    pipeline: OpenPipeline, progress: Progressing, resources: ExitStack
) -> ExportedSnapshot | None:
    """Export snapshots until one of them can be judged; None if none can."""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        with ExitStack() as opened:
            exported = readers(pipeline.source, _AT_ONCE)
            for reader in exported:
                opened.enter_context(reader)
            if not exported:
                return None
            snapshot = _judged_snapshot(pipeline, exported, progress)
            if snapshot is not None:
                resources.push(opened.pop_all())
                return snapshot
    return None


def _judged_snapshot(
    pipeline: OpenPipeline, exported: Sequence[Reader], progress: Progressing
) -> ExportedSnapshot | None:
    """The first of the exported snapshots that stands at an LSN, with that LSN; None if none does."""
    start = pipeline.position()
    batch = pull_batch(pipeline, start, source_position(pipeline.source), progress, whole=True)
    table = None if batch.empty else batch.transaction_table()
    columns = ((), ()) if table is None else (table["xid"].to_pylist(), table["end_lsn"].to_pylist())
    transactions = list(zip(*columns, strict=True))
    for reader in exported:
        lsn = reader.visible.stands(start, batch.end_lsn, transactions)
        if lsn is not None and not _lake_has_hidden(pipeline, start, reader.visible):
            _note_checked_up_to(pipeline.file, lsn)
            _remove_other(batch, lsn)
            return reader.at(lsn)
    _remove_other(batch, start)
    return None


def _lake_has_hidden(pipeline: OpenPipeline, position: int, shown: VisibleTransactions) -> bool:
    """Return whether the lake has a transaction that the snapshot does not show.

    A transaction is logged, and may be sent, before others can see it.
    """
    checked_up_to = _checked_up_to(pipeline.file, position)
    if pipeline.stored is not None:
        pipeline.stored.fetch(lambda name: checked_up_to < (batch_positions(name) or (0, 0))[1] <= position)
    for path in reversed(batches(pipeline.file.changelog_dir)):
        positions = batch_positions(path.name)
        if positions is None or not checked_up_to < positions[1] <= position:
            continue
        xids = Batch.open(path).xids()
        xid_range = pc.min_max(xids).as_py()
        if len(xids) == 0 or shown.shows_all(xid_range["min"], xid_range["max"]):
            continue
        if not all(shown.shows(xid) for xid in xids.to_numpy().tolist()):
            return True
    return False


def _checked_up_to(file: PipelineFile, position: int) -> int:
    """The LSN up to which every snapshot from now on shows all that the lake has."""
    checked_up_to = _file(file).mapping().get("shown_to", 0)
    return checked_up_to if isinstance(checked_up_to, int) and checked_up_to <= position else 0


def _note_checked_up_to(file: PipelineFile, lsn: int) -> None:
    """Note that LSN. It only saves work: without it all batches are looked at the next time too."""
    with suppress(OSError):
        _file(file).write({"shown_to": lsn})


def _file(file: PipelineFile) -> StateFile:
    return SHOWN.of(file.state_dir)


def _remove_other(batch: Batch, lsn: int) -> None:
    """Remove a batch that was pulled only to judge a snapshot by, and ends elsewhere."""
    if not batch.empty and batch.end_lsn != lsn:
        shutil.rmtree(batch.path, ignore_errors=True)
