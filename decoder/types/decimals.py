"""Reads the text of a `numeric` without precision into a decimal of a chosen precision and scale, exactly.

A value fits if the decimal is equal to it: not more digits before the point than there is room for, and none
but zeros after the scale.  Nothing is rounded.  PostgreSQL prints a value's own scale (`1.50` and `1.5` are
equal), the decimal has one scale for all; so it is printed without zeros at its end, and the caller keeps the
text of a value that PostgreSQL prints otherwise.

Only texts are handled, a whole array at a time: no arithmetic, so no context of 28 digits can cut anything.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.types import oids
from slotlake.decoder.types.column_type import ColumnType
from slotlake.decoder.types.table import column_type, to_text

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
