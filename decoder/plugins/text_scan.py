"""Reads one line of text from front to back, each character once."""

from __future__ import annotations

import re
from collections.abc import Callable

from slotlake.decoder.errors import ProtocolError

_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]*")
# Possessive: a doubled quote never counts as the end, whatever text follows.
_QUOTED = {quote: re.compile(f"{quote}((?:[^{quote}]|{quote}{quote})*+){quote}") for quote in "'\""}


class TextScan:
    """A place in a text.

    Args:
        text: the line.
        fail: makes the error from its text and a byte offset.
    """

    def __init__(self, text: str, fail: Callable[[str, int], ProtocolError]) -> None:
        self.text = text
        self.at = 0
        self._fail = fail

    def error(self, what: str, at: int | None = None) -> ProtocolError:
        """The error, here or at the given character."""
        return self._fail(
            what, len(self.text[: self.at if at is None else at].encode("utf-8", "surrogateescape"))
        )

    @property
    def ended(self) -> bool:
        """True if everything was read."""
        return self.at == len(self.text)

    def sees(self, literal: str) -> bool:
        """True if ``literal`` comes next."""
        return self.text.startswith(literal, self.at)

    def took(self, literal: str) -> bool:
        """Read ``literal`` if it comes next; true if it did."""
        if not self.sees(literal):
            return False
        self.at += len(literal)
        return True

    def expect(self, literal: str) -> None:
        """Read a literal that must come next.

        Raises:
            ProtocolError: something else comes next.
        """
        if not self.took(literal):
            raise self.error(f"{literal!r} is expected here")

    def match(self, pattern: re.Pattern[str], what: str) -> str:
        """Read text that must come next and match a pattern.

        Raises:
            ProtocolError: something else comes next.
        """
        match = pattern.match(self.text, self.at)
        if match is None:
            raise self.error(f"{what} is expected here")
        self.at = match.end()
        return match[0]

    def quoted(self, quote: str) -> str:
        """Read text in quotes; a quote inside is doubled.

        Raises:
            ProtocolError: there is no quote, or it has no end.
        """
        match = _QUOTED[quote].match(self.text, self.at)
        if match is None:
            self.expect(quote)
            raise self.error("the closing quote is missing", self.at - 1)
        self.at = match.end()
        return match[1].replace(quote * 2, quote)

    def name(self) -> str:
        """Read an identifier as quote_identifier prints it."""
        return self.quoted('"') if self.sees('"') else self.match(_PLAIN_NAME, "a name")

    def end(self) -> None:
        """Check that everything was read.

        Raises:
            ProtocolError: text is left over.
        """
        if not self.ended:
            raise self.error("text is left over at the end of the line")
