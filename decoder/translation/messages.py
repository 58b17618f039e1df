"""Translates messages with texts in the database's encoding into those that a client with UTF-8 would get.

Grammar: decoder/protocol/wire.py, for protocol 1 and text values (no transaction in progress, nothing
binary), with the messages of prepared transactions.  Texts are names and values; the content of a logical
message is bytes.

Invariant: a text that the server could not translate becomes bytes that are never UTF-8, so that the decoder,
which checks each value, can name its table and column.  Without this the bytes could be UTF-8 by chance: the
two bytes of Á in UTF-8 are two characters in WIN1252, and the second of them does not exist there.  A message
that breaks the grammar is not changed: the decoder says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.compiled.jit import Ints
from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.protocol.cursor import Cursor
from slotlake.decoder.server.closing import Closes
from slotlake.decoder.translation.characters import Characters

NEVER_UTF8 = b"\xff"
_ASCII_MAX = 127


class _Text(NamedTuple):
    """The span of a text in a message; ``counted``: its length is before it, else a zero byte ends it."""

    start: int
    end: int
    counted: bool


class Translation(Closes):
    """Translates the messages of one stream; use as a context manager.

    Args:
        dsn: of the source.

    Raises:
        UntranslatableError, SourceError: as `Characters`.
    """

    def __init__(self, dsn: str) -> None:
        self._characters = Characters(dsn)

    def close(self) -> None:
        """End the session with the source."""
        self._characters.close()

    def take(self, buffer: MessageBuffer) -> MessageBuffer:
        """The same messages in UTF-8: another buffer, or this one if it contains only ASCII.

        Raises:
            SourceError: the server cannot be reached or refuses.
        """
        messages = {i: _message(buffer, i) for i in _not_ascii(buffer)}
        texts = {i: _texts(message) for i, message in messages.items()}
        self._characters.learn(
            messages[i][text.start : text.end] for i, listed in texts.items() for text in listed
        )
        changed = {i: self._rewritten(messages[i], listed) for i, listed in texts.items() if listed}
        return _replaced(buffer, changed) if changed else buffer

    def _rewritten(self, message: bytes, texts: list[_Text]) -> bytes:
        parts: list[bytes] = []
        at = 0
        for text in texts:
            raw = message[text.start : text.end]
            translated = self._characters.utf8(raw)
            now = NEVER_UTF8 + raw if translated is None else translated
            if text.counted:
                parts += [message[at : text.start - 4], len(now).to_bytes(4, "big"), now]
            else:
                parts += [message[at : text.start], now]
            at = text.end
        return b"".join([*parts, message[at:]])


def _not_ascii(buffer: MessageBuffer) -> list[int]:
    """The messages with a byte that is not ASCII."""
    starts, ends = buffer.ends[:-1], buffer.ends[1:]
    filled = np.flatnonzero(ends > starts)
    if not len(filled):
        return []
    most = np.maximum.reduceat(buffer.data, starts[filled])
    places: list[int] = filled[most > _ASCII_MAX].tolist()
    return places


def _message(buffer: MessageBuffer, i: int) -> bytes:
    return bytes(buffer.data[buffer.ends[i] : buffer.ends[i + 1]])


def _replaced(buffer: MessageBuffer, changed: dict[int, bytes]) -> MessageBuffer:
    ends, data, at = buffer.ends, buffer.data, 0
    pieces: list[bytes] = []
    lengths: Ints = np.diff(ends)
    for i, message in changed.items():
        pieces += [data[at : ends[i]].tobytes(), message]
        at, lengths[i] = int(ends[i + 1]), len(message)
    pieces.append(data[at:].tobytes())
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)[:-1]])
    made = MessageBuffer()
    made.extend(np.frombuffer(b"".join(pieces), np.uint8), starts, lengths.astype(np.int32), buffer.lsns)
    return made


def _texts(message: bytes) -> list[_Text]:
    """The texts of a message that are not ASCII, in order; none if the message breaks the grammar."""
    reader = _READERS.get(message[:1])
    if reader is None:
        return []
    walk = _Walk(message)
    try:
        reader(walk)
    except ProtocolError:
        return []
    return walk.texts


class _Walk:
    """One message, read from front to back for its texts."""

    def __init__(self, message: bytes) -> None:
        self._cursor = Cursor(message)
        self._cursor.take(1)
        self.texts: list[_Text] = []

    def skip(self, length: int) -> None:
        self._cursor.take(length)

    def string(self) -> None:
        cursor = self._cursor
        end = cursor.payload.find(b"\0", cursor.offset)
        if end < 0:
            raise cursor.error("the string has no zero byte at its end")
        self._note(_Text(cursor.offset, end, counted=False))
        cursor.offset = end + 1

    def columns(self) -> None:
        """Read the columns of a Relation message."""
        for _ in range(self._cursor.unsigned(2)):
            self.skip(1)
            self.string()
            self.skip(8)

    def tuples(self) -> None:
        """Read one or two tuples, each after its tag."""
        while self._cursor.offset < len(self._cursor.payload):
            self.skip(1)
            for _ in range(self._cursor.unsigned(2)):
                self._value()

    def _value(self) -> None:
        cursor = self._cursor
        kind = cursor.take(1)
        if kind == b"t":
            length = cursor.unsigned(4)
            start = cursor.offset
            cursor.take(length)
            self._note(_Text(start, start + length, counted=True))
        elif kind not in b"nu":
            raise cursor.error(f"unknown kind of value {kind!r}", cursor.offset - 1)

    def _note(self, text: _Text) -> None:
        if not self._cursor.payload[text.start : text.end].isascii():
            self.texts.append(text)


def _relation(walk: _Walk) -> None:
    walk.skip(4)
    walk.string()
    walk.string()
    walk.skip(1)
    walk.columns()


def _type(walk: _Walk) -> None:
    walk.skip(4)
    walk.string()
    walk.string()


def _row(walk: _Walk) -> None:
    walk.skip(4)
    walk.tuples()


def _string_after(length: int) -> Callable[[_Walk], None]:
    """A reader for messages with one string after ``length`` bytes, and no text after it."""

    def read(walk: _Walk) -> None:
        walk.skip(length)
        walk.string()

    return read


# For the places of the identifiers of prepared transactions see the protocol manual, section 54.9.
_READERS: dict[bytes, Callable[[_Walk], None]] = {
    b"R": _relation,
    b"Y": _type,
    b"I": _row,
    b"U": _row,
    b"D": _row,
    b"O": _string_after(8),
    b"M": _string_after(9),
    b"b": _string_after(28),
    b"P": _string_after(29),
    b"K": _string_after(29),
    b"r": _string_after(37),
}
