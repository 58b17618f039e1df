"""Reading one message from front to back: the integers, strings, positions and times of the protocol.

Invariant: nothing is read beyond the message's end, and every refusal names the message's type and the
byte at which it was refused.  Integers are big-endian, strings UTF-8 ending in a zero byte.
"""

from __future__ import annotations

from slotlake.decoder.errors import ProtocolError

LSN_MAX = 2**63 - 1  # positions are kept as signed 64-bit integers
EPOCH_MICROSECONDS = 946_684_800_000_000  # from 1970-01-01 to PostgreSQL's 2000-01-01
TIME_MIN, TIME_MAX = -63_082_281_600_000_000, 252_455_615_999_999_999  # years 1 to 9999, from 2000


class Cursor:
    """A place in one message, moved forward by reading.

    Attributes:
        payload: the message, tag included.
        offset: how much of it was read.
        message_type: its tag, "" when it is empty.
        binary: whether binary values were asked for.
        parallel: whether an abort tells its position and time (streaming 'parallel').
        any_bytes: whether a value may be no UTF-8: it then comes with surrogate escapes.
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

    def error(self, what: str, offset: int | None = None) -> ProtocolError:
        """The refusal of what stands at ``offset``, or of what comes next."""
        where = self.offset if offset is None else offset
        return ProtocolError(what, message_type=self.message_type, offset=where)

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
        """An integer of so many bytes."""
        return int.from_bytes(self.take(length), "big")

    def signed(self, length: int) -> int:
        """A signed integer of so many bytes."""
        return int.from_bytes(self.take(length), "big", signed=True)

    def text(self, raw: bytes, offset: int) -> str:
        """Bytes read at ``offset`` as text.

        Raises:
            ProtocolError: the bytes are not UTF-8.
        """
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error("text that is not UTF-8", offset) from None

    def value(self, length: int) -> str:
        """Return the next ``length`` bytes as a value's text.

        Raises:
            ProtocolError: the message ends too early, or the bytes are not UTF-8 and have to be.
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
            raise self.error("a string without its end")
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
        """Return a position; 0 stands for none where none is needed.

        Raises:
            ProtocolError: it is not set, or lies beyond the end of all WAL.
        """
        value = self.unsigned(8)
        if value > LSN_MAX:
            raise self.error("a position beyond the end of all WAL", self.offset - 8)
        if required and value == 0:
            raise self.error("a position is not set", self.offset - 8)
        return value

    def time(self) -> int:
        """Return a time in microseconds since 1970-01-01 UTC.

        Raises:
            ProtocolError: it lies outside the years 1 to 9999.
        """
        value = self.signed(8)
        if not TIME_MIN <= value <= TIME_MAX:
            raise self.error("a time outside the years 1 to 9999", self.offset - 8)
        return value + EPOCH_MICROSECONDS

    def xid(self) -> int:
        """Return the id of a transaction or subtransaction, which is never 0.

        Raises:
            ProtocolError: it is 0.
        """
        value = self.unsigned(4)
        if value == 0:
            raise self.error("a transaction's number is not set", self.offset - 4)
        return value

    def end(self) -> None:
        """Check that no bytes are left.

        Raises:
            ProtocolError: some are.
        """
        if self.offset != len(self.payload):
            raise self.error("bytes are left over after the message")
