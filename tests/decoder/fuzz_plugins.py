"""Damaged messages into the plugins' readers: an event for each, or a ProtocolError that says where.

The messages are those of the recordings (tests/vectors/plugins): some in a row, from a place outside of
transactions on.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.plugins.catalog import RecordedCatalog
from slotlake.decoder.plugins.model import Change, Startup
from slotlake.decoder.plugins.reader import Reader
from slotlake.decoder.plugins.readers import reader_for
from slotlake.decoder.plugins.recording import Recording
from tests.decoder.agreement import Stream
from tests.decoder.fuzz_cases import Plugged

RECORDINGS = Path(__file__).parents[1] / "vectors" / "plugins" / "pg15"
_LONG = 12


class UntoldError(AssertionError):
    """A refusal without its place, or a row that does not fit its table."""


@dataclass(frozen=True)
class _Recorded:
    startup: Startup
    catalog: RecordedCatalog
    messages: Stream
    starts: list[int]  # of what can be read by itself

    def reader(self) -> Reader:
        return reader_for(self.startup.plugin, self.startup.options, self.catalog)


@cache
def _recorded(way: str) -> _Recorded:
    recording = Recording(RECORDINGS / f"{way}.slraw")
    messages = list(recording.messages())
    recording.close()
    reader = reader_for(recording.startup.plugin, recording.startup.options, recording.catalog)
    starts = []
    for at, (lsn, payload) in enumerate(messages):
        if not reader.open and (reader.plugin != "pgoutput" or at == 0):  # which describes a table once
            starts.append(at)
        list(reader.read(payload, lsn))
    return _Recorded(recording.startup, recording.catalog, messages, starts)


@cache
def ways() -> list[str]:
    """The recordings."""
    return sorted(path.stem for path in RECORDINGS.glob("*.slraw"))


def plugged(draw: random.Random) -> tuple[Plugged, Stream]:
    """Some messages in a row."""
    asked = Plugged(draw.choice(ways()))
    recorded = _recorded(asked.way)
    start = draw.choice(recorded.starts)
    return asked, recorded.messages[start : start + draw.randrange(1, _LONG)]


def judge_plugged(asked: Plugged, stream: Stream) -> str:
    """Why the reader refuses it, "" if it does not."""
    reader = _recorded(asked.way).reader()
    try:
        for lsn, payload in stream:
            for event in reader.read(payload, lsn):
                if isinstance(event.body, Change):
                    _fits(event.body)
    except ProtocolError as error:
        if "/" not in error.where:
            raise UntoldError(f"where: {error.where}") from None
        return f"{asked.way}: {error.what}"
    return ""


def _fits(change: Change) -> None:
    widths = {len(each) for each in (change.old, change.new) if each is not None}
    if widths - {len(change.relation.columns)}:
        raise UntoldError("a row of another width than its table")
