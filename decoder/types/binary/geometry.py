"""Prints binary geometric types as PostgreSQL does (geo_ops.c): shortest digits, brackets by type."""

from __future__ import annotations

from slotlake.decoder.types.binary.numbers import float8_text
from slotlake.decoder.types.binary.reading import Reading
from slotlake.decoder.types.text_error import TextError


def point(data: bytes) -> str:
    """``(x,y)``."""
    return _points(data, 1)


def lseg(data: bytes) -> str:
    """``[(x,y),(x,y)]``."""
    return f"[{_points(data, 2)}]"


def box(data: bytes) -> str:
    """The upper right corner and the lower left: ``(x,y),(x,y)``."""
    return _points(data, 2)


def line(data: bytes) -> str:
    """``{A,B,C}`` of Ax + By + C = 0."""
    return "{" + ",".join(_floats(data, 3)) + "}"


def circle(data: bytes) -> str:
    """``<(x,y),r>``."""
    x, y, radius = _floats(data, 3)
    return f"<({x},{y}),{radius}>"


def path(data: bytes) -> str:
    """In round brackets if closed, in square ones if open.

    Raises:
        TextError: the bytes are not a path.
    """
    reading = Reading(data)
    closed = reading.u8()
    if closed > 1:
        raise TextError("a binary path that is neither open nor closed")
    points = _counted(reading)
    return f"({points})" if closed else f"[{points}]"


def polygon(data: bytes) -> str:
    """``((x,y),…)``."""
    return f"({_counted(Reading(data))})"


def _counted(reading: Reading) -> str:
    count = reading.count(16)
    return _points(reading.data[reading.at :], count)


def _points(data: bytes, count: int) -> str:
    numbers = _floats(data, 2 * count)
    return ",".join(f"({x},{y})" for x, y in zip(numbers[::2], numbers[1::2], strict=True))


def _floats(data: bytes, count: int) -> list[str]:
    reading = Reading(data)
    values = reading.many(count, "d")
    reading.end()
    return [float8_text(value) for value in values]
