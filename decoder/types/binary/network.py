"""Prints binary addresses, identifiers, bit strings, snapshots and WAL positions as PostgreSQL does.

Sources of the rules: network.c and inet_net_ntop.c, mac.c, uuid.c, varbit.c, tid.c, xid8funcs.c,
pg_lsn.c, char.c.
"""

from __future__ import annotations

from slotlake.decoder.types.binary.reading import Reading, utf8
from slotlake.decoder.types.text_error import TextError

_FAMILIES = {2: 4, 3: 16}  # inet.h PGSQL_AF_INET, PGSQL_AF_INET6: bytes of an address


def network(data: bytes, cidr: bool) -> str:
    """inet, without its mask if it is a single address; cidr, always with its mask.

    Raises:
        TextError: the bytes are not a network address.
    """
    reading = Reading(data)
    family, bits, is_cidr, size = (reading.u8() for _ in range(4))
    if _FAMILIES.get(family) != size or bits > 8 * size or is_cidr != cidr:
        raise TextError("a binary network address with an unknown header")
    address = reading.take(size)
    reading.end()
    text = ".".join(map(str, address)) if size == 4 else _ipv6(address)
    return f"{text}/{bits}" if cidr or bits != 8 * size else text


def _ipv6(address: bytes) -> str:
    """The longest run of two or more zero words as ``::``, an embedded IPv4 address in dots."""
    words = [int.from_bytes(address[i : i + 2], "big") for i in range(0, 16, 2)]
    first, length = _zeros(words)
    if first == 0 and (length == 6 or (length == 5 and words[5] == 0xFFFF)):
        dots = ".".join(map(str, address[12:]))
        return f"::{dots}" if length == 6 else f"::ffff:{dots}"
    if length < 2:
        return ":".join(f"{word:x}" for word in words)
    before, after = words[:first], words[first + length :]
    return ":".join(f"{word:x}" for word in before) + "::" + ":".join(f"{word:x}" for word in after)


def _zeros(words: list[int]) -> tuple[int, int]:
    """Start and length of the first longest run of zeros."""
    best = (0, 0)
    at = 0
    while at < len(words):
        end = at
        while end < len(words) and words[end] == 0:
            end += 1
        if end - at > best[1]:
            best = (at, end - at)
        at = end + 1
    return best


def mac(data: bytes, size: int) -> str:
    """Pairs of hexadecimal digits and colons.

    Raises:
        TextError: the value has another length.
    """
    if len(data) != size:
        raise TextError(f"a binary hardware address that does not have {size} bytes")
    return data.hex(":")


def uuid(data: bytes) -> str:
    """32 hexadecimal digits in five groups.

    Raises:
        TextError: the value does not have 16 bytes.
    """
    if len(data) != 16:
        raise TextError("a binary uuid that does not have 16 bytes")
    text = data.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def bits(data: bytes) -> str:
    """Ones and zeros; the unused bits of the last byte must be zero.

    Raises:
        TextError: the bytes are not a bit string.
    """
    reading = Reading(data)
    count = reading.i32()
    if count < 0 or len(data) - 4 != (count + 7) // 8:
        raise TextError("a binary bit string whose bit count does not match its length")
    if count == 0:
        return ""
    number, spare = int.from_bytes(data[4:], "big"), -count % 8
    if number & ((1 << spare) - 1):
        raise TextError("a binary bit string with bits after its end")
    # The text of one large number would take quadratic time.
    return "".join(map(_EIGHT.__getitem__, data[4:]))[:count]


_EIGHT = [f"{byte:08b}" for byte in range(256)]


def tid(data: bytes) -> str:
    """``(block,line)``."""
    reading = Reading(data)
    text = f"({reading.u32()},{reading.u16()})"
    reading.end()
    return text


def lsn(data: bytes, *, long: bool = False) -> str:
    """``high/low`` in hexadecimal; ``long``: the lower half has eight digits, as from PostgreSQL 19 on.

    Raises:
        TextError: the value does not have 8 bytes.
    """
    if len(data) != 8:
        raise TextError("a binary pg_lsn that does not have 8 bytes")
    low = int.from_bytes(data[4:], "big")
    return f"{int.from_bytes(data[:4], 'big'):X}/" + (f"{low:08X}" if long else f"{low:X}")


def snapshot(data: bytes) -> str:
    """``xmin:xmax:xip,xip``.

    Raises:
        TextError: the bytes are not a snapshot.
    """
    reading = Reading(data)
    count = reading.i32()
    least, end = reading.u64(), reading.u64()
    if count * 8 != len(data) - reading.at:
        raise TextError("a binary snapshot whose count does not match its length")
    running = reading.many(count, "Q")
    return f"{least}:{end}:{','.join(map(str, running))}"


def single_char(data: bytes) -> str:
    """The type "char": one byte; zero is the empty text, a byte that is not ASCII is octal (from 16 on).

    Raises:
        TextError: the value does not have one byte.
    """
    if len(data) != 1:
        raise TextError('a binary "char" that does not have one byte')
    return "" if data == b"\0" else utf8(data) if data < b"\x80" else f"\\{data[0]:03o}"
