"""When a look at the source wakes `cdc_sync`: the rule alone, without a connection and without a clock.

A wake is one event, and one run follows it. Until the slot's position has moved, that is until this run has
confirmed what it published, no further event follows: so a burst of commits is one run, and a change during a
run is one more run, however many changes come.  Invariant: nothing stays unnoticed for ever. If the counters
are lost, if the run failed, or if the event came while the DAG was paused, `AGAIN_SECONDS` later is the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from slotlake.decoder.slots.activity import Counters, Look

AGAIN_SECONDS = 300.0
_RETAINED_BYTES_MAX = 16 << 20  # of WAL without a transaction, as vacuum writes
Reason = Literal["changes", "confirm"]


@dataclass
class WakeRule:
    """What the rule remembers of one source.

    Attributes:
        again_seconds: after this time an unanswered wake is repeated, and WAL of others is confirmed.
    """

    again_seconds: float = AGAIN_SECONDS
    _snapshot: str = ""
    _ended: int = 0  # the WAL position after all transactions that have ended
    _counters: Counters | None = None
    _is_first: bool = True
    _awaited: int | None = None  # the slot's position when the run was woken
    _since: float = 0.0

    def wakes(self, seen: Look, now: float) -> Reason | None:
        """Return why `cdc_sync` is to run now, or None.

        Args:
            now: of a clock in seconds that never goes back.
        """
        if seen.confirmed is None:
            return None
        if seen.snapshot != self._snapshot:
            self._snapshot, self._ended = seen.snapshot, seen.wal
        if self._awaited is not None and seen.confirmed != self._awaited:
            self._awaited, self._since = None, now
        return self._judged(seen, seen.confirmed, now)

    def _judged(self, seen: Look, confirmed: int, now: float) -> Reason | None:
        is_late = self._is_first or now - self._since >= self.again_seconds
        if self._ended <= confirmed:  # the slot has had all transactions
            self._counters, self._is_first = seen.counters, False
            self._since = self._since or now
            retains = seen.wal - confirmed >= _RETAINED_BYTES_MAX
            return self._woken(seen, confirmed, now, "confirm") if retains and is_late else None
        has_changes = self._is_first or seen.counters is None or seen.counters != self._counters
        if has_changes and (self._awaited is None or is_late):
            return self._woken(seen, confirmed, now, "changes")
        return self._woken(seen, confirmed, now, "confirm") if is_late else None

    def _woken(self, seen: Look, confirmed: int, now: float, reason: Reason) -> Reason:
        self._counters, self._is_first = seen.counters, False
        self._awaited, self._since = confirmed, now
        return reason
