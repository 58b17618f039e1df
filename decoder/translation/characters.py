"""Characters of the source's encoding in UTF-8, as the server itself translates them.

This module knows of an encoding only where a character ends.  Its UTF-8 only the server knows (it may have a
conversion of its own, CREATE DEFAULT CONVERSION): each character that occurs is requested once.

Rules: by wchar.c (pg_euc_*_verifychar) a character's first byte gives its length.  conv.c (LocalToUtf)
translates characters one after the other, so a text can be translated exactly if each of its characters can.
The length found here can be wrong only in a text that the server refuses too, because a byte in it cannot
begin a character of that encoding.
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
