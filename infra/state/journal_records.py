"""What all records of a journal come to: the newest lines, sums by time, and counters.

The records of a pipeline are spread over objects that several machines write.  This adds them up, in any
order: a reader adds all that there are; who compacts them keeps the result in place of the records.  The
steps of one batch may have noted their parts on four machines.  Invariant: a batch is counted when readers
see it, and never again, so counters only grow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from slotlake.infra.state.batch_lines import count_batch, line_of, merged
from slotlake.infra.state.quarters import SUMS, add_batch
from slotlake.infra.state.totals import Totals, add, add_labelled, add_totals

Record = dict[str, Any]
FINE_SECONDS: Final = 30  # the parts of the charts of an hour
COARSE_SECONDS: Final = 720  # those of a day; seven of them are a part of a week
_SUMS_SECONDS: Final = {FINE_SECONDS: 2 * 3600, COARSE_SECONDS: 8 * 86_400}
_LINES_MAX: Final = 100
_LINES_BYTES_MAX: Final = 256 << 10
_OPEN_MAX: Final = 50
_LATE_SECONDS: Final = 3600.0  # after that, no part of a published batch comes any more
_OPEN_SECONDS: Final = 86_400.0
_LISTS: Final = ("batches", "verifications", "failures")


class History:
    """What is known from the records that were added."""

    def __init__(self) -> None:
        self.totals: Totals = {}
        self.batches: list[Record] = []
        self.verifications: list[Record] = []
        self.failures: list[Record] = []
        self._sums: dict[int, dict[int, Record]] = {width: {} for width in _SUMS_SECONDS}
        self._open: dict[str, Record] = {}
        self._newest = 0.0

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a record; a damaged one adds nothing.

        Args:
            record: ``kind``, ``noted`` (seconds since 1970), and the ``line`` that was noted.
        """
        try:
            noted = float(record["noted"])
            _ADDED[record["kind"]](self, record["line"], noted)
            self._newest = max(self._newest, noted)
        except (LookupError, TypeError, ValueError, AttributeError):
            return

    def add_content(self, content: Mapping[str, Any]) -> None:
        """Add what another history came to.

        Args:
            content: as `content` returns it.
        """
        add_totals(self.totals, content.get("totals", {}))
        for name in _LISTS:
            getattr(self, name).extend(content.get(name, ()))
        self._newest = max(self._newest, content.get("newest", 0.0))
        for width, sums in self._sums.items():
            for each in content.get(f"sums_{width}", ()):
                _add_sum(sums, each, width)
        for key, part in content.get("open", {}).items():
            self._open[key] = merged(self._open.get(key, {}), part)

    def settle(self, *, everything: bool) -> None:
        """Make lines of published batches.

        Args:
            everything: also of those whose last step may be noted still.
        """
        for key, entry in list(self._open.items()):
            if "time" in entry:
                late = self._newest - entry["time"] > _LATE_SECONDS
                if everything or late or "confirm" in entry["steps"]:
                    self._finish(self._open.pop(key))
            elif self._newest - entry.get("noted", 0.0) > _OPEN_SECONDS:
                del self._open[key]
        for key in list(self._open)[:-_OPEN_MAX]:
            del self._open[key]
        for name in _LISTS:
            setattr(self, name, _newest(getattr(self, name)))
        for width, sums in self._sums.items():
            oldest = max(sums, default=0) - _SUMS_SECONDS[width]
            self._sums[width] = {start: sums[start] for start in sorted(sums) if start >= oldest}

    def add_lines(self, lines: Mapping[str, Iterable[Record]], sums: Iterable[Record]) -> None:
        """Add lines that counters have already.

        Args:
            lines: of ``batches``, ``verifications`` and ``failures``.
            sums: older batches, added up by time.
        """
        for name in _LISTS:
            getattr(self, name).extend(lines[name])
        for width, by_time in self._sums.items():
            for each in (*sums, *lines["batches"]):
                add_batch(by_time, each, width)

    def content(self) -> Record:
        """Return all of it as JSON can hold it."""
        lists = {name: getattr(self, name) for name in _LISTS}
        sums = {f"sums_{width}": list(sums.values()) for width, sums in self._sums.items()}
        state = {"totals": self.totals, "open": self._open, "newest": self._newest}
        return {**state, **lists, **sums}

    def sums(self, width: int) -> list[Record]:
        """Return the sums by time, the oldest first.

        Args:
            width: FINE_SECONDS or COARSE_SECONDS.
        """
        return [self._sums[width][start] for start in sorted(self._sums[width])]

    def _finish(self, entry: Record) -> None:
        try:
            line = line_of(entry)
            if line is not None:
                count_batch(self.totals, line)
                self._add_batch(line)
        except (LookupError, TypeError, ValueError, AttributeError):  # a damaged part of it
            return

    def _add_batch(self, line: Record) -> None:
        self.batches.append(line)
        for width, sums in self._sums.items():
            add_batch(sums, line, width)

    def _add_part(self, part: Record, noted: float) -> None:
        key = str(part["batch"])
        known = self._open.get(key, {})
        self._open[key] = merged(known, {**part, "noted": max(noted, known.get("noted", 0.0))})

    def _add_verification(self, line: Record, noted: float) -> None:
        self.verifications.append(line)
        add_labelled(self.totals, "verifications", {"equal" if line["equal"] else "different": 1})

    def _add_failure(self, line: Record, noted: float) -> None:
        self.failures.append(line)
        add_labelled(self.totals, "failures", {line["error"]: 1})

    def _add_copies(self, line: Record, noted: float) -> None:
        add(self.totals, "copies", line["tables"])

    def _add_sample(self, line: Record, noted: float) -> None:
        if (retained := line.get("retained_wal_bytes")) is not None:
            for width, sums in self._sums.items():
                _retain(sums, line["time"], width, int(retained))

    def _add_earlier(self, line: Record, noted: float) -> None:
        self.add_content(line)


_ADDED: Final[Mapping[str, Callable[[History, Record, float], None]]] = {
    "part": History._add_part,  # noqa: SLF001
    "verification": History._add_verification,  # noqa: SLF001
    "failure": History._add_failure,  # noqa: SLF001
    "copies": History._add_copies,  # noqa: SLF001
    "sample": History._add_sample,  # noqa: SLF001
    "earlier": History._add_earlier,  # noqa: SLF001
}


def _add_sum(sums: dict[int, Record], each: Record, width: int) -> None:
    add_batch(sums, each, width)
    if each.get("retained") is not None:
        _retain(sums, each["time"], width, each["retained"])


def _retain(sums: dict[int, Record], moment: float, width: int, retained: int) -> None:
    start = int(moment // width * width)
    empty = {"time": start, "seconds": {}, "lag": None}
    part = sums.setdefault(start, empty | dict.fromkeys(SUMS, 0))
    part["retained"] = max(retained, part.get("retained", 0))


def _newest(lines: Iterable[Record]) -> list[Record]:
    """The newest lines, the oldest first: at most so many, and so many bytes of them."""
    ordered = sorted(lines, key=lambda line: float(line["time"]))[-_LINES_MAX:]
    left = _LINES_BYTES_MAX
    for at in range(len(ordered) - 1, -1, -1):
        left -= len(json.dumps(ordered[at]))
        if left < 0 and at < len(ordered) - 1:
            return ordered[at + 1 :]
    return ordered
