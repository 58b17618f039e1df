"""Characters of the source's encoding in UTF-8, as the server itself translates them.

Owns what is known of an encoding: where a character ends.  What it is in UTF-8 only the server knows (it may
have a conversion of its own, CREATE DEFAULT CONVERSION): each character that occurs is asked for once.

Rules: wchar.c (pg_euc_*_verifychar) says how long a character is, by its first byte; conv.c (LocalToUtf)
translates one after the other, so a text can be translated exactly if each of its characters can.  A length
that is too long or too short only occurs in a text that the server refuses too: its first byte is no first
byte of that encoding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import psycopg

from slotlake.decoder.errors import UntranslatableError
from slotlake.decoder.server.closing import Closes
from slotlake.decoder.server.source import connect, redact, source_errors

_ASK = """
SELECT pg_catalog.convert(c, %s, 'UTF8') FROM pg_catalog.unnest(%s::pg_catalog.bytea[])
WITH ORDINALITY AS given (c, place) ORDER BY place
"""
_REFUSED = (psycopg.errors.UntranslatableCharacter, psycopg.errors.CharacterNotInRepertoire)
_EUC = rb"\x8e.?|\x8f.{0,2}|[\x80-\xff].?"
_EUC_TW = rb"\x8e.{0,3}|\x8f.{0,2}|[\x80-\xff].?"
_SINGLE = rb"[\x80-\xff]"
_SINGLE_BYTE = re.compile(r"LATIN\d+|WIN\d+|KOI8[RU]|ISO_8859_\d+")
_UNKNOWN = "correct the value at the source, drop the slot, then run `slotlake recover --yes`"


class Characters(Closes):
    """What the characters of an encoding are in UTF-8; use as a context manager.

    Args:
        dsn: of the database whose texts are translated.
        encoding: their encoding, as the server names it; that of the database if not given.

    Raises:
        UntranslatableError: texts of that encoding cannot be taken apart here.
        SourceError: the server cannot be asked.
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
        """Ask for the characters of these texts that are not known yet.

        Raises:
            SourceError: the server cannot be asked.
        """
        occur = {character for text in texts for character in self._character.findall(text)}
        asked = sorted(occur - self._known.keys())
        with source_errors(self._dsn, "translating characters"):
            self._known.update(zip(asked, self._translated(asked), strict=True))

    def utf8(self, text: bytes) -> bytes | None:
        """A text of which all characters were learnt, in UTF-8; None if the server has none for it."""
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
        """One bad character makes the server refuse all: then each half is asked for by itself."""
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
    """One character that is not ASCII, or what a text's end leaves of it."""
    if _SINGLE_BYTE.fullmatch(encoding):
        return _SINGLE
    if encoding.startswith("EUC_"):
        return _EUC_TW if encoding == "EUC_TW" else _EUC
    raise UntranslatableError(
        f"texts in the encoding {encoding or '(unknown)'} are not translated here",
        where=where,
        way_out=_UNKNOWN,
    )
