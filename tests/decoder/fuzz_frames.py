"""What lies around the messages, damaged: replication frames, and binary COPY in its two uses.

Each is read by the compiled walk and by a plain reader here, written from the grammar at the head of
`decoder.stream.framing`, `decoder.copy.frames` and `decoder.stream.bulk_rows`: both refuse, or both give the
same.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np

from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.copy.frames import CopyFrames
from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.protocol.message_record import record_start
from slotlake.decoder.stream.bulk_rows import CopiedRows
from slotlake.decoder.stream.copy_data import Frames
from slotlake.decoder.stream.framing import NO_LIMIT, REACHED, RUNNING, Bounds, Framing
from tests.decoder.agreement import Stream
from tests.decoder.fuzz_cases import Copied, CopiedChanges, Framed
from tests.decoder.histories import random_options, serve

_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_START = 900  # before the first position of a history
# Tag → where the start and the end of its record stand (0: it has none), and its size in bytes.
_RECORDS = {
    "B": (1, 0, 21), "b": (1, 0, 17), "C": (2, 10, 26), "K": (2, 10, 26), "P": (2, 10, 26),
    "p": (2, 10, 26), "c": (6, 14, 30), "r": (0, 10, 18),
}  # fmt: skip
_MESSAGE_SIZE = 14  # bytes of a logical message without its prefix and content
Meaning = tuple[object, ...]


class DisagreementError(AssertionError):
    """The two readings differ."""


# Streams to damage.


def framed(draw: random.Random) -> tuple[Framed, Stream]:
    """A history as a walsender would send it, keepalives between."""
    found: Stream = []
    for lsn, payload in serve(draw, random_options(draw), draw.choice([6, 10, 16])).stream:
        found.append((lsn, struct.pack(">cqqq", b"w", lsn, lsn, 0) + payload))
        if draw.random() < 0.2:
            found.append((lsn, struct.pack(">cqq?", b"k", lsn, 0, draw.random() < 0.3)))
    last = max((lsn for lsn, _ in found), default=_START)
    until, later = sorted(draw.randrange(_START, last + 300) for _ in range(2))
    max_bytes = draw.choice([0, 100, 1000, NO_LIMIT, NO_LIMIT])
    return Framed(until, max_bytes, later, draw.choice([1, 2, 5, 1000])), found


def copied(draw: random.Random) -> tuple[Copied, Stream]:
    """A table's rows."""
    columns = draw.randrange(5)
    rows = [_row(draw, columns) for _ in range(draw.randrange(6))]
    return Copied(columns, draw.choice([1, 2, 1000])), _as_copy_data(draw, rows)


def copied_changes(draw: random.Random) -> tuple[CopiedChanges, Stream]:
    """A history as the function for SQL gives it."""
    stream = serve(draw, random_options(draw), 8).stream
    rows = [struct.pack(">HiqI", 2, 8, lsn, len(each)) + each for lsn, each in stream]
    return CopiedChanges(draw.choice([1, 2, 1000])), _as_copy_data(draw, rows)


def _row(draw: random.Random, columns: int) -> bytes:
    values = [
        None if draw.random() < 0.3 else draw.randbytes(draw.choice([0, 1, 4, 40])) for _ in range(columns)
    ]
    parts = [struct.pack(">i", -1) if v is None else struct.pack(">i", len(v)) + v for v in values]
    return struct.pack(">h", columns) + b"".join(parts)


def _as_copy_data(draw: random.Random, rows: list[bytes]) -> Stream:
    extension = draw.randbytes(draw.choice([0, 0, 0, 3]))
    header = _SIGNATURE + struct.pack(">II", 0, len(extension)) + extension
    contents = [*rows, b"\xff\xff"]
    contents = [header + contents[0], *contents[1:]] if draw.random() < 0.7 else [header, *contents]
    return [(0, each) for each in contents]


# Framing.


@dataclass
class _Model:
    """The rule by which a batch ends, message by message."""

    start: int
    until: int
    max_bytes: int
    received_lsn: int
    taken: list[tuple[int, bytes]] = field(default_factory=list)
    taken_bytes: int = 0
    open: bool = False
    commits: int = 0
    last_commit_end: int = 0
    reply: bool = False
    end: int = RUNNING

    def begin(self, until: int) -> None:
        self.start, self.until = self.until, until
        self.taken_bytes = self.commits = self.last_commit_end = 0
        over = not self.open and self.start < until <= self.received_lsn
        self.end = REACHED if over else RUNNING

    def take(self, contents: list[bytes]) -> int:
        """How many are of this batch."""
        for i, content in enumerate(contents):
            if self.end != RUNNING or not self._one(content):
                return i
        return len(contents)

    def _one(self, content: bytes) -> bool:
        tag = content[:1]
        if len(content) < {b"k": 18, b"w": 26}.get(tag, 1):
            raise ProtocolError("the replication message ends too early")
        if tag == b"k":
            wal_end, reply = struct.unpack_from(">q8x?", content, 1)
            self.received_lsn, self.reply = max(self.received_lsn, wal_end), self.reply or reply
            self.end = REACHED if wal_end >= self.until and not self.open else self.end
            return True
        if tag != b"w":
            raise ProtocolError("an unknown kind of replication message")
        payload = content[25:]
        if not self.open and self._behind(payload):
            self.end = REACHED
            return False
        self.taken.append((int.from_bytes(content[1:9], "big"), payload))
        self.taken_bytes += len(payload)
        self._note(payload)
        return True

    def _behind(self, payload: bytes) -> bool:
        tag = payload[:1].decode("latin-1")
        if tag == "M":
            if len(payload) < _MESSAGE_SIZE or payload[1] != 0:
                return False
            ends = _lsn(payload, 2)
            return ends > self.until and record_start(ends, len(payload) - _MESSAGE_SIZE) >= self.until
        starts, ends, size = _RECORDS.get(tag, (0, 0, 0))
        if not size or len(payload) < size:
            return False
        return _lsn(payload, starts) >= self.until if starts else _lsn(payload, ends) > self.until

    def _note(self, payload: bytes) -> None:
        tag = payload[:1].decode("latin-1")
        _, ends, size = _RECORDS.get(tag, (0, 0, 0))
        if tag in "BbS":
            self.open = True
        elif tag == "E":
            self.open = False
        elif ends and len(payload) >= size:
            end_lsn = _lsn(payload, ends)
            self.open, self.received_lsn = False, max(self.received_lsn, end_lsn)
            if tag in "CcK":
                self.commits, self.last_commit_end = self.commits + 1, end_lsn
            if end_lsn >= self.until:
                self.end = REACHED
            elif tag in "CcK" and self.taken_bytes >= self.max_bytes:
                self.end = 2


def _lsn(payload: bytes, at: int) -> int:
    return int.from_bytes(payload[at : at + 8], "big", signed=True)


def judge_framed(asked: Framed, stream: Stream) -> str:
    """Why `Framing` refuses it, "" if it does not."""
    contents = [content for _, content in stream]
    return _agreed(lambda: _model_framed(asked, contents), lambda: _real_framed(asked, contents))


def _model_framed(asked: Framed, contents: list[bytes]) -> Meaning:
    model = _Model(_START, asked.until, asked.max_bytes, _START)
    used = model.take(contents)
    first = (used, *_state(model), model.reply)
    if model.end == RUNNING:
        return first, model.taken
    model.begin(asked.later)
    return first, used + model.take(contents[used:]), *_state(model), model.taken


def _real_framed(asked: Framed, contents: list[bytes]) -> Meaning:
    framing, buffer = Framing(Bounds(_START, asked.until, asked.max_bytes)), MessageBuffer()
    used = _pieces(framing, buffer, contents, asked.piece)
    first = (used, *_state(framing), framing.asked_for_reply())
    if framing.end == RUNNING:
        return first, _messages(buffer)
    framing.begin(Bounds(asked.until, asked.later, asked.max_bytes))
    used += _pieces(framing, buffer, contents[used:], asked.piece)
    return first, used, *_state(framing), _messages(buffer)


def _state(of: _Model | Framing) -> Meaning:
    return of.end, of.open, of.taken_bytes, of.commits, of.last_commit_end, of.received_lsn


def _pieces(framing: Framing, buffer: MessageBuffer, contents: list[bytes], size: int) -> int:
    used = 0
    while used < len(contents):
        piece = contents[used : used + size]
        frames = _frames(piece)
        taken = framing.take(frames.data, frames.lengths, buffer)
        used += taken
        if taken < len(piece):
            break
    return used


def _messages(buffer: MessageBuffer) -> list[tuple[int, bytes]]:
    data, ends = buffer.data.tobytes(), buffer.ends.tolist()
    return [(lsn, data[ends[i] : ends[i + 1]]) for i, lsn in enumerate(buffer.lsns.tolist())]


def _frames(contents: list[bytes]) -> Frames:
    lengths = np.array([len(each) for each in contents], np.int64)
    return Frames(np.frombuffer(b"".join(contents), np.uint8), lengths, ended=False)


# COPY.


def judge_copied(asked: Copied, stream: Stream) -> str:
    """Why `CopyFrames` refuses it, "" if it does not."""
    contents = [content for _, content in stream]
    return _agreed(lambda: _model_copied(asked, contents), lambda: _real_copied(asked, contents))


def _model_copied(asked: Copied, contents: list[bytes]) -> Meaning:
    first, data = b"".join(contents[: asked.piece]), b"".join(contents)
    at, rows, finished = _headed(first), [], False
    while at < len(data):
        count, at = _number(data, at, 2), at + 2
        if finished or (count not in (-1, asked.columns)):
            raise ProtocolError("not a row")
        if count == -1:
            finished = True
            continue
        row: list[bytes | None] = []
        for _ in range(count):
            length, at = _number(data, at, 4), at + 4
            if length < -1 or length > len(data) - at:
                raise ProtocolError("not a field")
            row.append(None if length < 0 else data[at : at + length])
            at += max(length, 0)
        rows.append(tuple(row))
    if not finished:
        raise ProtocolError("too early")
    return tuple(rows)


def _headed(first: bytes) -> int:
    """Behind the header, which comes whole with what comes first."""
    if len(first) < 19 or not first.startswith(_SIGNATURE) or first[11:15] != bytes(4):
        raise ProtocolError("no header")
    begin = 19 + int.from_bytes(first[15:19], "big")
    if begin > len(first):
        raise ProtocolError("no header")
    return begin


def _number(data: bytes, at: int, size: int) -> int:
    if at + size > len(data):
        raise ProtocolError("too early")
    return int.from_bytes(data[at : at + size], "big", signed=True)


def _real_copied(asked: Copied, contents: list[bytes]) -> Meaning:
    frames, come = CopyFrames(asked.columns), 0
    rows: list[tuple[bytes | None, ...]] = []
    for at in range(0, len(contents), asked.piece):
        raw = b"".join(contents[at : at + asked.piece])
        come += len(raw)
        count, columns = frames.take(raw, come // 2 + 1)
        values = [_slices(each.data.tobytes(), each.start.tolist(), each.length.tolist()) for each in columns]
        rows += list(zip(*values, strict=True)) if values else [()] * count
    frames.end()
    return tuple(rows)


def _slices(data: bytes, start: list[int], length: list[int]) -> list[bytes | None]:
    return [None if n < 0 else data[at : at + n] for at, n in zip(start, length, strict=True)]


def judge_copied_changes(asked: CopiedChanges, stream: Stream) -> str:
    """Why `CopiedRows` refuses it, "" if it does not."""
    contents = [content for _, content in stream]
    return _agreed(lambda: _model_changes(contents), lambda: _real_changes(asked, contents))


def _model_changes(contents: list[bytes]) -> Meaning:
    header = _headed(contents[0]) if contents else 0
    rest = [contents[0][header:], *contents[1:]] if contents else []
    found, finished = [], False
    for i, row in enumerate(rest):
        if i == 0 and not row:
            continue
        if finished or (row != b"\xff\xff" and row[:6] != b"\0\2\0\0\0\x08"):
            raise ProtocolError("not a row")
        if row == b"\xff\xff":
            finished = True
            continue
        if len(row) < 18 or int.from_bytes(row[14:18], "big") != len(row) - 18:
            raise ProtocolError("not a row")
        found.append(b"w" + row[6:14] + bytes(16) + row[18:])
    if not finished:
        raise ProtocolError("too early")
    return tuple(found)


def _real_changes(asked: CopiedChanges, contents: list[bytes]) -> Meaning:
    rows, found = CopiedRows(), []
    for at in range(0, len(contents), asked.piece):
        data, lengths = rows.take(_frames(contents[at : at + asked.piece]))
        raw, ends = data.tobytes(), [0, *accumulate(lengths.tolist())]
        found += [raw[begin:end] for begin, end in pairwise(ends)]
    rows.end()
    return tuple(found)


def _agreed(model: object, real: object) -> str:
    refused, meaning = _tried(model)
    other, found = _tried(real)
    if bool(refused) != bool(other):
        raise DisagreementError(f"plain: {refused or 'taken'}, compiled: {other or 'taken'}")
    if meaning != found:
        raise DisagreementError("plain and compiled read other things")
    return other


def _tried(read: object) -> tuple[str, object]:
    assert callable(read)
    try:
        return "", read()
    except ProtocolError as error:
        return f"{error.message_type}: {error.what}", None
