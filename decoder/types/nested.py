"""Reads PostgreSQL's text of arrays, ranges and composites into Arrow lists and structs, and prints it again.

It reads the output of array_out, range_out and record_out, whole columns at a time.  A text that the Arrow
type cannot hold becomes null.  The caller compares the printed text with the original one, so nothing is lost
even if this module accepts a text that the output function does not write.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.compiled.arrays import nulls
from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.types.column_type import ColumnType
from slotlake.decoder.types.table import from_text, to_text

# The same white space as for array_isspace and, in usual locales, isspace.
_SPACE = r"\t\n\v\f\r "
_IN_RANGE = rf'[{_SPACE}"\\()\[\],]'
_IN_RECORD = rf'[{_SPACE}"\\(),]'
_QUOTED = r'"(?:[^"\\]|""|\\\\)*"'


class NestedTexts(Protocol):
    """One way to read and print; ``arrow`` and ``spark``: the type of the column."""

    @property
    def arrow(self) -> pa.DataType: ...
    @property
    def spark(self) -> str: ...

    def parsed(self, texts: pa.Array) -> pa.Array:
        """Values of type ``arrow``; null if there is no text, or if the type cannot hold it."""

    def printed(self, values: pa.Array) -> pa.Array:
        """Texts, null for null."""


class ListTexts:
    """Arrays with one dimension that begins at 1, as lists."""

    def __init__(self, element: ColumnType, delimiter: str) -> None:
        self.arrow: pa.DataType = pa.list_(pa.field("element", element.arrow))
        self.spark = f"array<{element.spark}>"
        self._element = element
        self._delimiter = delimiter
        escaped = re.escape(delimiter)
        self._special = rf'[{_SPACE}"\\{{}}{escaped}]'
        self._token = re.compile(rf'"((?:[^"\\]|\\.)*)"|([^"\\{{}}{escaped}]+)', re.DOTALL)

    def parsed(self, texts: pa.Array) -> pa.Array:
        """Arrow splits plain arrays; arrays with quotes are read one by one."""
        plain = pc.match_substring_regex(texts, r'^\{[^"\\{}]*\}$')
        inner = pc.utf8_slice_codeunits(pc.if_else(plain, texts, "{}"), 1, -1)
        split = pc.split_pattern(inner, self._delimiter)
        lists = pc.if_else(pc.equal(inner, ""), pa.scalar([], pa.list_(pa.string())), split)
        unquoted = _nulls_where_named(lists)
        odd = np.flatnonzero(_flags(pc.and_(pc.invert(plain), texts.is_valid())))
        absent = ~_flags(plain)
        elements = _replaced(unquoted, absent, {i: self._taken_apart(texts[i].as_py()) for i in odd.tolist()})
        return self._typed(elements)

    def printed(self, values: pa.Array) -> pa.Array:
        """Print arrays with the same quotes as array_out."""
        assert isinstance(values, pa.ListArray)
        flat = values.flatten()
        texts = to_text(flat, None, self._element).cast(pa.string())
        special = pc.or_(pc.match_substring_regex(texts, self._special), pc.equal(texts, ""))
        special = pc.or_(special, pc.equal(pc.ascii_lower(texts), "null"))
        escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
        quoted = pc.binary_join_element_wise('"', escaped, '"', "")
        elements = pc.fill_null(pc.if_else(special, quoted, texts), "NULL")
        joined = pc.binary_join(_lists(values, elements), self._delimiter)
        printed: pa.Array = pc.binary_join_element_wise("{", joined, "}", "")
        return printed

    def _taken_apart(self, text: str) -> list[str | None] | None:
        if not text.startswith("{") or not text.endswith("}"):
            return None
        elements: list[str | None] = []
        at, end = 1, len(text) - 1
        while at < end:
            token = self._token.match(text, at, end)
            if token is None or (token.end() < end and text[token.end()] != self._delimiter):
                return None
            word = token[2]
            elements.append(re.sub(r"\\(.)", r"\1", token[1], flags=re.DOTALL) if word is None else word)
            if word == "NULL":
                elements[-1] = None
            at = token.end() + 1
        return elements

    def _typed(self, elements: pa.ListArray) -> pa.Array:
        values = _values(elements.flatten(), self._element)
        return _lists(elements, values).cast(self.arrow)


class RangeTexts:
    """Ranges as structs; a null bound is infinite; the bounds of an empty range have no meaning."""

    _PATTERN = (
        rf'^(?P<left>[\[(])(?P<lower>{_QUOTED}|[^"\\,]*),(?P<upper>{_QUOTED}|[^"\\,)\]]*)(?P<right>[\])])$'
    )

    def __init__(self, bound: ColumnType) -> None:
        kinds = [("lower", bound.arrow), ("upper", bound.arrow)]
        kinds += [(name, pa.bool_()) for name in ("lower_inc", "upper_inc", "empty")]
        self.arrow = pa.struct(kinds)
        flags = "lower_inc: boolean, upper_inc: boolean, empty: boolean"
        self.spark = f"struct<lower: {bound.spark}, upper: {bound.spark}, {flags}>"
        self._bound = bound

    def parsed(self, texts: pa.Array) -> pa.Array:
        """Read all ranges by one regular expression."""
        empty = pc.fill_null(pc.equal(texts, "empty"), False)
        groups = pc.extract_regex(pc.if_else(empty, "(,)", texts), self._PATTERN)
        left, lower, upper, right = (pc.struct_field(groups, name) for name in _RANGE_PARTS)
        arrays = [
            _values(_unquoted(lower), self._bound),
            _values(_unquoted(upper), self._bound),
            pc.equal(left, "["),
            pc.equal(right, "]"),
            empty,
        ]
        return _structs(arrays, self.arrow, groups.is_null())

    def printed(self, values: pa.Array) -> pa.Array:
        """Print ranges as range_deparse does."""
        lower, upper = (
            _quoted(to_text(pc.struct_field(values, name), None, self._bound), _IN_RANGE)
            for name in ("lower", "upper")
        )
        left = pc.if_else(pc.struct_field(values, "lower_inc"), "[", "(")
        right = pc.if_else(pc.struct_field(values, "upper_inc"), "]", ")")
        whole = pc.binary_join_element_wise(left, lower, ",", upper, right, "")
        printed: pa.Array = pc.if_else(pc.struct_field(values, "empty"), "empty", whole)
        return printed


_RANGE_PARTS = ("left", "lower", "upper", "right")


class RecordTexts:
    """Composites as structs, field by field."""

    def __init__(self, fields: Sequence[tuple[str, ColumnType]]) -> None:
        self.arrow = pa.struct([(name, kind.arrow) for name, kind in fields])
        written = ", ".join(f"`{name.replace('`', '``')}`: {kind.spark}" for name, kind in fields)
        self.spark = f"struct<{written}>"
        self._kinds = [kind for _, kind in fields]
        parts = (rf'(?P<f{i}>{_QUOTED}|[^"\\(),]*)' for i in range(len(fields)))
        self._pattern = rf"^\({','.join(parts)}\)$"

    def parsed(self, texts: pa.Array) -> pa.Array:
        """Read all composites by one regular expression."""
        groups = pc.extract_regex(texts, self._pattern)
        arrays = [
            _values(_unquoted(pc.struct_field(groups, f"f{i}")), kind) for i, kind in enumerate(self._kinds)
        ]
        return _structs(arrays, self.arrow, groups.is_null())

    def printed(self, values: pa.Array) -> pa.Array:
        """Print composites as record_out does."""
        parts: list[pa.Array | str] = []
        for i, kind in enumerate(self._kinds):
            parts += [",", _quoted(to_text(pc.struct_field(values, i), None, kind), _IN_RECORD)]
        joined = pc.binary_join_element_wise("(", *parts[1:], ")", "")
        printed: pa.Array = pc.if_else(values.is_null(), pa.scalar(None, pa.string()), joined)
        return printed


def _values(texts: pa.Array, kind: ColumnType) -> pa.Array:
    """Typed values of texts; null also if a value does not fit its type, or is not a text of it.

    The fields of a composite may have had other types when a value was written.
    """
    try:
        return from_text(texts, kind)[0].cast(kind.arrow)
    except ProtocolError:
        return pa.concat_arrays([_value(texts.slice(i, 1), kind) for i in range(len(texts))])


def _value(text: pa.Array, kind: ColumnType) -> pa.Array:
    try:
        return from_text(text, kind)[0].cast(kind.arrow)
    except ProtocolError:
        return nulls(1, kind.arrow)


def _unquoted(parts: pa.Array) -> pa.Array:
    """A bound or a field without its quotes; an empty one without quotes is null."""
    quoted = pc.starts_with(parts, '"')
    inner = pc.utf8_slice_codeunits(pc.if_else(quoted, parts, '""'), 1, -1)
    inner = pc.replace_substring(pc.replace_substring(inner, '""', '"'), "\\\\", "\\")
    plain = pc.if_else(pc.equal(parts, ""), pa.scalar(None, pa.string()), parts)
    texts: pa.Array = pc.if_else(quoted, inner, plain)
    return texts


def _quoted(texts: pa.Array, special: str) -> pa.Array:
    """The inverse of `_unquoted`."""
    texts = texts.cast(pa.string())
    needed = pc.or_(pc.match_substring_regex(texts, special), pc.equal(texts, ""))
    doubled = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '""')
    quoted = pc.binary_join_element_wise('"', doubled, '"', "")
    written: pa.Array = pc.fill_null(pc.if_else(needed, quoted, texts), "")
    return written


def _structs(arrays: list[pa.Array], kind: pa.StructType, absent: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays(
        [array.cast(field.type) for array, field in zip(arrays, kind, strict=True)],
        fields=list(kind),
        mask=absent,
    )


def _nulls_where_named(lists: pa.ListArray) -> pa.ListArray:
    """The lists; elements with the text NULL (without quotes) are null."""
    flat = lists.flatten()
    return _lists(lists, pc.if_else(pc.equal(flat, "NULL"), pa.scalar(None, pa.string()), flat))


def _lists(shape: pa.ListArray, elements: pa.Array) -> pa.ListArray:
    """Lists of these elements, with the lengths and nulls of ``shape``."""
    lengths = pc.fill_null(pc.list_value_length(shape), 0)
    offsets = np.zeros(len(shape) + 1, np.int32)
    np.cumsum(lengths.to_numpy(zero_copy_only=False), out=offsets[1:])
    from_arrays: Any = pa.ListArray.from_arrays  # the stubs want offsets and masks of other types
    lists: pa.ListArray = from_arrays(pa.array(offsets), elements, mask=shape.is_null())
    return lists


def _replaced(
    lists: pa.ListArray, absent: np.ndarray, others: dict[int, list[str | None] | None]
) -> pa.ListArray:
    """The lists, null where ``absent`` is set, with ``others`` instead of some of them."""
    if not others:
        taken = pa.array(np.arange(len(lists)), mask=absent)
        return lists.take(taken)
    extra = pa.array(list(others.values()), pa.list_(pa.string()))
    where = np.arange(len(lists))
    where[list(others)] = len(lists) + np.arange(len(others))
    absent = absent.copy()
    absent[list(others)] = False
    both = pa.concat_arrays([lists.cast(extra.type), extra])
    return cast("pa.ListArray", both.take(pa.array(where, mask=absent)))


def _flags(array: pa.Array) -> np.ndarray:
    return np.asarray(pc.fill_null(array, False).to_numpy(zero_copy_only=False), bool)
