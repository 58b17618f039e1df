"""Binary values that contain others: arrays, composites, ranges, multiranges, domains.

Owns their layout and their quoting rules (array_out, record_out, range_bound_escape).  Invariant: an
element count is checked against the number of bytes after it, nesting has a limit, and a text is not longer
than PostgreSQL itself can print.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import partial

from slotlake.decoder.types.binary.reading import Reading, utf8
from slotlake.decoder.types.catalog import Kind, TypeCatalog, TypeEntry
from slotlake.decoder.types.text_error import TextError

Printer = Callable[[bytes], str]

AS_TEXT = "it can only be read as text"  # ends the reason for types that cannot be read in binary
_TEXT_CHARS_MAX = 2**30 - 1  # memutils.h MaxAllocSize
_DEPTH_MAX = 64  # of composites in arrays in composites …
_DIMENSIONS_MAX = 6  # array.h MAXDIM
_INT32_MAX = 2**31 - 1
_EMPTY, _LOWER_IN, _UPPER_IN, _NO_LOWER, _NO_UPPER = 1, 2, 4, 8, 16  # rangetypes.h

_IN_RECORD = re.compile(r'[\s"\\(),]', re.ASCII)
_IN_RANGE = re.compile(r'[\s"\\()\[\],]', re.ASCII)


class Containers:
    """Finds a type's printer; ``base`` gives that of a base type."""

    def __init__(
        self, catalog: TypeCatalog, base: Callable[[TypeEntry, TypeCatalog], Printer], depth: int = 0
    ) -> None:
        self._catalog = catalog
        self._base = base
        self._depth = depth
        self._printers: dict[int, Printer] = {}  # of the types inside, which each value needs
        self._delimiters: dict[int, tuple[str, re.Pattern[str]]] = {}

    def printer(self, oid: int) -> Printer:
        """Return the function that prints values of a type.

        Raises:
            TextError: the type is not known, or its binary format cannot be read.
        """
        entry = self._catalog.resolved(oid)
        if entry is None or entry.kind is Kind.UNKNOWN:
            name = entry.name if entry else f"OID {oid}"
            raise TextError(
                f"a binary value of type {name}, which is not in the source's catalog (any more); {AS_TEXT}"
            )
        if self._depth > _DEPTH_MAX:
            raise TextError("a binary value that is nested too deeply")
        return self._printer(entry)

    def _printer(self, entry: TypeEntry) -> Printer:
        if entry.kind is Kind.ENUM:
            return utf8
        if entry.kind is Kind.COMPOSITE:
            return self._composite
        if entry.kind in {Kind.RANGE, Kind.MULTIRANGE}:
            part = self._inside(entry.of)
            return partial(_range if entry.kind is Kind.RANGE else _multirange, part=part)
        if entry.of:
            method = self._array if entry.kind is Kind.ARRAY else self._vector
            return partial(method, element=entry.of)
        return self._base(entry, self._catalog)

    def _inside(self, oid: int) -> Printer:
        printer = self._printers.get(oid)
        if printer is None:
            printer = Containers(self._catalog, self._base, self._depth + 1).printer(oid)
            self._printers[oid] = printer
        return printer

    def _array(self, data: bytes, element: int) -> str:
        reading = Reading(data)
        sizes, bounds, inner = _array_header(reading, element)
        if not sizes:
            reading.end()
            return "{}"
        if 0 in sizes:
            raise TextError("a binary array with an empty dimension")
        delimiter, special = self._delimiter(inner)
        texts = _within(
            "NULL" if each is None else _array_element(each, special)
            for each in _elements(reading, sizes, self._inside(inner))
        )
        for size in reversed(sizes):
            groups = (texts[i : i + size] for i in range(0, len(texts), size))
            texts = [f"{{{delimiter.join(group)}}}" for group in groups]
        if all(bound == 1 for bound in bounds):
            return texts[0]
        ranges = zip(bounds, sizes, strict=True)
        return "".join(f"[{low}:{low + size - 1}]" for low, size in ranges) + "=" + texts[0]

    def _delimiter(self, oid: int) -> tuple[str, re.Pattern[str]]:
        """The delimiter between elements of a type, and the pattern of characters that need quotes."""
        if oid not in self._delimiters:
            entry = self._catalog.resolved(oid)
            delimiter = entry.delimiter if entry else ","
            # The same white space as for array_isspace and, in usual locales, isspace.
            self._delimiters[oid] = delimiter, re.compile(rf'[\s"\\{{}}{re.escape(delimiter)}]', re.ASCII)
        return self._delimiters[oid]

    def _vector(self, data: bytes, element: int) -> str:
        """int2vector and oidvector: an array in binary; its text is numbers and blanks."""
        reading = Reading(data)
        sizes, _, inner = _array_header(reading, element)
        if len(sizes) != 1:
            raise TextError("a binary vector that does not have exactly one dimension")
        return " ".join(each or "" for each in _elements(reading, sizes, self._inside(inner)))

    def _composite(self, data: bytes) -> str:
        """A value contains the types of its fields, so it can be read even if the type has changed since."""
        reading = Reading(data)
        return "(" + ",".join(_within(self._fields(reading, reading.count(8)))) + ")"

    def _fields(self, reading: Reading, count: int) -> Iterator[str]:
        for _ in range(count):
            oid, part = reading.u32(), reading.sized()
            yield "" if part is None else _doubled(self._inside(oid)(part), _IN_RECORD)
        reading.end()


def _array_header(reading: Reading, element: int) -> tuple[list[int], list[int], int]:
    """Sizes and lower bounds of the dimensions, and the element type."""
    dimensions, flags, inner = reading.i32(), reading.i32(), reading.u32()
    if not 0 <= dimensions <= _DIMENSIONS_MAX or flags not in {0, 1}:
        raise TextError("a binary array with an unknown header")
    if element not in {0, inner}:
        raise TextError("a binary array whose elements have another type than the column's elements")
    pairs = [(reading.i32(), reading.i32()) for _ in range(dimensions)]
    total = 1
    for size, low in pairs:
        total *= size
        if size < 0 or low + size > _INT32_MAX:
            raise TextError("a binary array with a dimension out of range")
    if pairs and total * 4 > len(reading.data) - reading.at:
        raise TextError("a binary array whose element count is too large for its bytes")
    return [size for size, _ in pairs], [low for _, low in pairs], inner


def _elements(reading: Reading, sizes: list[int], printer: Printer) -> Iterator[str | None]:
    for _ in range(math.prod(sizes)):
        part = reading.sized()
        yield None if part is None else printer(part)
    reading.end()


def _within(texts: Iterator[str]) -> list[str]:
    """The texts, after a check that together they are not longer than one text may be."""
    chars, accepted = 0, []
    for text in texts:
        chars += len(text) + 1
        if chars > _TEXT_CHARS_MAX:
            raise TextError("a binary value whose text is longer than PostgreSQL can print")
        accepted.append(text)
    return accepted


def _array_element(text: str, special: re.Pattern[str]) -> str:
    if text and not special.search(text) and not (len(text) == 4 and text.lower() == "null"):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _doubled(text: str, special: re.Pattern[str]) -> str:
    """A composite's field or a range's bound: quotes and backslashes are doubled."""
    if text and not special.search(text):
        return text
    doubled = text.replace("\\", "\\\\").replace('"', '""')
    return f'"{doubled}"'


def _range(data: bytes, part: Printer) -> str:
    reading = Reading(data)
    flags = reading.u8()
    text = "empty"
    if flags != _EMPTY:
        closed_nowhere = (_LOWER_IN | _NO_LOWER, _UPPER_IN | _NO_UPPER)
        if flags > 31 or flags & _EMPTY or any(flags & both == both for both in closed_nowhere):
            raise TextError("a binary range with unknown flags")
        low = "" if flags & _NO_LOWER else _bound(reading, part)
        high = "" if flags & _NO_UPPER else _bound(reading, part)
        text = f"{'[' if flags & _LOWER_IN else '('}{low},{high}{']' if flags & _UPPER_IN else ')'}"
    reading.end()
    return text


def _bound(reading: Reading, printer: Printer) -> str:
    part = reading.sized()
    if part is None:
        raise TextError("a binary range with a NULL bound")
    return _doubled(printer(part), _IN_RANGE)


def _multirange(data: bytes, part: Printer) -> str:
    reading = Reading(data)
    count = reading.count(5)
    texts = _within(part(reading.take(reading.i32())) for _ in range(count))
    reading.end()
    return "{" + ",".join(texts) + "}"
