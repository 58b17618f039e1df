"""What `init` says to other machines that may help it: under which snapshot they read.

The ranges themselves are in the record of the copy (`infra.copy.record`).  Invariant: a plan that is there
is of the newest attempt; its snapshot has ended if the `init` that wrote it was killed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from slotlake.infra.state_file import COPY_PLAN, shared_place

FORMAT: Final = 1  # another one when another version's files, or its notes, would not fit


@dataclass(frozen=True)
class CopyPlan:
    """The attempt at an initial copy that is under way.

    Attributes:
        attempt: another text for each attempt.
        format: of what the machines write.
        identity: of the pipeline (`infra.archive.state.identity`).
        snapshot: name of the exported snapshot.
        lsn: LSN of the snapshot.
        machine: who runs `init`, for messages.
    """

    attempt: str
    format: int
    identity: Mapping[str, str]
    snapshot: str
    lsn: int
    machine: str

    def write(self, state_dir: Path) -> None:
        """Write it; for who has the pipeline's lock."""
        COPY_PLAN.of(state_dir).write(asdict(self))

    def is_current(self, state_dir: Path) -> bool:
        """Return whether the attempt goes on, or was killed; not if it ended by itself."""
        return read_plan(state_dir) == self


def read_plan(state_dir: Path) -> CopyPlan | None:
    """Return the plan as it is now; None if no attempt has one.

    Args:
        state_dir: the pipeline's state folder.
    """
    note = COPY_PLAN.of(state_dir)
    if (place := shared_place(note.path)) is None:
        fields = note.mapping()
    else:
        fields = json.loads(place[0].read_now(place[1]) or b"{}")
    return CopyPlan(**fields) if fields else None


def remove_plan(state_dir: Path) -> None:
    """Remove the plan: its attempt has ended; for who has the pipeline's lock."""
    COPY_PLAN.of(state_dir).remove()
