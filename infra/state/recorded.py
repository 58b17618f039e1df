"""What is known of a pipeline from its journal, wherever that is: in files of a folder, or in a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slotlake.infra.state.journal import Journal
from slotlake.infra.state.journal_records import COARSE_SECONDS, FINE_SECONDS, History
from slotlake.infra.state.notes import free_notes
from slotlake.infra.state.segments import StoredJournal

Record = dict[str, Any]
_BATCHES_MAX: Final = 30
_VERIFICATIONS_MAX: Final = 20
_FAILURES_MAX: Final = 10


def _nothing(seconds: float, since: float) -> tuple[list[Record], list[Record]]:
    return [], []


@dataclass(frozen=True)
class Recorded:
    """What was noted; lists have the oldest first.

    Attributes:
        look: the last look; empty if there was none.
        measured: the newest sample, which may be newer than the look; empty if there was none.
        batches: the newest batch lines.
        verifications: the newest.
        failures: the newest.
        totals: the counters.
        over_time: from the length of a period in seconds and the moment from which on, batches (lines, or
            sums of several) and samples.
        unread: why the history could not be read; empty if it was.
    """

    look: Record = field(default_factory=dict)
    measured: Record = field(default_factory=dict)
    batches: list[Record] = field(default_factory=list)
    verifications: list[Record] = field(default_factory=list)
    failures: list[Record] = field(default_factory=list)
    totals: Record = field(default_factory=dict)
    over_time: Callable[[float, float], tuple[list[Record], list[Record]]] = _nothing
    unread: str = ""


def recorded(state_dir: Path) -> Recorded:
    """Read a pipeline's journal; if a store that has it does not answer, nothing is known."""
    notes = free_notes(state_dir)
    if notes is None:
        return _in_folder(Journal(state_dir))
    if notes.away:
        return Recorded(unread="the object store that has it did not answer")
    journal = StoredJournal()
    try:
        history = journal.read(notes)
        return in_store(journal.look, history)
    except OSError as error:
        return Recorded(unread=str(error))


def last_look(state_dir: Path) -> Record:
    """Return the last look; empty if there was none, or it cannot be read."""
    notes = free_notes(state_dir)
    if notes is None:
        return Journal(state_dir).look.mapping()
    try:
        return {} if notes.away else StoredJournal().read_look(notes)
    except OSError:
        return {}


def in_store(look: Record, history: History) -> Recorded:
    """Return what the objects of a store come to."""

    def over_time(seconds: float, since: float) -> tuple[list[Record], list[Record]]:
        sums = history.sums(FINE_SECONDS if seconds <= 3600 else COARSE_SECONDS)
        samples = [
            {"time": each["time"], "retained_wal_bytes": each["retained"]}
            for each in sums
            if "retained" in each
        ]
        return [each for each in sums if each["batches"]], samples

    return Recorded(
        look=look,
        batches=history.batches[-_BATCHES_MAX:],
        verifications=history.verifications[-_VERIFICATIONS_MAX:],
        failures=history.failures[-_FAILURES_MAX:],
        totals=history.totals,
        over_time=over_time,
    )


def _in_folder(journal: Journal) -> Recorded:
    lines: list[tuple[list[Record], list[Record]]] = []

    def over_time(seconds: float, since: float) -> tuple[list[Record], list[Record]]:
        if not lines:  # for all periods at once
            batches = journal.batches.since(since)
            first = batches[0]["time"] if batches else float("inf")
            quarters = [each for each in journal.quarters() if each["time"] < first]
            lines.append(([*quarters, *batches], journal.samples.since(since)))
        return lines[0]

    return Recorded(
        look=journal.look.mapping(),
        measured=next(iter(journal.samples.newest()), {}),
        batches=journal.batches.newest(_BATCHES_MAX),
        verifications=journal.verifications.newest(_VERIFICATIONS_MAX),
        failures=journal.failures.newest(_FAILURES_MAX),
        totals=journal.totals,
        over_time=over_time,
    )
