"""Is the slot that the pipeline file names the pipeline's own? Asked only when the name has changed.

Invariant: a slot of another name that exists is never read: reading and confirming it would take changes from
whoever owns it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotlake.decoder.errors import PipelineFileError
from slotlake.decoder.server.source import source_session
from slotlake.decoder.slots.slot import inspect_slot
from slotlake.infra.config.identity import noted_slot

if TYPE_CHECKING:
    from slotlake.decoder.server.source import SourceSettings
    from slotlake.infra.config.pipeline_file import PipelineFile


def require_own_slot_name(file: PipelineFile, source: SourceSettings) -> None:
    """Check that the file names the slot that the pipeline had, unless neither slot exists any more.

    Raises:
        PipelineFileError: source.slot was changed, and one of the two slots is there.
    """
    before, now = noted_slot(file), source.slot
    if before == now:
        return
    with source_session(source.dsn, "looking at the slots") as connection:
        old, new = inspect_slot(connection, before), inspect_slot(connection, now)
    if old is None and new is None:
        return  # `recover` makes one under the new name
    what = f"source.slot was {before!r}, and is {now!r}"
    if old is not None:
        raise PipelineFileError(
            f"{what}; the slot {before} is there, and holds the changes that the lake lacks",
            where=file.path.name,
            way_out="put it back. To have another name: put it back, run `slotlake sync`, end all runs, drop "
            "the slot, change the name, and run `slotlake recover`, which reads what changed meanwhile",
        )
    raise PipelineFileError(
        f"{what}; this pipeline did not make {now}, so its changes are somebody else's",
        where=file.path.name,
        way_out="put it back, or choose a name that no slot has; then run `slotlake recover`",
    )
