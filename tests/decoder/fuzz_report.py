"""What a run of the fuzzer did, and the corpus that is made of it."""

from __future__ import annotations

import collections
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.decoder.agreement import Stream
from tests.decoder.fuzz_cases import Asked, minimised, size_of, write_case
from tests.decoder.fuzz_judges import judge
from tests.decoder.fuzz_plugins import ways

# File names tell small from capital letters where a file system does not.
_LETTERS = {tag: f"{'small-' if tag.islower() else ''}{tag}" for tag in "BCORYIUDTMSEcAbPKrpwkd"}
_LETTERS |= {way: way for way in ways()}


@dataclass
class Report:
    """What a run did.

    Attributes:
        streams, taken: by kind, mutants read, and those that were not refused.
        reasons: refusals by message type (or plugin) and reason.
        finds: files written.
    """

    streams: collections.Counter[str] = field(default_factory=collections.Counter)
    taken: collections.Counter[str] = field(default_factory=collections.Counter)
    reasons: collections.Counter[tuple[str, str]] = field(default_factory=collections.Counter)
    smallest: dict[tuple[str, str], tuple[Asked, Stream]] = field(default_factory=dict)
    finds: list[Path] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.streams.values())

    def note(self, kind: str, asked: Asked, stream: Stream, refused: str | None) -> None:
        """One stream was read, and refused or not; None: it is a find."""
        self.streams[kind] += 1
        self.taken[kind] += refused == ""
        if not refused:
            return
        key = reason_of(refused)
        self.reasons[key] += 1
        known = self.smallest.get(key)
        if known is None or size_of(stream) < size_of(known[1]):
            self.smallest[key] = (asked, stream)

    def line(self) -> str:
        """How far it came."""
        kinds = ", ".join(f"{kind} {count:,} ({self.taken[kind]:,})" for kind, count in self.streams.items())
        return f"{self.total:,} streams, {len(self.finds)} finds; by kind (and taken): {kinds}"


def reason_of(refused: str) -> tuple[str, str]:
    """Message type and reason, without what is different each time."""
    tag, _, what = refused.partition(": ")
    return tag if tag in _LETTERS else "?", re.sub(r"\(0x.*|b'.*|'.*|\".*|\d+", "#", what)


def write_corpus(report: Report, folder: Path) -> int:
    """One small stream for each refusal that was met; how many are new."""
    new = 0
    for (tag, what), (asked, stream) in sorted(report.smallest.items()):
        name = re.sub(r"[^a-z0-9]+", "-", what.lower()).strip("-")[:60]
        path = folder / f"{_LETTERS.get(tag, 'other')}-{name}.hex"
        if not path.exists():
            small = minimised(stream, partial(_refused_for, asked, (tag, what)))
            write_case(path, asked, small, f"{tag}: {what}")
            new += 1
    return new


def _refused_for(asked: Asked, reason: tuple[str, str], stream: Stream) -> bool:
    return _reason(asked, stream) == reason


def _reason(asked: Asked, stream: Stream) -> tuple[str, str]:
    try:
        return reason_of(judge(asked, stream))
    except Exception:  # noqa: BLE001 - any error is what the fuzzer looks for
        return "", "find"
