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

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import psycopg

from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.compiled.jit import Ints
from slotlake.decoder.errors import ProtocolError, UntranslatableError
from slotlake.decoder.protocol.cursor import Cursor
from slotlake.decoder.server.closing import Closes
from slotlake.decoder.server.source import connect, redact, source_errors

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


# Characters of the source's encoding in UTF-8, as the server itself translates them.
#
# This module knows of an encoding only where a character ends.  Its UTF-8 only the server knows (it may have
# a conversion of its own, CREATE DEFAULT CONVERSION): each character that occurs is requested once.
#
# Rules: by wchar.c (pg_euc_*_verifychar) a character's first byte gives its length.  conv.c (LocalToUtf)
# translates characters one after the other, so a text can be translated exactly if each of its characters
# can. The length found here can be wrong only in a text that the server refuses too, because a byte in it
# cannot begin a character of that encoding.

_ASK = """
SELECT pg_catalog.convert(c, %s, 'UTF8') FROM pg_catalog.unnest(%s::pg_catalog.bytea[])
WITH ORDINALITY AS given (c, place) ORDER BY place
"""
_REFUSED = (psycopg.errors.UntranslatableCharacter, psycopg.errors.CharacterNotInRepertoire)
_EUC = rb"\x8e.?|\x8f.{0,2}|[\x80-\xff].?"
_EUC_TW = rb"\x8e.{0,3}|\x8f.{0,2}|[\x80-\xff].?"
_SINGLE = rb"[\x80-\xff]"
_SINGLE_BYTE = re.compile(r"LATIN\d+|WIN\d+|KOI8[RU]|ISO_8859_\d+")
_UNKNOWN = (
    "correct the value at the source, drop the slot (SELECT pg_drop_replication_slot(…)), then run "
    "`slotlake recover --yes`"
)


class Characters(Closes):
    """The UTF-8 of the characters of an encoding; use as a context manager.

    Args:
        dsn: of the database whose texts are translated.
        encoding: their encoding, with the server's name for it; that of the database if not given.

    Raises:
        UntranslatableError: this module cannot divide texts of that encoding into characters.
        SourceError: the server cannot be reached or refuses.
    """

    def __init__(self, dsn: str, encoding: str | None = None) -> None:
        self._dsn = dsn
        self._connection = connect(dsn)
        self._known: dict[bytes, bytes | None] = {}
        try:
            self.encoding = encoding or self._connection.info.parameter_status("server_encoding") or ""
            self._character = re.compile(_pattern(self.encoding, redact(dsn)), re.DOTALL)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """End the session."""
        self._connection.close()

    def learn(self, texts: Iterable[bytes]) -> None:
        """Ask the server for the characters of these texts that are not known yet.

        Raises:
            SourceError: the server cannot be reached or refuses.
        """
        occur = {character for text in texts for character in self._character.findall(text)}
        asked = sorted(occur - self._known.keys())
        with source_errors(self._dsn, "translating characters"):
            self._known.update(zip(asked, self._translated(asked), strict=True))

    def utf8(self, text: bytes) -> bytes | None:
        """A text in UTF-8, after its characters were learnt; None if the server cannot translate one."""
        try:
            return self._character.sub(self._one, text)
        except _NoneError:
            return None

    def _one(self, match: re.Match[bytes]) -> bytes:
        translated = self._known[match[0]]
        if translated is None:
            raise _NoneError
        return translated

    def _translated(self, characters: Sequence[bytes]) -> list[bytes | None]:
        """Translate characters; one bad character makes the server refuse all: then try each half alone."""
        if not characters:
            return []
        try:
            rows = self._connection.execute(_ASK.encode(), (self.encoding, list(characters)), binary=True)
            return [row[0] for row in rows]
        except _REFUSED:
            if len(characters) == 1:
                return [None]
        half = len(characters) // 2
        return [*self._translated(characters[:half]), *self._translated(characters[half:])]


class _NoneError(Exception):
    """A character has no translation."""


def _pattern(encoding: str, where: str) -> bytes:
    """The pattern of one character that is not ASCII, or of its beginning at a text's end."""
    if _SINGLE_BYTE.fullmatch(encoding):
        return _SINGLE
    if encoding.startswith("EUC_"):
        return _EUC_TW if encoding == "EUC_TW" else _EUC
    raise UntranslatableError(
        f"neither the server nor slotlake can translate these texts from {encoding or '(unknown)'} to UTF-8",
        where=where,
        way_out=_UNKNOWN,
    )
