"""By which keys of the pipeline file a pipeline is known, and what they were when its lake was made.

An edit of such a key moves nothing: it makes another pipeline of the file, with the slot of the first.  What
helps a new pipeline (run `init`, drop a slot that nobody knows) would then destroy the first one's changes.
So the state folder remembers the keys, and each error that a changed key leads to says what changed.

Invariant: the note is written only when the lake has the pipeline's tables at that place.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.state.notes import IDENTITY, MADE, MAKING

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.spark.lake import LakeSettings

_SLOT = "source.slot"


def identity_of(file: PipelineFile, lake: LakeSettings) -> dict[str, str]:
    """Return the keys by which a pipeline is known, without passwords."""
    return {
        "lake.namespace": lake.namespace,
        "lake.catalog": lake.catalog,
        "lake.uri": lake.place,
        "lake.warehouse": lake.warehouse,
        _SLOT: file.source.slot,
    }


def note_identity(file: PipelineFile, lake: LakeSettings, *, slot: bool = True) -> None:
    """Note the keys: the lake has the pipeline's tables there.

    Args:
        slot: its slot was made, or has served; else a slot that was noted before stays.
    """
    note = IDENTITY.of(file.state_dir)
    before, now = note.mapping(), identity_of(file, lake)
    if not slot and _SLOT in before:
        now[_SLOT] = before[_SLOT]
    if now != before:
        note.write(now, durable=True)


def noted_slot(file: PipelineFile) -> str:
    """Return the slot that the pipeline had last; that of the file if none was noted."""
    return str(IDENTITY.of(file.state_dir).mapping().get(_SLOT, file.source.slot))


def changed_keys(file: PipelineFile, lake: LakeSettings) -> list[str]:
    """Return in words which keys say something else than when the lake was made."""
    before = IDENTITY.of(file.state_dir).mapping()
    now = identity_of(file, lake)
    changed = [key for key in now if before.get(key, now[key]) != now[key]]
    return [f"{key} was {before[key]!r}, and is {now[key]!r}" for key in changed]


def other_lake_error(file: PipelineFile, lake: LakeSettings) -> PipelineFileError | None:
    """Return the error about a file that names another lake than the pipeline has; None if it does not."""
    changed = changed_keys(file, lake)
    if not changed:
        return None
    return PipelineFileError(
        f"the pipeline file was changed: {'; '.join(changed)}; the pipeline's tables are where they were",
        where=f"{file.path.name}, by the note in {file.state_place}",
        way_out="put it back. An edit moves no lake. To begin again elsewhere: put it back, `slotlake drop` "
        "(the old lake stays), change the file, and run `slotlake init`; to have both, give a second file "
        "another name and slot. Do not drop the slot by hand: it may hold the only copy of changes",
    )


def require_same_lake(file: PipelineFile, lake: LakeSettings) -> None:
    """Check that the file names the lake that the pipeline has.

    Raises:
        PipelineFileError: it names another one.
    """
    if error := other_lake_error(file, lake):
        raise error


def owner_of_slot(file: PipelineFile) -> Path | None:
    """Return the state folder, next to this pipeline's, of the pipeline that made a slot of this name."""
    for folder in sorted(file.state_dir.parent.glob("*")):
        for each in (IDENTITY, MADE, MAKING):
            note = each.of(folder).mapping()
            if folder != file.state_dir and file.source.slot in {note.get(_SLOT), note.get("slot")}:
                return folder
    return None
