"""Representations of a lake column by choice, not by the table of types: text, list, struct, decimal.

A representation is chosen per column and stored with the lake's table (``LakeColumn.form``); "" means the
table of types.  It converts the change log's pair of typed value and exact text into the pair that the lake
stores.

Invariant: ``text(*keep(typed, exact))`` is the text of ``(typed, exact)``.  For lists and structs this is
checked value by value: a value that would not print as the same text again (an array of two dimensions, one
that does not begin at 1, an infinite date within a range) is NULL there, and its text goes to the column with
exact texts.  So the pair is a function of the text, and two values are equal if their pairs are equal.  A
decimal that is equal to its value stays, even if it prints otherwise (`1.50`): its text stands next to it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.compiled.wide import alike, narrow_pieces, one_array
from slotlake.decoder.errors import LAKE_ALTERED, LakeError
from slotlake.decoder.types import oids
from slotlake.decoder.types.column_type import ColumnType
from slotlake.decoder.types.nested import ListTexts, NestedTexts, RangeTexts, RecordTexts
from slotlake.decoder.types.table import column_type, to_text

Pair: TypeAlias = "tuple[pa.Array | pa.ChunkedArray, pa.Array | pa.ChunkedArray | None]"
_CACHED_MAX = 1 << 12

AS_TEXT = json.dumps(["text"])


@dataclass(frozen=True)
class Representation:
    """A column with the types of the table of types.

    Attributes:
        type: the column's type.
        arrow, spark: types of the lake's column.
        inexact: some values do not fit; their text goes to the column with exact texts.
    """

    type: ColumnType
    arrow: pa.DataType
    spark: str
    inexact: bool

    @property
    def typed(self) -> bool:
        """True for the types of the table of types, which need no conversion."""
        return type(self) is Representation

    def keep(self, typed: pa.Array | pa.ChunkedArray, exact: pa.Array | pa.ChunkedArray | None) -> Pair:
        """The lake's pair for the change log's pair."""
        return typed, exact

    def text(self, typed: pa.Array | pa.ChunkedArray, exact: pa.Array | pa.ChunkedArray | None) -> pa.Array:
        """PostgreSQL's text for the lake's pair."""
        return to_text(typed, exact, self.type)


@dataclass(frozen=True)
class TextRepresentation(Representation):
    """The column is its canonical text; every value fits."""

    def keep(self, typed: pa.Array | pa.ChunkedArray, exact: pa.Array | pa.ChunkedArray | None) -> Pair:
        """The text, without exact texts."""
        return to_text(typed, exact, self.type), None

    def text(self, typed: pa.Array | pa.ChunkedArray, exact: pa.Array | pa.ChunkedArray | None) -> pa.Array:
        """The column itself."""
        return one_array(typed)


@dataclass(frozen=True)
class NestedRepresentation(Representation):
    """The column is a list or a struct."""

    texts: NestedTexts

    def keep(self, typed: pa.Array | pa.ChunkedArray, exact: pa.Array | pa.ChunkedArray | None) -> Pair:
        """The values that print as the same text again, and the exact text of all others."""
        pairs = [self._fitting_pair(piece) for piece in narrow_pieces(one_array(typed))]
        if len(pairs) == 1:
            return pairs[0]
        nothing = [pa.nulls(len(parsed), pa.string()) if text is None else text for parsed, text in pairs]
        return pa.chunked_array([parsed for parsed, _ in pairs]), pa.chunked_array(nothing)

    def _fitting_pair(self, texts: pa.Array) -> tuple[pa.Array, pa.Array | None]:
        texts = texts.cast(pa.string())
        parsed = self.texts.parsed(texts)
        same = pc.equal(self.texts.printed(parsed), texts)
        fits = pc.fill_null(same, False)  # NULL needs no special case: its text is null too
        if pc.all(pc.or_(fits, texts.is_null())).as_py() in {True, None}:
            return parsed, None
        exact_values = parsed.take(pc.if_else(fits, pa.array(range(len(texts)), pa.int64()), None))
        return exact_values, pc.if_else(fits, pa.scalar(None, pa.string()), texts)

    def text(self, typed: pa.Array | pa.ChunkedArray, exact: pa.Array | pa.ChunkedArray | None) -> pa.Array:
        """The texts as PostgreSQL prints them."""
        printed = self.texts.printed(one_array(typed))
        if exact is None:
            return printed
        texts: pa.Array = pc.coalesce(*alike(one_array(exact), printed))
        return texts


@dataclass(frozen=True)
class DecimalRepresentation(NestedRepresentation):
    """A `numeric` without precision as a decimal; a value that fits is there, however it is printed."""

    def _fitting_pair(self, texts: pa.Array) -> tuple[pa.Array, pa.Array | None]:
        texts = texts.cast(pa.string())
        parsed = self.texts.parsed(texts)
        same = pc.fill_null(pc.equal(self.texts.printed(parsed), texts), False)
        if pc.all(pc.or_(same, texts.is_null())).as_py() in {True, None}:
            return parsed, None
        return parsed, pc.if_else(same, pa.scalar(None, pa.string()), texts)


def as_decimal(precision: int, scale: int) -> str:
    """The representation of a `numeric` without precision as a decimal."""
    return json.dumps(["decimal", precision, scale])


def as_list(element_oid: int, delimiter: str) -> str:
    """The representation of an array as a list; its elements have the column's type modifier."""
    return json.dumps(["list", element_oid, delimiter])


def as_range(subtype_oid: int) -> str:
    """The representation of a range as a struct of lower, upper, lower_inc, upper_inc, empty."""
    return json.dumps(["range", subtype_oid])


def as_record(fields: list[tuple[str, int, int]]) -> str:
    """The representation of a composite as a struct.

    Args:
        fields: name in the lake, type OID and modifier of each.
    """
    return json.dumps(["record", fields], ensure_ascii=False)


@lru_cache(_CACHED_MAX)
def representation_of(form: str, oid: int, typmod: int) -> Representation:
    """How the lake stores a column of that type.

    Args:
        form: the text from one of the functions above; "" for the table of types.

    Raises:
        LakeError: the text is not a representation.
    """
    kind = column_type(oid, typmod)
    if not form:
        return Representation(kind, kind.arrow, kind.spark, kind.inexact)
    try:
        name, *more = json.loads(form)
        if name == "text":
            return TextRepresentation(kind, pa.string(), "string", False)
        if name == "decimal":
            decimal = DecimalTexts(*more)
            return DecimalRepresentation(kind, decimal.arrow, decimal.spark, True, decimal)
        texts = _nested(name, more, typmod)
    except (ValueError, TypeError, KeyError) as error:
        raise LakeError(
            "the lake has a column with an unknown representation",
            where=f"a column of type OID {oid}, representation {form[:80]}",
            way_out=LAKE_ALTERED,
        ) from error
    return NestedRepresentation(kind, texts.arrow, texts.spark, True, texts)


def _nested(name: str, more: list[Any], typmod: int) -> NestedTexts:
    if name == "list":
        element, delimiter = more
        return ListTexts(column_type(element, typmod), delimiter)
    if name == "range":
        return RangeTexts(column_type(more[0], -1))
    if name == "record":
        return RecordTexts([(field, column_type(oid, modifier)) for field, oid, modifier in more[0]])
    raise ValueError(name)


# Reads the text of a `numeric` without precision into a decimal of a chosen precision and scale, exactly.
#
# A value fits if the decimal is equal to it: not more digits before the point than there is room for, and
# none but zeros after the scale.  Nothing is rounded.  PostgreSQL prints a value's own scale (`1.50` and
# `1.5` are equal), the decimal has one scale for all; so it is printed without zeros at its end, and the
# caller keeps the text of a value that PostgreSQL prints otherwise.
#
# Only texts are handled, a whole array at a time: no arithmetic, so no context of 28 digits can cut
# anything.

DIGITS_MAX = 38


class DecimalTexts:
    """One precision and scale; ``arrow`` and ``spark``: the type of the column."""

    def __init__(self, precision: int, scale: int) -> None:
        if not 0 <= scale <= precision <= DIGITS_MAX or precision < 1:
            raise ValueError(f"decimal({precision},{scale})")
        self._type: ColumnType = column_type(oids.NUMERIC, ((precision << 16) | scale) + 4)
        self.arrow: pa.DataType = pa.decimal128(precision, scale)
        self.spark = f"decimal({precision},{scale})"
        before = precision - scale
        whole = f"(0|[1-9][0-9]{{0,{before - 1}}})" if before else "0"
        self._fitting = rf"^-?{whole}(\.[0-9]{{1,{scale}}})?$" if scale else f"^-?{whole}$"

    def parsed(self, texts: pa.Array) -> pa.Array:
        """Values of type ``arrow``; null if there is no text, or no such decimal is equal to its value."""
        shortest = without_zeros(texts)
        fits = pc.match_substring_regex(shortest, self._fitting)
        decimals: pa.Array = pc.if_else(fits, shortest, pa.scalar(None, pa.string())).cast(self.arrow)
        return decimals

    def printed(self, values: pa.Array) -> pa.Array:
        """Texts without zeros at the end of a fraction, null for null."""
        return without_zeros(to_text(values, None, self._type))


def without_zeros(texts: pa.Array) -> pa.Array:
    """Leave out the zeros at the end of a fraction, and the point if nothing is left behind it."""
    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(texts, characters="0"), characters=".")
    shortest: pa.Array = pc.if_else(pc.match_substring(texts, "."), trimmed, texts)
    return shortest
