"""What was verified of each table, and when: the note ``verified.json`` in a pipeline's state.

It outlives a worker, as all notes of the state do (docs/workers.md).  Invariant: it only says what was found
equal.  A table, or a slice of one, that differed keeps what was noted before, so the next verification of the
same kind compares the same rows again; of a table that is copied nothing counts that was found equal before
(`infra.journal.verified.note_copied`).  If the note is lost, rows are compared once more than needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from slotlake.infra.journal.verified import locked_note

if TYPE_CHECKING:
    from slotlake.infra.pipeline_open import OpenPipeline

_WAIT_SECONDS = 60.0


@contextmanager
def changed_verified(pipeline: OpenPipeline) -> Iterator[dict[str, Any]]:
    """Lend the note for a change, and write it.

    Args:
        pipeline: a pipeline whose lock this run does not have.

    Raises:
        BusyError: the state is in an object store, and another run works on the pipeline for too long.
        OSError: it cannot be written.
    """
    with ExitStack() as resources:
        if pipeline.state is not None:  # its notes are written only by who has the lock
            resources.enter_context(pipeline.locks.taken("verify", _WAIT_SECONDS))
            pipeline.state.refresh()
        yield resources.enter_context(locked_note(pipeline.file.state_dir))
