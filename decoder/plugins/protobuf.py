"""The part of the protobuf wire format that decoderbufs uses (protobuf.dev, "Encoding").

    message = (tag value)*        tag = varint(field << 3 | wire)
    wire 0: varint   1: 8 bytes, little-endian   2: varint length, bytes   5: 4 bytes, little-endian

Invariant: each field is known, has the wire type that its message declares, and comes once unless it is
repeated; every byte belongs to a field.  Anything else is an error with its offset.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slotlake.decoder.errors import ProtocolError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX = 10


@dataclass(frozen=True)
class Field:
    """One declared field: its name, wire type, and whether it may come again."""

    name: str
    wire: int
    repeated: bool = False


class Fields(dict[str, Any]):
    """The fields of a message, by name; a repeated one as a list; nested messages as (start, end)."""


class Wire:
    """Reads messages from one payload.

    Args:
        payload: the bytes.
        fail: makes the error from its text and the offset.
    """

    def __init__(self, payload: bytes, fail: Callable[[str, int], ProtocolError]) -> None:
        self.payload = payload
        self._fail = fail

    def message(self, declared: Mapping[int, Field], start: int, end: int) -> Fields:
        """Return the fields of the message in ``payload[start:end]``.

        Args:
            start, end: offsets into the payload.

        Raises:
            ProtocolError: the bytes are not such a message.
        """
        fields = Fields()
        at = start
        while at < end:
            tag_at = at
            tag, at = self._varint(at, end)
            field = declared.get(tag >> 3)
            if field is None:
                raise self._fail(f"the message has the unknown field {tag >> 3}", tag_at)
            if field.wire != tag & 7:
                raise self._fail(f"field {field.name} has wire type {tag & 7}, not {field.wire}", tag_at)
            value, at = self._value(field.wire, at, end)
            if field.repeated:
                fields.setdefault(field.name, []).append(value)
            elif field.name in fields:
                raise self._fail(f"field {field.name} comes twice", tag_at)
            else:
                fields[field.name] = value
        return fields

    def bytes(self, place: tuple[int, int]) -> bytes:
        """The content of a length-delimited field."""
        return self.payload[place[0] : place[1]]

    def text(self, place: tuple[int, int]) -> str:
        """The content of a length-delimited field as text.

        Raises:
            ProtocolError: the bytes are not UTF-8.
        """
        try:
            return self.bytes(place).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._fail("the text is not UTF-8", place[0] + error.start) from None

    def _value(self, wire: int, at: int, end: int) -> tuple[Any, int]:
        if wire == VARINT:
            return self._varint(at, end)
        if wire == BYTES:
            length, at = self._varint(at, end)
            self._room(at, length, end)
            return (at, at + length), at + length
        size, layout = (8, "<d") if wire == FIXED64 else (4, "<f")
        self._room(at, size, end)
        return struct.unpack_from(layout, self.payload, at)[0], at + size

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = 0
        for i in range(_VARINT_BYTES_MAX):
            self._room(at, 1, end)
            byte = self.payload[at]
            value |= (byte & 0x7F) << (7 * i)
            at += 1
            if byte < 0x80:
                if value >= 1 << 64:
                    break
                return value, at
        raise self._fail("a number does not fit into 64 bits", at)

    def _room(self, at: int, length: int, end: int) -> None:
        if at + length > end:
            raise self._fail("the message ends too early", at)
