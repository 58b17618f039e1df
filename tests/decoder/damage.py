"""Ways to damage a stream: bytes, lengths and counts, whole messages, pieces of other streams."""

from __future__ import annotations

import random

from tests.decoder.agreement import Stream

_BYTES = [0, 1, 2, 3, 0x7F, 0x80, 0xFF, *b"BCORYIUDTMSEcAbPKrpKONntu"]
_NUMBERS = [bytes(2), b"\0\1", b"\xff\xff", bytes(4), b"\0\0\0\1", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"]
_LONG = [b"\xff" * 8, b"\x7f" + b"\xff" * 7, bytes(8), b"\x80" + bytes(7)]


def damaged(draw: random.Random, stream: Stream, others: list[Stream]) -> Stream:
    """The stream with one to three things wrong with it (some are not: a flag may be a legal one)."""
    found = list(stream)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        if found and draw.random() < 0.8:
            at = draw.randrange(len(found))
            lsn, payload = found[at]
            found[at] = (lsn, _bytes(draw, payload))
        else:
            _messages(draw, found, others)
    return found


def _bytes(draw: random.Random, payload: bytes) -> bytes:  # noqa: PLR0911 - one way a line
    if not payload:
        return draw.randbytes(draw.randrange(1, 5))
    at = draw.randrange(len(payload))
    choice = draw.randrange(8)
    if choice == 0:
        return payload[:at] + bytes([payload[at] ^ (1 << draw.randrange(8))]) + payload[at + 1 :]
    if choice == 1:
        return payload[:at] + bytes([draw.choice(_BYTES)]) + payload[at + 1 :]
    if choice == 2:
        return payload[:at]
    if choice == 3:
        return payload + draw.randbytes(draw.randrange(1, 9))
    if choice == 4:
        return payload[:at] + draw.randbytes(draw.randrange(1, 5)) + payload[at:]
    if choice == 5:
        return payload[:at] + payload[at + draw.randrange(1, 5) :]
    number = draw.choice(_NUMBERS if choice == 6 else _LONG)
    return payload[:at] + number + payload[at + len(number) :]


def _messages(draw: random.Random, found: Stream, others: list[Stream]) -> None:
    at = draw.randrange(len(found) + 1)
    choice = draw.randrange(5)
    if choice == 0 and found:
        del found[at - 1]
    elif choice == 1 and found:
        found.insert(at, draw.choice(found))
    elif choice == 2 and len(found) > 1:
        other = draw.randrange(len(found))
        found[at - 1], found[other] = found[other], found[at - 1]
    elif choice == 3:
        found.insert(at, (0, draw.randbytes(draw.randrange(20))))
    else:
        other_stream = draw.choice(others)
        start = draw.randrange(len(other_stream) + 1)
        found[at:] = other_stream[start:]
