"""The state of a pipeline, wherever it is: opened, and seen to be this pipeline's own."""

from __future__ import annotations

import shutil

from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.config.pipeline_file import PipelineFile
from slotlake.infra.state.notes import MADE, OWNER, share
from slotlake.infra.state.shared_journal import bring_journal
from slotlake.infra.state.stored_state import StoredState
from slotlake.spark.lake import LakeSettings
from slotlake.spark.storage.location import Location


def opened_state(file: PipelineFile, lake: LakeSettings) -> StoredState | None:
    """Return the state of a pipeline in an object store, and use it for its notes; None: it is in a folder.

    Args:
        lake: has the store's endpoint and keys.
    """
    state = None if file.state_bucket is None else StoredState.of(lake, file.state_bucket, file.name)
    share(file.state_dir, state)
    return state


def require_own_state(file: PipelineFile, state: StoredState | None) -> None:
    """See that the shared state is this pipeline's, and note that it is; called under the pipeline's lock.

    Args:
        state: its state in an object store; None if that is in a folder.

    Raises:
        PipelineFileError: another pipeline of the same name has its state there; or this one has its own next
            to the pipeline file still.
    """
    if not file.shares_state:
        return
    note, own = OWNER.of(file.state_dir), identity(file)
    owner = note.mapping()
    if not owner:
        _take_over(file, state)
        note.write(own)
    elif owner != own:
        differing = [key for key in own if owner.get(key) != own[key]]
        said = ", ".join(f"{key} {owner.get(key)} there, {own[key]} here" for key in differing)
        raise PipelineFileError(
            f"state.path has the state of another pipeline of the name {file.name!r}: {said}",
            where=f"{file.path}, state.path: {file.state_place}",
            way_out="give each pipeline its own name, or its own state.path; if this is the same pipeline, "
            f"and its {' and '.join(differing)} was changed on purpose, remove {OWNER.name} there",
        )
    bring_journal(file.state_dir, file.state_dir)  # of a version that had one on each machine


def _take_over(file: PipelineFile, state: StoredState | None) -> None:
    """Go on with what lies next to the pipeline file: the key was not in it until now."""
    earlier = file.local_state_dir
    if state is not None:
        state.take_over(earlier)
        bring_journal(earlier, file.state_dir)
    if earlier == file.state_dir:
        return
    if state is not None:
        if not file.changelog_dir.exists() and (earlier / "changelog").is_dir():
            shutil.move(earlier / "changelog", file.changelog_dir)  # from there it comes into the store
    elif MADE.of(earlier).exists() or (earlier / "changelog").exists():
        raise PipelineFileError(
            "state.path names a folder, and the state of this pipeline is next to the pipeline file still",
            where=f"{file.path}, state.path: {file.state_dir}",
            way_out=f"move {earlier} to {file.state_dir} while nothing runs; it has notes and the change log",
        )


def identity(file: PipelineFile) -> dict[str, str]:
    """Return what a pipeline is known by, besides its name: nothing secret, and nothing of a machine."""
    shared_place = {"warehouse": file.warehouse()} if Location(file.lake.warehouse).is_in_bucket else {}
    return {"slot": file.source.slot, "namespace": file.lake.namespace, **shared_place}
