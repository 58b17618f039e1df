"""Prints one binary value of any type as PostgreSQL's canonical text.

The input of ``binary_text`` is the output of the type's send function; the result is the text of the type's
output function (TimeZone UTC, DateStyle ISO, IntervalStyle postgres, extra_float_digits 1, bytea hex).
Invariant: any bytes give a text or a `TextError`, in time and memory that are limited by the value's size, or
by the longest text that PostgreSQL itself can print (1 GB).

The printer of each built-in type is named here once, in ``_BASE``.  Arrays, composites, ranges and
domains are printed by the types of their parts, from the `TypeCatalog` (`containers`).  Types whose binary
value lacks what their text needs, such as the name for a regclass, are in ``WITHHELD`` with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from slotlake.decoder.types.binary import geometry, moments, network, numbers, search
from slotlake.decoder.types.binary.containers import AS_TEXT, Containers, Printer
from slotlake.decoder.types.binary.reading import utf8
from slotlake.decoder.types.catalog import Kind, TypeCatalog, TypeEntry
from slotlake.decoder.types.names import FIRST_GENBKI_OID
from slotlake.decoder.types.text_error import TextError

if TYPE_CHECKING:
    from slotlake.decoder.types.column_type import ColumnType

_BUILTIN = TypeCatalog()

_SAME = {"text", "varchar", "bpchar", "name", "json", "xml", "refcursor", "pg_node_tree"}
_BASE: dict[str, Printer] = {
    **dict.fromkeys(_SAME, utf8),
    "bool": numbers.boolean,
    "bytea": lambda data: "\\x" + data.hex(),
    "char": network.single_char,
    "int2": partial(numbers.integer, size=2, signed=True),
    "int4": partial(numbers.integer, size=4, signed=True),
    "int8": partial(numbers.integer, size=8, signed=True),
    **dict.fromkeys(("xid8", "oid8"), partial(numbers.integer, size=8, signed=False)),
    **dict.fromkeys(("oid", "xid", "cid"), partial(numbers.integer, size=4, signed=False)),
    "float4": numbers.float4,
    "float8": numbers.float8,
    "numeric": numbers.numeric,
    "date": moments.date,
    "time": moments.time,
    "timetz": moments.timetz,
    "timestamp": moments.timestamp,
    "timestamptz": moments.timestamptz,
    "interval": moments.interval,
    "uuid": network.uuid,
    "inet": partial(network.network, cidr=False),
    "cidr": partial(network.network, cidr=True),
    "macaddr": partial(network.mac, size=6),
    "macaddr8": partial(network.mac, size=8),
    **dict.fromkeys(("bit", "varbit"), network.bits),
    "tid": network.tid,
    **dict.fromkeys(("pg_snapshot", "txid_snapshot"), network.snapshot),
    "point": geometry.point,
    "lseg": geometry.lseg,
    "box": geometry.box,
    "line": geometry.line,
    "circle": geometry.circle,
    "path": geometry.path,
    "polygon": geometry.polygon,
    **dict.fromkeys(("jsonb", "jsonpath"), search.versioned),
    "tsvector": search.tsvector,
    "tsquery": search.tsquery,
}
_EXTENSIONS: dict[str, Printer] = {  # by send function: an extension's OIDs differ from database to database
    "hstore_send": search.hstore,
    "citextsend": utf8,
    **dict.fromkeys(("ltree_send", "lquery_send", "ltxtq_send"), search.versioned),
    "cube_send": search.cube,
    "vector_send": search.vector,
}
_NAMES = "its binary value is a number, its text a name that only the server knows"
_STATISTICS = "planner statistics, in a format that only this version of the server knows"
_NO_BINARY = "it has no binary format"
_NAMED = (
    "regproc", "regprocedure", "regoper", "regoperator", "regclass", "regtype", "regconfig",
    "regdictionary", "regnamespace", "regrole", "regcollation", "regdatabase",
)  # fmt: skip
WITHHELD: dict[str, str] = {
    **dict.fromkeys(_NAMED, _NAMES),
    **dict.fromkeys(("pg_ndistinct", "pg_dependencies", "pg_mcv_list"), _STATISTICS),
    **dict.fromkeys(("pg_brin_bloom_summary", "pg_brin_minmax_multi_summary"), _STATISTICS),
    **dict.fromkeys(("aclitem", "gtsvector"), _NO_BINARY),
}


def binary_text(data: bytes | memoryview, type_: int | ColumnType, catalog: TypeCatalog = _BUILTIN) -> str:
    """The canonical text of one value.

    Args:
        data: the output of the type's send function.
        type_: the type, or its OID.

    Raises:
        TextError: the bytes are not a value of the type, or the type's text does not follow from them.
    """
    oid = type_ if isinstance(type_, int) else type_.oid
    return binary_printer(oid, catalog)(bytes(data))


def binary_printer(oid: int, catalog: TypeCatalog = _BUILTIN) -> Printer:
    """`binary_text` for many values of one type; raises TextError if no value of it can be read."""
    return Containers(catalog, _base).printer(oid)


def withheld_from_binary(oid: int, catalog: TypeCatalog = _BUILTIN) -> str:
    """Why a column of this type cannot be read from a binary stream, or "".

    Call it before a binary stream begins.  A column of a type without a binary format is sent as text, so it
    can be read; but inside an array or a composite the server itself fails on such a type.
    """
    entry = catalog.get(oid)
    if entry is not None and _has_no_binary(entry):
        return ""
    return _withheld(oid, catalog, frozenset())


def _withheld(oid: int, catalog: TypeCatalog, around: frozenset[int]) -> str:
    entry = catalog.get(oid)
    if entry is None or entry.kind is Kind.UNKNOWN:
        return f"type {entry.name if entry else oid} is not in the source's catalog"
    if entry.kind is Kind.BASE and not entry.of:
        return _base_withheld(entry, catalog)
    parts: Iterable[int] = entry.fields if entry.kind is Kind.COMPOSITE else (entry.of,) if entry.of else ()
    inside = around | {oid}
    reasons = (_withheld(part, catalog, inside) for part in parts if part not in inside)
    return next((reason for reason in reasons if reason), "")


def _base_withheld(entry: TypeEntry, catalog: TypeCatalog) -> str:
    if _has_no_binary(entry):
        return f"{entry.name}: {_NO_BINARY}"
    if entry.name in WITHHELD or entry.name == "money":
        reason = WITHHELD.get(entry.name) or numbers.money_withheld(catalog.lc_monetary)
        return f"{entry.name}: {reason}" if reason else ""
    try:
        _base(entry, catalog)
    except TextError as error:
        return error.reason
    return ""


def _has_no_binary(entry: TypeEntry) -> bool:
    if entry.oid >= FIRST_GENBKI_OID:
        return entry.kind is Kind.BASE and not entry.send
    return WITHHELD.get(entry.name) is _NO_BINARY


def _base(entry: TypeEntry, catalog: TypeCatalog) -> Printer:
    """The printer of a base type."""
    name = entry.name
    if name == "money":
        return partial(numbers.money, locale=catalog.lc_monetary)
    if name == "pg_lsn":
        return partial(network.lsn, long=catalog.long_lsn)
    if WITHHELD.get(name) is _NAMES:
        return partial(_name_of, name=name)
    printer = _BASE.get(name) or _EXTENSIONS.get(entry.send)
    if printer is None:
        reason = WITHHELD.get(name, "slotlake does not know the binary format of this type")
        raise TextError(f"a binary value of type {name} ({reason}); {AS_TEXT}")
    return printer


def _name_of(data: bytes, name: str) -> str:
    """A reg type: zero is the only number whose text is known."""
    if data == bytes(4):
        return "0" if name in {"regoper", "regoperator"} else "-"
    numbers.integer(data, size=4, signed=False)
    raise TextError(f"a binary value of type {name} ({_NAMES}); {AS_TEXT}")
