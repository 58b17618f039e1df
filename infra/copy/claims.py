"""What the machines share that make one copy together: its plan, and the claims on ranges.

The plan says under which snapshot they read; it is of the newest attempt, and its snapshot has ended if the
`init` that wrote it was killed.  A claim is an advisory lock in the source, which ends with the connection of
who has it: a machine that is killed loses its claims at once, one that stands still, or has lost its network,
after about half a minute.  Then another machine copies those ranges.  Claims only save work: which files of a
range are the table's is decided by `infra.copy.ranges`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psycopg

from slotlake.decoder.server.source import connect, source_errors
from slotlake.infra.copy.ranges import DoneRanges
from slotlake.infra.opened.server_lock import lock_number, stay_alive
from slotlake.infra.state.notes import COPY_PLAN, shared_place

FORMAT: Final = 1  # another one when another version's files, or its notes, would not fit
APPLICATION_NAME = "slotlake copy"
_DOING = "claiming ranges of the copy"


_TURN_SECONDS = 0.2
_YIELD_SECONDS = 0.5  # long enough that another machine, which asks each turn, gets what was given back
# The fewest places that another machine has which waits for one more; null if none waits.
_FEWEST_OF_WAITING = (
    "SELECT min(places) FROM (SELECT count(*) - 1 AS places, bool_or(number = %(waiting)s) AS waits FROM ("
    "SELECT pid, (classid::bigint << 32) | objid::bigint AS number FROM pg_locks "
    "WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND pid <> pg_backend_pid() "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) locks "
    "WHERE number = %(waiting)s OR number = ANY(%(places)s) GROUP BY pid) machines WHERE waits"
)
# One that is free, and is taken; each row is asked for only if those before it were not.
_FREE_PLACE = (
    "SELECT place FROM unnest(CAST(%s AS bigint[])) WITH ORDINALITY AS numbers (number, place) "
    "WHERE pg_try_advisory_lock(number) LIMIT 1"
)


class RangeClaims:
    """The claims of one process, over one connection; may be called from several threads.

    Args:
        dsn: of the source.
        key: what no other pipeline has.
        ranges: the ranges that are done.
        connections: so many ranges are read at once by all machines; None: as many as each wants.
    """

    def __init__(self, dsn: str, key: str, ranges: DoneRanges, connections: int | None = None) -> None:
        self._dsn, self._key, self._ranges = dsn, key, ranges
        self._places = [lock_number(f"{key} connection {place}") for place in range(connections or 0)]
        self._places_taken: set[int] = set()
        self._waiting_number = lock_number(f"{key} waiting for a connection")
        self._given_back = -_YIELD_SECONDS  # when a place was, by the clock
        self._lock = threading.Lock()
        self._taken: set[tuple[str, int]] = set()
        self.connection = connect(dsn)
        with source_errors(dsn, _DOING):
            stay_alive(self.connection)
            self.connection.execute(f"SET application_name = '{APPLICATION_NAME}'".encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()

    def has(self, beginning: str, part: int) -> bool:
        """Return whether this process has a range."""
        return (beginning, part) in self._taken

    @property
    def turn(self) -> Callable[[threading.Event], AbstractContextManager[None]] | None:
        """What waits until one more connection to the source may read; None if there is no limit."""
        return self._in_turn if self._places else None

    @contextmanager
    def _in_turn(self, ended: threading.Event) -> Iterator[None]:
        number = self._free_place()
        if number is None:
            number = self._waited_for(ended)
        try:
            yield
        finally:
            if number is not None:
                self._give_back(number)

    def _waited_for(self, ended: threading.Event) -> int | None:
        """The number of a place, once there is one; None if the copy ends before."""
        self._execute(f"SELECT pg_advisory_lock_shared({self._waiting_number})")
        try:
            while not ended.wait(_TURN_SECONDS):
                if (number := self._free_place()) is not None:
                    return number
            return None
        finally:
            self._execute(f"SELECT pg_advisory_unlock_shared({self._waiting_number})")

    def _give_back(self, number: int) -> None:
        with self._lock, source_errors(self._dsn, _DOING):
            self._places_taken.discard(number)
            self._given_back = time.monotonic()
            self.connection.execute(f"SELECT pg_advisory_unlock({number})".encode())

    def _execute(self, statement: str) -> None:
        with self._lock, source_errors(self._dsn, _DOING):
            self.connection.execute(statement.encode())

    def _yields(self) -> bool:
        """Is the place that was given back for another machine, which waits and has none, or fewer?

        Without it the machine that gives a place back takes it again before the others look.
        """
        if time.monotonic() - self._given_back >= _YIELD_SECONDS:
            return False
        asked = {"waiting": self._waiting_number, "places": self._places}
        ((fewest,),) = self.connection.execute(_FEWEST_OF_WAITING, asked).fetchall()
        return fewest is not None and fewest < max(1, len(self._places_taken))

    def _free_place(self) -> int | None:
        """The number of a place, which this process has now; a session gets a lock that it has again."""
        with self._lock, source_errors(self._dsn, _DOING):
            if self._yields():
                return None
            numbers = [number for number in self._places if number not in self._places_taken]
            place = self.connection.execute(_FREE_PLACE, [numbers]).fetchone() if numbers else None
            if place is None:
                return None
            number = numbers[int(place[0]) - 1]
            self._places_taken.add(number)
            return number

    def take(self, beginning: str, part: int) -> bool:
        """Claim a range, unless another machine has it, or it is done.

        Args:
            beginning: of the table's copy, as the record names it.
            part: number of the range.

        Raises:
            SourceError: the connection was lost, and all claims with it.
        """
        with self._lock:
            if (beginning, part) in self._taken:
                return True
            if not self._asked("pg_try_advisory_lock", beginning, part):
                return False
            self._taken.add((beginning, part))
        if self._ranges.entry(beginning, part) is not None:  # it was done before it was let go
            self.release(beginning, part)
            return False
        return True

    def release(self, beginning: str, part: int) -> None:
        """Let a range go: it is done, or cannot be copied here.

        Args:
            beginning: of the table's copy, as the record names it.
            part: number of the range.

        Raises:
            SourceError: the connection was lost.
        """
        with self._lock:
            self._taken.discard((beginning, part))
            self._asked("pg_advisory_unlock", beginning, part)

    def release_all(self) -> None:
        """Let all ranges go.

        Raises:
            SourceError: the connection was lost.
        """
        with self._lock, source_errors(self._dsn, _DOING):
            self._taken.clear()
            self.connection.execute("SELECT pg_advisory_unlock_all()")

    def _asked(self, function: str, beginning: str, part: int) -> bool:
        number = lock_number(f"{self._key} {beginning} {part}")
        with source_errors(self._dsn, _DOING):
            return self.connection.execute(f"SELECT {function}({number})".encode()).fetchone() == (True,)
        raise psycopg.InterfaceError("unreachable")


@dataclass(frozen=True)
class CopyPlan:
    """The attempt at an initial copy that is under way.

    Attributes:
        attempt: another text for each attempt.
        format: of what the machines write.
        identity: of the pipeline (`infra.state.stored_state.identity`).
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
    """Return the plan as it is now; None if no attempt has one."""
    note = COPY_PLAN.of(state_dir)
    if (place := shared_place(note.path)) is None:
        fields = note.mapping()
    else:
        fields = json.loads(place[0].read_now(place[1]) or b"{}")
    return CopyPlan(**fields) if fields else None


def remove_plan(state_dir: Path) -> None:
    """Remove the plan: its attempt has ended; for who has the pipeline's lock."""
    COPY_PLAN.of(state_dir).remove()
