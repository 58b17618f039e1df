"""Where each table of a copy stands: for a progress display, for a log, and for `status`.

The states are PostgreSQL's own (pg_subscription_rel.srsubstate; tablesync.c): ``init`` (nothing copied yet),
``copying`` (d), ``copied`` (f: all its rows are here, other tables' are not), ``catching up`` (s: what was
copied earlier is brought to the snapshot's position), ``ready`` (r: published, the stream goes on from
there).  Another process reads them from a file that is replaced about once a second.  Nothing depends on it:
the record of ranges and the lake decide.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slotlake.decoder.copy.table import CopyJob
from slotlake.decoder.lsn import format_lsn
from slotlake.infra.progress import CopyStep
from slotlake.infra.reports import TableCopy
from slotlake.infra.state.notes import COPY, shared_place
from slotlake.infra.state.process_lock import is_process_alive, release_process_lock, take_process_lock
from slotlake.spark.names import postgres_name

_LOCK_FILE = "copy.lock"
_TELL_SECONDS = 0.25
_WRITE_SECONDS, _STORE_SECONDS = 1.0, 5.0
_WRITTEN_AT_ONCE_MAX = 50  # tables


@dataclass
class TableProgress:
    """How much of one table is copied; estimates are the server's, 0 when it has none.

    Attributes:
        table: as PostgreSQL writes it.
        state: as above.
        rows: copied, also by earlier attempts.
        rows_estimated: of the whole table.
        bytes: received, also by earlier attempts, of what stays.
        ranges: into which it is split.
        ranges_done: of which the files are on disk.
        ranges_kept: of these, copied by an earlier attempt.
    """

    table: str
    state: str = "init"
    rows: int = 0
    rows_estimated: int = 0
    bytes: int = 0
    ranges: int = 0
    ranges_done: int = 0
    ranges_kept: int = 0


class CopyStates:
    """The tables of one copy; may be called from several threads.

    Args:
        folder: the pipeline's state folder.
        lsn: LSN at which the tables will be.
        progress: called with a `CopyStep`, the rows and how many they will be, if that is known.

    Attributes:
        machines: which have copied ranges, if several may → how many.
    """

    def __init__(self, folder: Path, lsn: int, progress: Any) -> None:
        self._folder, self._progress = folder, progress
        self._lock = threading.Lock()
        self._started_at = time.time()
        self._lsn = format_lsn(lsn)
        self._tables: dict[str, TableProgress] = {}
        self.machines: dict[str, int] = {}
        self._last_reports: dict[str, float] = {}
        self._started: dict[str, tuple[float, int]] = {}
        self._written, self._pause = 0.0, _WRITE_SECONDS
        if shared_place(COPY.of(folder).path) is not None:
            self._pause = _STORE_SECONDS
        self._last = time.monotonic()

    def expect(self, table: TableProgress) -> None:
        """Add a table that will be copied."""
        with self._lock:
            self._tables[table.table] = table
            self._started[table.table] = (0.0, table.rows)

    def move(self, table: str, state: str) -> None:
        """Note that a table has come to a state."""
        with self._lock:
            entry = self._tables[table]
            if entry.state != state:
                entry.state = state
                self._report_progress(entry)
                if self._is_due_after_a_move():
                    self._write()

    def count_rows(self, job: CopyJob, rows: int, received: int) -> None:
        """Count rows of a table that have come.

        Args:
            job: the range that they are of.
            received: bytes received with them.
        """
        with self._lock:
            entry = self._tables[_name(job)]
            entry.rows, entry.bytes = entry.rows + rows, entry.bytes + received
            begun, before = self._started[entry.table]
            if not begun:  # it began when the one before it last reported something
                self._started[entry.table] = (self._last, before)
                entry.state = "copying"
            now = self._last = time.monotonic()
            if now - self._last_reports.get(entry.table, 0.0) >= _TELL_SECONDS:
                self._report_progress(entry)
            if now - self._written >= self._pause:
                self._write()

    def part_done(self, job: CopyJob, machine: str = "") -> None:
        """Count a range whose files are on disk.

        Args:
            machine: which one has copied it, if several may.
        """
        with self._lock:
            self._tables[_name(job)].ranges_done += 1
            if machine:
                self.machines[machine] = self.machines.get(machine, 0) + 1

    def finish(self, copies: Iterable[TableCopy]) -> None:
        """Note that these tables are published, and that the copy is over."""
        for copy in copies:
            self.move(copy.table, "ready")
        self.forget()

    def forget(self) -> None:
        """Remove the file: the copy is over."""
        COPY.of(self._folder).remove()
        unmark_process(self._folder)

    def _is_due_after_a_move(self) -> bool:
        """Return whether to write the file: it has all tables, so not for each of many."""
        few = len(self._tables) <= _WRITTEN_AT_ONCE_MAX
        return few or time.monotonic() - self._written >= self._pause

    def _report_progress(self, entry: TableProgress) -> None:
        now = time.monotonic()
        self._last_reports[entry.table] = now
        begun, before = self._started[entry.table]
        seconds = now - begun if begun else 0.0
        step = CopyStep.of(entry.table, entry.state, entry.bytes, entry.rows - before, seconds)
        self._progress(step, entry.rows, _total(entry))

    def _write(self) -> None:
        self._written = time.monotonic()
        content = {
            "process": os.getpid(),
            "lsn": self._lsn,
            "since": self._started_at,
            "tables": [asdict(entry) for entry in self._tables.values()],
            **({"machines": dict(self.machines)} if self.machines else {}),
        }
        try:
            COPY.of(self._folder).write(content)
        except OSError:
            return  # nobody depends on it
        take_process_lock(self._folder / _LOCK_FILE)


def _name(job: CopyJob) -> str:
    return postgres_name(job.table.schema, job.table.table)


def _total(entry: TableProgress) -> int | None:
    """How many rows a table will have; None while the server has no estimate."""
    if entry.state not in ("init", "copying"):
        return entry.rows
    return max(entry.rows, entry.rows_estimated) if entry.rows_estimated else None


def unmark_process(folder: Path) -> None:
    """Note that the copy ended, though the process lives on."""
    release_process_lock(folder / _LOCK_FILE)


def read(folder: Path, alive: Callable[[], bool] | None = None) -> Mapping[str, Any] | None:
    """Read the copy that is, or was, under way: process (None if it ended), lsn, since, tables; or None.

    Args:
        folder: the pipeline's state folder.
        alive: asked whether a run is at work, on any machine; None: a lock in the folder says it.
    """
    content = COPY.of(folder).mapping()
    if "process" not in content:
        return None
    is_at_work = is_process_alive(folder / _LOCK_FILE) if alive is None else alive()
    return {**content, "process": content["process"] if is_at_work else None}
