"""Damaged streams as files: what was asked for, then a line a message.

The corpus (tests/vectors/fuzz) has one small stream for each refusal that was met.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeAlias

from slotlake.decoder.lsn import format_lsn, parse_lsn
from tests.decoder.agreement import Stream
from tests.decoder.histories import Options

CORPUS = Path(__file__).parents[1] / "vectors" / "fuzz"


@dataclass(frozen=True)
class Framed:
    """CopyData contents of a replication connection, for `Framing`.

    Attributes:
        until, max_bytes: of the batch; ``later`` is until where the one after it goes.
        piece: contents that come together.
    """

    until: int
    max_bytes: int
    later: int
    piece: int


@dataclass(frozen=True)
class Copied:
    """CopyData contents of a binary COPY of so many columns, which come ``piece`` by piece."""

    columns: int
    piece: int


@dataclass(frozen=True)
class CopiedChanges:
    """CopyData contents of a binary COPY of (lsn, message), which come ``piece`` by piece."""

    piece: int


@dataclass(frozen=True)
class Plugged:
    """Messages of an output plugin, as one of the recordings has them."""

    way: str


Asked: TypeAlias = Options | Framed | Copied | CopiedChanges | Plugged
_KINDS: dict[str, type] = {kind.__name__: kind for kind in (Framed, Copied, CopiedChanges, Plugged)}


def write_case(path: Path, asked: Asked, stream: Stream, note: str = "") -> None:
    """A stream as a file of the corpus."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{_head(asked)} | {note}\n" + "".join(f"{_line(*each)}\n" for each in stream))


def _line(lsn: int, payload: bytes) -> str:
    return f"{format_lsn(lsn)} {payload.hex()}"


def _head(asked: Asked) -> str:
    if isinstance(asked, Options):
        return f"streaming={asked.streaming} two_phase={asked.two_phase} binary={asked.binary}"
    told = [f"{each.name}={getattr(asked, each.name)}" for each in fields(asked)]
    return " ".join([f"kind={type(asked).__name__}", *told])


def read_case(path: Path) -> tuple[Asked, Stream, str]:
    """What was asked for, the stream, and the note."""
    head, *lines = path.read_text().splitlines()
    settings, _, note = head.partition(" | ")
    parts = (line.partition(" ") for line in lines)
    stream = [(parse_lsn(lsn), bytes.fromhex(payload)) for lsn, _, payload in parts]
    return _asked(dict(part.split("=") for part in settings.split())), stream, note


def _asked(said: dict[str, str]) -> Asked:
    kind = _KINDS.get(said.pop("kind", ""))
    if kind is not None:
        found: Asked = kind(
            **{name: int(value) if value.isdigit() else value for name, value in said.items()}
        )
        return found
    streaming, two_phase, binary = said["streaming"], said["two_phase"] == "True", said["binary"] == "True"
    return Options(streaming, two_phase, binary)  # type: ignore[arg-type]


def size_of(stream: Stream) -> tuple[int, int]:
    """Messages and bytes."""
    return len(stream), sum(len(payload) for _, payload in stream)


def minimised(stream: Stream, holds: Callable[[Stream], bool]) -> Stream:
    """The stream without the messages that do not matter."""
    if not holds(stream):
        return stream
    at = len(stream) - 1
    while at >= 0:
        shorter = stream[:at] + stream[at + 1 :]
        stream = shorter if holds(shorter) else stream
        at -= 1
    return stream
