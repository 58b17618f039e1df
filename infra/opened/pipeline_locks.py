"""The locks of an open pipeline: on this machine, and, where several work on it, against the others.

Invariant: while a run has the shared lock, the catalog (`spark.catalog.fence`), the state and the change log
in a store ask for it before they change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from slotlake.decoder.errors import SlotBusyError, SlotlakeError
from slotlake.infra.config.pipeline_file import PipelineFile
from slotlake.infra.opened.machine_lock import exclusive
from slotlake.spark.lake import LakeSettings

if TYPE_CHECKING:
    from slotlake.infra.opened.server_lock import SharedLock
    from slotlake.infra.state.stored_state import StoredState

FOLLOWING = "pull --follow"  # the part of the work that a standing puller does


class PipelineLocks:
    """The locks of one pipeline in one process.

    Args:
        file: the pipeline file.
        lake: its lake.
        state: its state in an object store; None if a folder has it.
    """

    def __init__(self, file: PipelineFile, lake: LakeSettings, state: StoredState | None) -> None:
        self._file, self._lake, self._state = file, lake, state
        self._shared: SharedLock | None = None

    @contextmanager
    def taken(self, step: str, wait_seconds: float, *, on_one_side: bool = False) -> Iterator[None]:
        """Have the lock of the steps.

        Args:
            step: what is done under it, for who waits.
            wait_seconds: how long to wait for another run.
            on_one_side: do the work also if the database of the shared lock cannot be reached.

        Raises:
            BusyError: another run is at work.
        """
        with (
            exclusive(self._file.state_dir, self._file.name, wait_seconds, step),
            self._taken_for_all(step, wait_seconds, on_one_side=on_one_side),
            self._naming_standing_puller(),
        ):
            yield

    @contextmanager
    def part(self, part: str) -> Iterator[None]:
        """Have the lock of a part of the work that goes on while steps do.

        Raises:
            BusyError: another run is at the same part.
        """
        with exclusive(self._file.state_dir / part, self._file.name, step=part), ExitStack() as locks:
            if self._file.shares_state:
                locks.enter_context(self.shared(part).taken(part, 0.0))
            yield

    def shared(self, part: str = "") -> SharedLock:
        """Return the lock for all machines; it is not taken yet.

        Args:
            part: of which part of the work; empty: of the steps.
        """
        from slotlake.infra.opened.server_lock import LockPlace, SharedLock

        file = self._file
        key = f"{file.name} {file.source.slot} {file.lake.namespace} {part}"
        return SharedLock(LockPlace.of(file), file.name, key)

    def require(self) -> None:
        """See that this run still has the lock, if it shares the pipeline with other machines.

        Raises:
            LockLostError: it has not.
        """
        if self._shared is not None:
            self._shared.require()

    def is_at_work(self) -> bool:
        """Return whether a run has the lock, on any machine; false if that cannot be asked."""
        with suppress(SlotlakeError):
            return self.shared().holder() is not None
        return False

    @contextmanager
    def _taken_for_all(self, step: str, wait_seconds: float, *, on_one_side: bool) -> Iterator[None]:
        if not self._file.shares_state:
            yield
            return
        from slotlake.infra.opened.server_lock import LockUnreachableError

        with ExitStack() as locks:
            lock = self.shared()
            try:
                locks.enter_context(lock.taken(step, wait_seconds))
            except LockUnreachableError:
                if not on_one_side:
                    raise
            else:
                locks.enter_context(self._fenced(lock))
            yield

    @contextmanager
    def _fenced(self, lock: SharedLock) -> Iterator[None]:
        """Let nothing be published, noted or stored once the lock is lost."""
        from slotlake.spark.catalog.fence import fenced

        self._shared = lock
        try:
            with fenced(self._lake, lock.require):
                if self._state is not None:
                    self._state.require_lock = lock.require
                yield
        finally:
            self._shared = None
            if self._state is not None:
                self._state.require_lock = lambda: None

    @contextmanager
    def _naming_standing_puller(self) -> Iterator[None]:
        """Say where the standing puller is that reads the slot, if it is on another machine."""
        try:
            yield
        except SlotBusyError as error:
            with suppress(SlotlakeError):
                if self._file.shares_state and (holder := self.shared(FOLLOWING).holder()):
                    error.where = f"{error.where}; the standing puller is {holder}"
                    error.way_out = (
                        "run the steps on the machine of the standing puller, or end it there: "
                        "slotlake pull --stop"
                    )
            raise
