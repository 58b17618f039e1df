"""Reading one message from front to back: the integers, strings, positions and times of the protocol.

Invariant: nothing is read after the message's end, and every error names the message's type and the byte.
Integers are big-endian; strings are UTF-8 and end in a zero byte.
"""

from __future__ import annotations

from slotlake.decoder.errors import DAMAGED, NOT_UTF8, ProtocolError

LSN_MAX = 2**63 - 1  # positions are stored as signed 64-bit integers
EPOCH_MICROSECONDS = 946_684_800_000_000  # from 1970-01-01 to PostgreSQL's 2000-01-01
TIME_MIN, TIME_MAX = -63_082_281_600_000_000, 252_455_615_999_999_999  # years 1 to 9999, from 2000


class Cursor:
    """A place in one message, moved forward by reading.

    Attributes:
        payload: the message, tag included.
        offset: how many of its bytes were read.
        message_type: its tag, "" if the message is empty.
        binary: the stream may contain binary values.
        parallel: an abort has a position and a time (streaming 'parallel').
        any_bytes: a value need not be UTF-8; its other bytes become surrogate escapes.
    """

    def __init__(
        self, payload: bytes, *, binary: bool = False, parallel: bool = False, any_bytes: bool = False
    ) -> None:
        self.payload = payload
        self.offset = 0
        self.message_type = payload[:1].decode("latin-1")
        self.binary = binary
        self.parallel = parallel
        self.any_bytes = any_bytes

    def error(self, what: str, offset: int | None = None, way_out: str = DAMAGED) -> ProtocolError:
        """The error about some bytes of the message.

        Args:
            offset: of the bytes; None for the next ones.
        """
        where = self.offset if offset is None else offset
        return ProtocolError(what, message_type=self.message_type, offset=where, way_out=way_out)

    def take(self, length: int) -> bytes:
        """Return the next ``length`` bytes.

        Raises:
            ProtocolError: the message ends too early.
        """
        end = self.offset + length
        if end > len(self.payload):
            raise self.error("the message ends too early")
        part = self.payload[self.offset : end]
        self.offset = end
        return part

    def unsigned(self, length: int) -> int:
        """Read an unsigned integer of ``length`` bytes."""
        return int.from_bytes(self.take(length), "big")

    def signed(self, length: int) -> int:
        """Read a signed integer of ``length`` bytes."""
        return int.from_bytes(self.take(length), "big", signed=True)

    def text(self, raw: bytes, offset: int) -> str:
        """Bytes read at ``offset`` as text.

        Raises:
            ProtocolError: the bytes are not UTF-8.
        """
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error("the text is not UTF-8", offset, NOT_UTF8) from None

    def value(self, length: int) -> str:
        """Return the next ``length`` bytes as a value's text.

        Raises:
            ProtocolError: the message ends too early, or the bytes must be UTF-8 and are not.
        """
        start, raw = self.offset, self.take(length)
        return raw.decode("utf-8", "surrogateescape") if self.any_bytes else self.text(raw, start)

    def string(self) -> str:
        """Return a string up to its zero byte.

        Raises:
            ProtocolError: the zero byte is missing, or the bytes are not UTF-8.
        """
        end = self.payload.find(b"\0", self.offset)
        if end < 0:
            raise self.error("the string has no zero byte at its end")
        start = self.offset
        self.offset = end + 1
        return self.text(self.payload[start:end], start)

    def flags(self, allowed: int) -> int:
        """Return a byte of flags.

        Raises:
            ProtocolError: a flag is set that is not allowed.
        """
        value = self.unsigned(1)
        if value & ~allowed:
            raise self.error(f"reserved flags are set ({value:#04x})", self.offset - 1)
        return value

    def lsn(self, *, required: bool = True) -> int:
        """Return a position; 0 means none, if it is not ``required``.

        Raises:
            ProtocolError: it is not set, or larger than any position in WAL can be.
        """
        value = self.unsigned(8)
        if value > LSN_MAX:
            raise self.error("the position is larger than any position in WAL can be", self.offset - 8)
        if required and value == 0:
            raise self.error("the position is not set", self.offset - 8)
        return value

    def time(self) -> int:
        """Return a time in microseconds since 1970-01-01 UTC.

        Raises:
            ProtocolError: it is outside the years 1 to 9999.
        """
        value = self.signed(8)
        if not TIME_MIN <= value <= TIME_MAX:
            raise self.error("the time is outside the years 1 to 9999", self.offset - 8)
        return value + EPOCH_MICROSECONDS

    def xid(self) -> int:
        """Return the id of a transaction or subtransaction, which is never 0.

        Raises:
            ProtocolError: it is 0.
        """
        value = self.unsigned(4)
        if value == 0:
            raise self.error("the transaction id is not set", self.offset - 4)
        return value

    def end(self) -> None:
        """Check that no bytes are left.

        Raises:
            ProtocolError: there are bytes left.
        """
        if self.offset != len(self.payload):
            raise self.error("bytes are left over after the message")
