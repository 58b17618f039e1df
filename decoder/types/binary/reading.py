"""Reads the bytes of one binary value from front to back; integers are big-endian.

Invariant: nothing is read past the end, and `Reading.end` refuses left-over bytes.  Every error is
a `TextError`, as for text, so that callers handle binary and text values in the same way.
"""

from __future__ import annotations

import struct

from slotlake.decoder.types.text_error import TextError

_U8, _U16, _I32, _U32 = (struct.Struct(">" + code) for code in "BHiI")
_I64, _U64 = struct.Struct(">q"), struct.Struct(">Q")


class Reading:
    """A position in a value's bytes."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def _number(self, form: struct.Struct) -> int:
        at = self.at
        self.at = at + form.size
        try:
            return int(form.unpack_from(self.data, at)[0])
        except struct.error:
            raise too_short() from None

    def u8(self) -> int:
        """One byte."""
        return self._number(_U8)

    def u16(self) -> int:
        """Two bytes."""
        return self._number(_U16)

    def i32(self) -> int:
        """Four bytes, signed."""
        return self._number(_I32)

    def u32(self) -> int:
        """Four bytes."""
        return self._number(_U32)

    def i64(self) -> int:
        """Eight bytes, signed."""
        return self._number(_I64)

    def u64(self) -> int:
        """Eight bytes."""
        return self._number(_U64)

    def count(self, bytes_each: int) -> int:
        """The number of the items that follow, each of at least ``bytes_each`` bytes.

        Raises:
            TextError: so many items need more bytes than follow.
        """
        count = self.i32()
        if count < 0 or count * bytes_each > len(self.data) - self.at:
            raise TextError("a binary value whose count is too large for its bytes")
        return count

    def many(self, count: int, code: str) -> tuple[int, ...]:
        """``count`` numbers of one `struct` format.

        Raises:
            TextError: the value ends too early.
        """
        form = struct.Struct(f">{count}{code}")
        at = self.at
        self.at = at + form.size
        if self.at > len(self.data):
            raise too_short()
        return form.unpack_from(self.data, at)

    def take(self, length: int) -> bytes:
        """Return the next ``length`` bytes.

        Raises:
            TextError: the value ends too early.
        """
        end = self.at + length
        if length < 0 or end > len(self.data):
            raise too_short()
        part = self.data[self.at : end]
        self.at = end
        return part

    def sized(self) -> bytes | None:
        """A length and as many bytes; None for the length -1, which means NULL.

        Raises:
            TextError: the value ends too early.
        """
        at = self.at + 4
        length = int.from_bytes(self.data[self.at : at], "big", signed=True)
        end = at + length
        if at > len(self.data) or length < -1 or end > len(self.data):
            raise too_short()
        if length == -1:
            self.at = at
            return None
        self.at = end
        return self.data[at:end]

    def text(self, length: int) -> str:
        """``length`` bytes of UTF-8."""
        return utf8(self.take(length))

    def string(self) -> str:
        """Text that ends in a zero byte.

        Raises:
            TextError: the zero byte is missing, or the text is not UTF-8.
        """
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise too_short()
        part = self.data[self.at : end]
        self.at = end + 1
        return utf8(part)

    def end(self) -> None:
        """Check that everything was read.

        Raises:
            TextError: bytes are left over.
        """
        if self.at != len(self.data):
            raise TextError("a binary value with left-over bytes")


def utf8(data: bytes) -> str:
    """The text of UTF-8 bytes.

    Raises:
        TextError: the bytes are not UTF-8.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise TextError("text that is not UTF-8") from None


def too_short() -> TextError:
    """The error for a value that is shorter than its own counts and lengths say."""
    return TextError("a binary value that ends too early")
