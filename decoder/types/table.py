"""The table of types: PostgreSQL OID -> Arrow -> Spark/Iceberg -> canonical text.

Invariant: ``to_text(*from_text(t, c), c) == t`` for every text ``t`` that PostgreSQL prints for a
value of the type, and a text that PostgreSQL does not print is refused.  A value that the typed column cannot
hold exactly is stored as text in a second column (``inexact``).  Every type that is not in the table, known
or not, is stored as its canonical text.  A binary value (`parse_binary_slices`) gives the same arrays as its
text.  Everything about types is decided here; only the text of a binary value is decided in `binary`.

To add a type: one row in ``_TABLE``, a parser in `parsing`, a reader in `binary.columns`, a printer
in `printing`, and its values in tests/decoder/test_types.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.compiled.wide import alike, one_array
from slotlake.decoder.errors import UNREADABLE, ProtocolError
from slotlake.decoder.types import oids
from slotlake.decoder.types import parsing as types_parse
from slotlake.decoder.types import printing as types_print
from slotlake.decoder.types.binary import columns as binary_columns
from slotlake.decoder.types.catalog import TypeCatalog
from slotlake.decoder.types.column_type import ColumnType
from slotlake.decoder.types.moment_kernels import DATE, TIMESTAMP, TIMESTAMPTZ
from slotlake.decoder.types.names import BUILTIN_NAMES, FIRST_NORMAL_OID
from slotlake.decoder.types.row_kernels import FLAG, INT4, INT8, SPAN, decimal_way, moment_way
from slotlake.decoder.types.slices import Slices, slices_of
from slotlake.decoder.types.text_error import TextError

_DECIMAL_DIGITS_MAX = 38
_BUILTIN = TypeCatalog()


_Parser = Callable[[Slices, pa.DataType], types_parse.Parsed]


@dataclass(frozen=True)
class _Row:
    """``read`` is the reader of binary values; None: each is converted into its text.

    ``way``: how `row_kernels` reads a plain text; SPAN: only ``parse`` reads it.
    """

    arrow: pa.DataType
    spark: str
    inexact: bool
    parse: _Parser
    print: Callable[[pa.Array], pa.Array]
    read: _Parser | None
    way: int = SPAN


_MOMENT = (types_parse.parse_moment, types_print.print_moment, binary_columns.read_moment)
_INT = (types_parse.parse_int, types_print.print_int)
_FLOAT = (types_parse.parse_float, types_print.print_float, binary_columns.read_float)
_BOOL = (types_parse.parse_bool, types_print.print_bool, binary_columns.read_bool)
_BYTEA = (types_parse.parse_bytea, types_print.print_bytea, binary_columns.read_bytea)
_DATE = (types_parse.parse_moment, types_print.print_moment, binary_columns.read_date)
_DECIMAL = (types_parse.parse_decimal, types_print.print_decimal, binary_columns.read_decimal)
_TEXT = _Row(pa.string(), "string", False, types_parse.parse_string, types_print.print_string, None)
_TABLE: dict[int, _Row] = {
    oids.BOOL: _Row(pa.bool_(), "boolean", False, *_BOOL, FLAG),
    oids.BYTEA: _Row(pa.binary(), "binary", False, *_BYTEA),
    oids.INT8: _Row(pa.int64(), "bigint", False, *_INT, binary_columns.read_int8, INT8),
    oids.INT2: _Row(pa.int32(), "int", False, *_INT, binary_columns.read_int2, INT4),
    oids.INT4: _Row(pa.int32(), "int", False, *_INT, binary_columns.read_int4, INT4),
    oids.OID: _Row(pa.int64(), "bigint", False, *_INT, binary_columns.read_unsigned4, INT8),
    oids.XID: _Row(pa.int64(), "bigint", False, *_INT, binary_columns.read_unsigned4, INT8),
    oids.FLOAT4: _Row(pa.float32(), "float", False, *_FLOAT),
    oids.FLOAT8: _Row(pa.float64(), "double", False, *_FLOAT),
    oids.DATE: _Row(pa.date32(), "date", True, *_DATE, moment_way(DATE)),
    oids.TIMESTAMP: _Row(pa.timestamp("us"), "timestamp_ntz", True, *_MOMENT, moment_way(TIMESTAMP)),
    oids.TIMESTAMPTZ: _Row(pa.timestamp("us", "UTC"), "timestamp", True, *_MOMENT, moment_way(TIMESTAMPTZ)),
}

# Types whose cast to text is a special function (pg_cast), not the output function.
_OUTPUT_FUNCTIONS = {
    oids.BOOL: "boolout",
    oids.CHAR: "charout",
    oids.NAME: "nameout",
    oids.XML: "xml_out",
    oids.CIDR: "cidr_out",
    oids.INET: "inet_out",
    oids.BPCHAR: "bpcharout",
}


# Types and modifiers come from the stream, so a damaged stream must not fill the memory with them.
_CACHED_MAX = 1 << 14


@lru_cache(_CACHED_MAX)
def column_type(oid: int, typmod: int) -> ColumnType:
    """The mapping of a column's type; a type that is not in the table is stored as its text."""
    row = _row(oid, typmod)
    return ColumnType(oid, typmod, row.arrow, row.spark, row.inexact)


def type_name(oid: int) -> str | None:
    """Name in pg_type of a built-in type; None for a user type, which the stream names itself."""
    return BUILTIN_NAMES.get(oid)


def from_text(values: pa.Array | pa.ChunkedArray, ct: ColumnType, *, column: str = "") -> types_parse.Parsed:
    """Read PostgreSQL's text of n values.

    Args:
        values: string or binary array, null for NULL.

    Returns:
        The typed array (null for NULL and for values that it cannot hold exactly), and the exact texts of
        the latter, or None if there are none.  ``arrow`` string and binary become large_string and
        large_binary above 2 GiB.

    Raises:
        ProtocolError: the type's output function does not print such a text.
    """
    return from_slices(slices_of(values), ct, column=column)


def from_slices(slices: Slices, ct: ColumnType, *, column: str = "") -> types_parse.Parsed:
    """As `from_text`, for values that are still in the buffer in which they were received.

    Args:
        slices, ct, column: the values, their type, and a name for the error.
    """
    return _with_column(parse_slices, slices, ct, column)


def from_copied(slices: Slices, ct: ColumnType, *, column: str = "") -> types_parse.Parsed:
    """Read the result of a binary COPY of `copy_sql`; it gives the same arrays as the text.

    Args:
        slices, ct, column: the values, their type, and a name for the error.

    Raises:
        ProtocolError: the server does not send such a value for the type.
    """
    return _with_column(parse_binary_slices if _copied_in_binary(ct) else parse_slices, slices, ct, column)


def _with_column(
    parse: Callable[[Slices, ColumnType], types_parse.Parsed], slices: Slices, ct: ColumnType, column: str
) -> types_parse.Parsed:
    try:
        return parse(slices, ct)
    except TextError as error:
        name = type_name(ct.oid) or f"OID {ct.oid}"
        where = f"column {column!r}" if column else f"a value of type {name}"
        row = f", row {error.row} of those read together" if error.row >= 0 else ""
        place = f"column {column!r}" if column else "a column"
        what = f"{error.reason}, in {place} of type {name}"
        raise ProtocolError(what, where=where + row, way_out=UNREADABLE) from None


def parse_slices(slices: Slices, ct: ColumnType) -> types_parse.Parsed:
    """`from_slices` for a caller that can name the place of an error better; raises TextError."""
    return _row(ct.oid, ct.typmod).parse(slices, ct.arrow)


def way_of(ct: ColumnType) -> int:
    """How `row_kernels` reads plain texts of the type."""
    return _row(ct.oid, ct.typmod).way


def parse_binary_slices(
    slices: Slices, ct: ColumnType, catalog: TypeCatalog = _BUILTIN
) -> types_parse.Parsed:
    """`parse_slices` for binary values: it gives the same arrays, and raises TextError too.

    Args:
        slices: the output of the type's send function.
    """
    row = _row(ct.oid, ct.typmod)
    if row.read is not None:
        return row.read(slices, ct.arrow)
    return binary_columns.read_as_text(slices, ct.oid, catalog), None


def parse_mixed_slices(
    slices: Slices, binary: npt.NDArray[np.bool_], ct: ColumnType, catalog: TypeCatalog = _BUILTIN
) -> types_parse.Parsed:
    """The same for a column that has binary values and text values.

    Args:
        binary: bool[n], set if a value is binary.
    """
    read, read_exact = parse_binary_slices(slices.only(binary), ct, catalog)
    parsed, parsed_exact = parse_slices(slices.only(~binary), ct)
    exacts = [exact for exact in (read_exact, parsed_exact) if exact is not None]
    return pc.coalesce(read, parsed), pc.coalesce(*exacts) if exacts else None


def to_text(
    values: pa.Array | pa.ChunkedArray, exact: pa.Array | pa.ChunkedArray | None, ct: ColumnType
) -> pa.Array:
    """Print values as PostgreSQL does: TimeZone UTC, DateStyle ISO, extra_float_digits 1, bytea hex.

    Args:
        values: typed array; any Arrow type that casts to ``ct.arrow`` without loss.
        exact: the exact texts, or None.

    Returns:
        A string array of the same length, null for NULL.
    """
    array = one_array(values)
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    printed = _row(ct.oid, ct.typmod).print(_as_declared(array, ct.arrow))
    if exact is None:
        return printed
    texts: pa.Array = pc.coalesce(*alike(one_array(exact), printed))
    return texts


def sql_text(expression: str, oid: int) -> str:
    """SQL for the text of the type's *output function*, NULL for NULL.

    For most types that is ``x::text``.  Some types have a special cast (``true`` instead of ``t``, an inet
    without its netmask …).  A user type may have one too, which only ``format`` does not use.
    """
    if oid in _OUTPUT_FUNCTIONS:
        return f"pg_catalog.textin(pg_catalog.{_OUTPUT_FUNCTIONS[oid]}({expression}))"
    if oid < FIRST_NORMAL_OID:
        return f"({expression})::pg_catalog.text"
    # num_nulls, not IS NULL: a composite of NULLs is NULL for the latter, yet has a text.
    return f"CASE WHEN pg_catalog.num_nulls({expression}) = 0 THEN pg_catalog.format('%s', {expression}) END"


def copy_sql(expression: str, ct: ColumnType) -> str:
    """SQL for a column of a copy: the value itself if `from_copied` reads its binary format, else its text.

    A binary value need not be printed by the server: half of its CPU time for a table of numbers and times.
    """
    return expression if _copied_in_binary(ct) else sql_text(expression, ct.oid)


def _copied_in_binary(ct: ColumnType) -> bool:
    """True if the type has a reader of binary values, or one that prints as fast as it reads."""
    return ct.oid == oids.UUID or _row(ct.oid, ct.typmod).read is not None


def _row(oid: int, typmod: int) -> _Row:
    if oid == oids.NUMERIC and typmod >= 4:
        return _numeric_row(typmod)
    return _TABLE.get(oid, _TEXT)


@lru_cache(_CACHED_MAX)  # each column of each batch asks for its row several times
def _numeric_row(typmod: int) -> _Row:
    """numeric(p,s) as decimal if both fit (numeric.c numeric_typmod_precision, _scale)."""
    precision = ((typmod - 4) >> 16) & 0xFFFF
    scale = (((typmod - 4) & 0x7FF) ^ 1024) - 1024
    if not 0 <= scale <= precision <= _DECIMAL_DIGITS_MAX:
        return _TEXT
    kind = pa.decimal128(precision, scale)
    spark = f"decimal({precision},{scale})"
    return _Row(kind, spark, True, *_DECIMAL, decimal_way(precision, scale))


def _as_declared(array: pa.Array, kind: pa.DataType) -> pa.Array:
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    return array if large or array.type == kind else array.cast(kind)
