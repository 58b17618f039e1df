"""What this process notes for all machines: kept here for some seconds, then written to the object store.

A note costs no request by itself: the notes of five seconds go together, in a thread of its own, and those
that are left when the pipeline is closed. A process that is killed takes at most those with it. Invariant: no
failure here reaches the work, and the work never waits longer than _END_SECONDS_MAX for a store.

A segment is written again, with more in it, until it is large or some minutes old; then another one begins.
"""

from __future__ import annotations

import json
import logging
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from slotlake.infra.state import segments
from slotlake.infra.state.batch_lines import merged
from slotlake.infra.state.journal import Journal
from slotlake.infra.state.journal_records import History
from slotlake.infra.state.notes import FreeNotes, free_notes, memory_of

_log = logging.getLogger(__name__)
PAUSE_SECONDS: Final = 5.0
_END_SECONDS_MAX: Final = 10.0
_SEGMENT_BYTES: Final = 64 << 10
_SEGMENT_SECONDS: Final = 300.0
_UNSAVED_BYTES_MAX: Final = 1 << 20
_LOOK_SECONDS_MIN: Final = 30.0  # `top` looks every five seconds
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while the machine sleeps


class SharedJournal:
    """The notes of one process about one pipeline.

    Args:
        notes: where they go.
    """

    def __init__(self, notes: FreeNotes) -> None:
        self.notes = notes
        self._lock, self._saving = threading.Lock(), threading.Lock()
        self._lines: list[bytes] = []  # of the segment at hand, without line breaks
        self._saved = 0  # how many of them the store has
        self._stem, self._begun = "", -_SEGMENT_SECONDS * 2
        self._entry: dict[str, Any] = {}  # the batch at work, as far as this process knows it
        self._part: dict[str, Any] = {}  # of it, what is no line yet
        self._look: tuple[float, bytes] | None = None
        self._looked = -_LOOK_SECONDS_MIN
        self._timer: threading.Timer | None = None
        self._warned = False

    def note(self, kind: str, line: Mapping[str, Any]) -> None:
        """Note something.

        Args:
            kind: what `History` calls it.
            line: what is noted.
        """
        with self._lock:
            self._append(kind, line)
        self._soon()

    def add_part(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        """Note what a step did for a batch; return all that this process has noted of it.

        Args:
            part: ``batch``, its name; the step's seconds; facts.
        """
        with self._lock:
            self._add(part)
            entry = self._entry
        self._soon()
        return entry

    def confirmed(self, batch: str | None, part: Mapping[str, Any]) -> Mapping[str, Any]:
        """Note that a batch was confirmed; return all that this process has noted of it.

        Args:
            batch: its name; None: the one that this process has published.
            part: the step's seconds.
        """
        with self._lock:
            name = self._entry.get("batch") if "time" in self._entry else batch
            if name is None or (batch is not None and batch != name):  # a sync without changes confirms too
                return {}
            self._add({**part, "batch": name})
            entry, self._entry = self._entry, {}
        self._soon()
        return entry

    def note_look(self, look: Mapping[str, Any], sample: Mapping[str, Any]) -> None:
        """Note a look, unless this process has noted one a moment ago.

        Args:
            look: all of it.
        """
        with self._lock:
            now = time.clock_gettime(_CLOCK)
            if now - self._looked < _LOOK_SECONDS_MIN:
                return
            self._looked = now
            self._look = now, json.dumps(look, ensure_ascii=False).encode()
            self._append("sample", sample)
        self._soon()

    def end(self) -> None:
        """Write what is not written yet: the pipeline is closed."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._lines and not self._part and self._look is None:
            return
        thread = threading.Thread(target=self._quietly, args=(self._save_all,), daemon=True)
        thread.start()
        thread.join(_END_SECONDS_MAX)

    def forget(self) -> None:
        """Drop what is not written yet; the pipeline was dropped."""
        with self._saving, self._lock:
            self._lines, self._saved, self._entry, self._part, self._look = [], 0, {}, {}, None

    # -- under self._lock -----------------------------------------------------------------------------

    def _add(self, part: Mapping[str, Any]) -> None:
        if self._entry.get("batch") != part["batch"]:
            self._take_part()
            self._entry = {}
        self._entry = merged(self._entry, part)
        self._part = merged(self._part, part)

    def _take_part(self) -> None:
        if self._part:
            part, self._part = self._part, {}
            self._append("part", part)

    def _append(self, kind: str, line: Mapping[str, Any]) -> None:
        record = {"kind": kind, "noted": round(time.time(), 3), "line": line}
        self._lines.append(json.dumps(record, ensure_ascii=False).encode())
        if sum(map(len, self._lines[self._saved :])) > _UNSAVED_BYTES_MAX:  # the store has been away for long
            del self._lines[self._saved]

    # -- the thread that writes -----------------------------------------------------------------------

    def _soon(self) -> None:
        with self._lock:
            if self._timer is None or not self._timer.is_alive():
                self._timer = threading.Timer(PAUSE_SECONDS, self._quietly, args=(self._save,))
                self._timer.daemon = True
                self._timer.start()

    def _quietly(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            if not self._warned:
                _log.warning("the journal of the pipeline cannot be written: %s", error)
            self._warned = True
        except Exception as error:  # noqa: BLE001  a note is never worth a run
            _log.warning("the journal of the pipeline cannot be written (%s)", type(error).__name__)

    def _save_all(self) -> None:
        self._save(done=True)
        segments.compact(self.notes)

    def _save(self, *, done: bool = False) -> None:
        with self._saving:
            with self._lock:
                self._take_part()
                now = time.clock_gettime(_CLOCK)
                if now - self._begun > 1.5 * _SEGMENT_SECONDS:  # soon it counts as ended
                    self._begin_segment(now)
                lines, before, look = list(self._lines), self._saved, self._look
            if len(lines) > before or (done and lines):
                self.notes.replace(segments.segment_name(self._stem, done=done), b"\n".join(lines))
                if done and before:
                    self.notes.remove([segments.segment_name(self._stem, done=False)])
            if look is not None:
                self.notes.replace(segments.LOOK, look[1])
            with self._lock:
                self._saved, self._look = len(lines), None if self._look is look else self._look
                size, age = sum(map(len, lines)), now - self._begun
                if lines and (done or size > _SEGMENT_BYTES or age > _SEGMENT_SECONDS):
                    self._begin_segment(now)
        if lines and not self._saved and not done:  # this segment is full
            segments.compact(self.notes)

    def _begin_segment(self, now: float) -> None:
        self._lines, self._saved, self._begun = self._lines[self._saved :], 0, now
        self._stem = f"{int(time.time() * 1000):013d}-{secrets.token_hex(6)}"


_finding = threading.Lock()


def shared_journal(state_dir: Path) -> SharedJournal | None:
    """Return where this process notes what is about a pipeline; None if the journal is in the folder."""
    notes = free_notes(state_dir)
    if notes is None:
        return None
    with _finding:
        memory = memory_of(state_dir)
        journal = memory.get(SharedJournal) or SharedJournal(notes)
        memory.put(journal)
    journal.notes = notes
    return journal


def bring_journal(folder: Path, state_dir: Path) -> None:
    """Note what a journal in a folder has, and remove it there; nothing if the pipeline's is in a folder.

    Args:
        folder: the state folder that has it.
    """
    journal, shared = Journal(folder), shared_journal(state_dir)
    if shared is None or not journal.folder.is_dir():
        return
    history, batches = History(), journal.batches.since(0.0)
    older = [each for each in journal.quarters() if not batches or each["time"] < batches[0]["time"]]
    lines = {"verifications": journal.verifications.newest(50), "failures": journal.failures.newest(50)}
    with journal.writing():
        history.add_lines({**lines, "batches": batches}, older)
        history.add_content({"totals": journal.totals})
        history.settle(everything=True)
        shutil.rmtree(journal.folder)  # first: a kill here loses it, and nothing is counted twice
        shared.note("earlier", history.content())


def forget_journal(state_dir: Path) -> None:
    """Remove the journal of a pipeline, also what is not written yet.

    Raises:
        OSError: the store that has it does not answer.
    """
    journal = shared_journal(state_dir)
    if journal is None:
        shutil.rmtree(state_dir / segments.FOLDER, ignore_errors=True)
    else:
        journal.forget()
        segments.forget(journal.notes)


def end_notes(state_dir: Path) -> None:
    """Write the notes of this process that are not written yet."""
    journal = memory_of(state_dir).get(SharedJournal)
    if journal is not None:
        journal.end()
