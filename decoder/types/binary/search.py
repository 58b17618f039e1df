"""Prints binary text search types as PostgreSQL does, and the types of some extensions.

Sources of the rules: tsvector.c (tsvectorsend, tsvectorout), tsquery.c (tsquerysend, infix), hstore_io.c,
ltree_io.c, cube.c, and for vector the extension's own sources.
"""

from __future__ import annotations

from typing import TypeAlias

from slotlake.decoder.types.binary.numbers import float4_text, float8_text
from slotlake.decoder.types.binary.reading import Reading
from slotlake.decoder.types.text_error import TextError

_WEIGHTS = ("", "C", "B", "A")  # two bits next to a position; the lowest, D, is not printed
_VALUE, _OPERATOR = 1, 2
_NOT, _AND, _OR, _PHRASE = 1, 2, 3, 4
_PRIORITY = {_NOT: 4, _AND: 2, _OR: 1, _PHRASE: 3}
_OPERAND_PRIORITY = 9

# A text in pieces that are joined once, at the end: joining at each operator would take quadratic time.
_Rope: TypeAlias = "str | tuple[_Rope, ...]"


def tsvector(data: bytes) -> str:
    """Each lexeme in quotes with its positions and their weights."""
    reading = Reading(data)
    words = []
    for _ in range(reading.count(3)):
        lexeme, count = _lexeme(reading.string()), reading.u16()
        positions = reading.many(count, "H")
        places = ",".join(f"{place & 0x3FFF}{_WEIGHTS[place >> 14]}" for place in positions)
        words.append(f"{lexeme}:{places}" if places else lexeme)
    reading.end()
    return " ".join(words)


def _lexeme(text: str) -> str:
    doubled = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{doubled}'"


def tsquery(data: bytes) -> str:
    """The operators between their operands, with as few brackets as their priorities need.

    In binary an operator is before its right operand, and that before the left one.  So, read from the end,
    all operands come before their operator.

    Raises:
        TextError: the bytes are not a tsquery.
    """
    items = _query_items(data)
    done: list[tuple[_Rope, int]] = []  # texts and their operators; 0 for an operand
    for item in reversed(items):
        if isinstance(item, str):
            done.append((item, 0))
            continue
        operator, distance = item
        if len(done) < (1 if operator == _NOT else 2):
            raise TextError("a binary tsquery whose operators lack operands")
        right_operand = _bracketed(*done.pop(), operator, right=True)
        if operator == _NOT:
            done.append((("!", right_operand), operator))
            continue
        left_operand = _bracketed(*done.pop(), operator, right=False)
        done.append(((left_operand, _symbol(operator, distance), right_operand), operator))
    if len(done) > 1 or (items and not done):
        raise TextError("a binary tsquery whose operands lack operators")
    return _joined(done[0][0]) if done else ""


def _query_items(data: bytes) -> list[str | tuple[int, int]]:
    reading = Reading(data)
    items: list[str | tuple[int, int]] = []
    for _ in range(reading.count(2)):
        form = reading.u8()
        if form == _VALUE:
            items.append(_operand(reading))
        elif form == _OPERATOR and (operator := reading.u8()) in _PRIORITY:
            items.append((operator, reading.u16() if operator == _PHRASE else 0))
        else:
            raise TextError("a binary tsquery with an unknown item")
    reading.end()
    return items


def _operand(reading: Reading) -> str:
    weights, prefix = reading.u8(), reading.u8()
    if weights > 15:
        raise TextError("a binary tsquery with unknown weights")
    letters = "".join(letter for i, letter in enumerate("ABCD") if weights >> (3 - i) & 1)
    flags = ("*" if prefix else "") + letters
    return _lexeme(reading.string()) + (":" + flags if flags else "")


def _bracketed(text: _Rope, operator: int, parent: int, *, right: bool) -> _Rope:
    rank = _PRIORITY.get(operator, _OPERAND_PRIORITY)
    phrase = right and operator == parent == _PHRASE  # not associative
    return ("( ", text, " )") if rank < _PRIORITY[parent] or phrase else text


def _symbol(operator: int, distance: int) -> str:
    if operator == _PHRASE:
        return " <-> " if distance == 1 else f" <{distance}> "
    return " & " if operator == _AND else " | "


def _joined(rope: _Rope) -> str:
    pieces: list[str] = []
    stack = [rope]
    while stack:
        piece = stack.pop()
        if isinstance(piece, str):
            pieces.append(piece)
        else:
            stack.extend(reversed(piece))
    return "".join(pieces)


def versioned(data: bytes) -> str:
    """A one and then the type's own text: jsonb, jsonpath, ltree and its queries.

    Raises:
        TextError: the version is not 1.
    """
    reading = Reading(data)
    if reading.u8() != 1:
        raise TextError("a binary value with an unknown version")
    return reading.text(len(data) - 1)


def hstore(data: bytes) -> str:
    """``"key"=>"value"`` or ``"key"=>NULL``."""
    reading = Reading(data)
    pairs = []
    for _ in range(reading.count(8)):
        key = reading.text(reading.i32())
        size = reading.i32()
        value = "NULL" if size == -1 else _quoted(reading.text(size))
        pairs.append(f"{_quoted(key)}=>{value}")
    reading.end()
    return ", ".join(pairs)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def vector(data: bytes) -> str:
    """``[1,2,3]``.

    Raises:
        TextError: the bytes are not a vector.
    """
    reading = Reading(data)
    count, spare = reading.u16(), reading.u16()
    if spare != 0:
        raise TextError("a binary vector with an unknown header")
    values = reading.many(count, "f")
    reading.end()
    return "[" + ",".join(map(float4_text, values)) + "]"


def cube(data: bytes) -> str:
    """``(1, 2),(3, 4)``, or one corner if it is a point.

    Raises:
        TextError: the bytes are not a cube.
    """
    reading = Reading(data)
    header = reading.u32()
    size, point = header & 0x7FFFFFFF, header >> 31
    if size * (8 if point else 16) != len(data) - 4:
        raise TextError("a binary cube whose count does not match its length")
    corners = [reading.many(size, "d") for _ in range(1 if point else 2)]
    return ",".join("(" + ", ".join(map(float8_text, corner)) + ")" for corner in corners)
