"""Journals in object stores, for the page: read next to the requests, which never wait for a store.

A request asks for some pipelines, and gets what is known of them after a moment at most.  What is older than
some seconds is read again, by a few threads for each store: a store that hangs holds those up, and no request
and no other store.  What has not changed is not read again (one list for each pipeline).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from slotlake.infra.config.pipeline_file import PipelineFile
from slotlake.infra.health.words import spent
from slotlake.infra.state.recorded import Recorded, in_store
from slotlake.infra.state.segments import StoredJournal

_FRESH_SECONDS: Final = 5.0
_THREADS: Final = 4  # for each place of states
_FIRST: Final = Recorded(unread="it is being read from its object store: load this page again in a moment")


@dataclass
class _Known:
    """What is known of one pipeline; `Histories` changes it under its lock."""

    file: PipelineFile
    journal: StoredJournal = field(default_factory=StoredJournal)
    recorded: Recorded = _FIRST
    is_read: bool = False
    read_at: float = 0.0  # monotonic: the last answer
    asked_at: float = float("-inf")
    is_asked: bool = False
    error: str = ""


class Histories:
    """The journals of pipelines whose state is in an object store."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._known: dict[Path, _Known] = {}
        self._queues: dict[str, queue.SimpleQueue[_Known]] = {}

    def recorded(self, files: Sequence[PipelineFile], wait_seconds: float) -> list[Recorded | None]:
        """Return what is known of pipelines; None for one that was dropped.

        Args:
            files: the pipelines, all of which have their state in an object store.
            wait_seconds: how long to wait at most for what is read again.
        """
        with self._changed:
            known = [self._of(file) for file in files]
            for each in known:
                self._ask(each)
            self._changed.wait_for(lambda: not any(each.is_asked for each in known), wait_seconds)
            return [None if each.journal.dropped else _shown(each) for each in known]

    def _of(self, file: PipelineFile) -> _Known:
        known = self._known.get(file.path)
        if known is None or known.file != file:  # the file was changed
            known = self._known[file.path] = _Known(file)
        return known

    def _ask(self, known: _Known) -> None:
        now = time.monotonic()
        if known.is_asked or now - known.asked_at < _FRESH_SECONDS:
            return
        known.is_asked, known.asked_at = True, now
        place = str(known.file.state_bucket)
        if place not in self._queues:
            waiting = self._queues[place] = queue.SimpleQueue()
            for _ in range(_THREADS):
                threading.Thread(target=self._work, args=(waiting,), daemon=True).start()
        self._queues[place].put(known)

    def _work(self, waiting: queue.SimpleQueue[_Known]) -> None:
        while True:
            known = waiting.get()
            error, recorded = "", known.recorded
            try:
                recorded = _read(known)
            except Exception as failure:  # noqa: BLE001  whatever it is, the page says it
                error = str(failure) or type(failure).__name__
            with self._changed:
                known.error, known.is_asked = error, False
                if not error:
                    known.recorded, known.is_read, known.read_at = recorded, True, time.monotonic()
                self._changed.notify_all()


def _shown(known: _Known) -> Recorded:
    if not known.error:
        return known.recorded
    since = f"; this was read {spent(time.monotonic() - known.read_at)} ago" if known.is_read else ""
    return replace(known.recorded, unread=f"{known.error}{since}")


def _read(known: _Known) -> Recorded:
    from slotlake.infra.opened.open_pipeline import lake_settings
    from slotlake.infra.state.free_notes import StoredNotes
    from slotlake.infra.state.stored_state import StoredState

    file = known.file
    state = StoredState.of(lake_settings(file), str(file.state_bucket), file.name)
    history = known.journal.read(StoredNotes(state.root))
    return in_store(known.journal.look, history)
