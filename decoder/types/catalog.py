"""The known types by OID: which are arrays, ranges, domains …, and their inner types.

A binary value can be read only if the kind of its type is known; text needs none of this.  Built-in
types are always known.  User types come from one query of the source's catalog (`load_types`) and from the
stream's Type messages, which name a domain by its base type.  Invariant: an OID keeps its kind for ever
(PostgreSQL has no ALTER TYPE that changes it), so the catalog of today is right for an older value.  Only the
fields of a composite may change, and each binary value of a composite contains their types itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import psycopg

from slotlake.decoder.types.names import BUILTIN_NAMES, FIRST_GENBKI_OID


class Kind(Enum):
    """pg_type.typtype, with a kind of its own for arrays; of an UNKNOWN type only the name is known."""

    BASE = "base"
    ARRAY = "array"
    COMPOSITE = "composite"
    DOMAIN = "domain"
    ENUM = "enum"
    RANGE = "range"
    MULTIRANGE = "multirange"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class TypeEntry:
    """One type.

    Attributes:
        oid: its OID.
        name: name in pg_type; with its schema unless that is pg_catalog.
        kind: what it is.
        of: OID of an array's element, a domain's base, a range's subtype, a multirange's range; else 0.
        send: name of the function that writes it in binary, "" if it has none or if it is not needed.
        delimiter: the delimiter between elements in the text of arrays of this type.
        fields: types of a composite's fields when the catalog was read.
    """

    oid: int
    name: str
    kind: Kind
    of: int = 0
    send: str = ""
    delimiter: str = ","
    fields: tuple[int, ...] = ()


@dataclass
class TypeCatalog:
    """Types by OID: built-in ones and, once loaded, the source's own.

    Attributes:
        lc_monetary: the locale in which the source prints money, "" if it is not known.
        long_lsn: the source prints the lower half of a pg_lsn with eight digits (PostgreSQL 19 on).
        ask: loads this catalog again; called once for each type that is looked up and not known.
    """

    lc_monetary: str = ""
    long_lsn: bool = False
    ask: Callable[[], None] | None = None
    _types: dict[int, TypeEntry] = field(default_factory=dict)
    _asked: set[int] = field(default_factory=set)

    def get(self, oid: int) -> TypeEntry | None:
        """The type, or None if it is not known."""
        if self.ask is not None and oid not in self._asked and self.lacks(oid):
            self._asked.add(oid)
            self.ask()
        return self._entry(oid)

    def _entry(self, oid: int) -> TypeEntry | None:
        return self._types.get(oid) or BUILTIN_TYPES.get(oid)

    def add(self, entries: Iterable[TypeEntry]) -> None:
        """Add the types of a catalog query; they replace types of which only the name was known."""
        self._types.update((entry.oid, entry) for entry in entries)

    def note(self, oid: int, schema: str, name: str) -> None:
        """Add a Type message (proto.c logicalrep_write_typ): a domain comes with its base's name.

        It is ignored if the type is known already, because the name of a user type does not show its kind.

        Args:
            schema: "" or pg_catalog for a built-in type.
        """
        entry = self._entry(oid)
        if entry is not None and entry.kind is not Kind.UNKNOWN:
            return
        base = _OIDS.get(name) if schema in {"", "pg_catalog"} else None
        if base is not None:
            self._types[oid] = TypeEntry(oid, name, Kind.DOMAIN, base)
        else:
            self._types[oid] = TypeEntry(oid, f"{schema}.{name}", Kind.UNKNOWN)

    def lacks(self, oid: int) -> bool:
        """True if a catalog query may give more facts about this type."""
        entry = self._entry(oid)
        return entry is None or entry.kind is Kind.UNKNOWN

    def resolved(self, oid: int) -> TypeEntry | None:
        """The type itself; for a domain its base type, also through several domains."""
        entry = self.get(oid)
        for _ in range(_DOMAINS_MAX):
            if entry is None or entry.kind is not Kind.DOMAIN:
                return entry
            entry = self.get(entry.of)
        return None


_FIRST_WITH_LONG_LSN = 190000
_DOMAINS_MAX = 100  # domain over domain over …; it ends a circle, which a damaged catalog could have

_QUERY = f"""
SELECT t.oid::bigint, n.nspname, t.typname, t.typtype::text, t.typdelim::text,
       t.typsubscript = 'pg_catalog.array_subscript_handler'::pg_catalog.regproc AND t.typlen = -1,
       t.typelem::bigint, t.typbasetype::bigint, p.proname,
       coalesce(r.rngsubtype, m.rngtypid, 0)::bigint,
       ARRAY(SELECT a.atttypid::bigint FROM pg_catalog.pg_attribute a
             WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum)
FROM pg_catalog.pg_type t
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_catalog.pg_proc p ON p.oid = t.typsend
LEFT JOIN pg_catalog.pg_range r ON r.rngtypid = t.oid
LEFT JOIN pg_catalog.pg_range m ON m.rngmultitypid = t.oid
WHERE t.oid >= {FIRST_GENBKI_OID} AND t.typtype IN ('b', 'c', 'd', 'e', 'r', 'm')
"""
_KINDS = {
    "b": Kind.BASE,
    "c": Kind.COMPOSITE,
    "d": Kind.DOMAIN,
    "e": Kind.ENUM,
    "r": Kind.RANGE,
    "m": Kind.MULTIRANGE,
}


def load_types(connection: psycopg.Connection[Any], catalog: TypeCatalog | None = None) -> TypeCatalog:
    """Read the database's own types and its lc_monetary into ``catalog``, or into a new one.

    It costs one query of a few hundred rows; repeat it when `TypeCatalog.lacks` a type.
    """
    catalog = TypeCatalog() if catalog is None else catalog
    catalog.long_lsn = connection.info.server_version >= _FIRST_WITH_LONG_LSN
    with connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
        cursor.execute("SELECT pg_catalog.current_setting('lc_monetary')")
        catalog.lc_monetary = str((cursor.fetchone() or ("",))[0])
        cursor.execute(_QUERY)
        catalog.add(_entry(*row) for row in cursor)
    return catalog


def _entry(  # noqa: PLR0913, PLR0917 - a row of the query
    oid: int, schema: str, name: str, typtype: str, delimiter: str, is_array: bool,
    element: int, base: int, send: str | None, inner: int, fields: list[int],
) -> TypeEntry:  # fmt: skip
    kind = Kind.ARRAY if is_array else _KINDS[typtype]
    of = {Kind.ARRAY: element, Kind.DOMAIN: base, Kind.RANGE: inner, Kind.MULTIRANGE: inner}.get(kind, 0)
    full = name if schema == "pg_catalog" else f"{schema}.{name}"
    return TypeEntry(oid, full, kind, of, send or "", delimiter, tuple(fields))


_OIDS = {name: oid for oid, name in BUILTIN_NAMES.items()}
_RANGES = {
    "int4range": "int4",
    "int8range": "int8",
    "numrange": "numeric",
    "tsrange": "timestamp",
    "tstzrange": "timestamptz",
    "daterange": "date",
}
_VECTORS = {"int2vector": "int2", "oidvector": "oid"}  # base types in SQL, arrays in binary
_CATALOG_ROWS = {
    *("pg_type", "pg_attribute", "pg_proc", "pg_class", "pg_database", "pg_authid", "pg_auth_members"),
    *("pg_shseclabel", "pg_subscription", "pg_parameter_acl"),
}


def _builtin(oid: int, name: str) -> TypeEntry:
    if name.startswith("_"):
        return TypeEntry(oid, name, Kind.ARRAY, _OIDS.get(name[1:], 0))
    if name in _RANGES:
        return TypeEntry(oid, name, Kind.RANGE, _OIDS[_RANGES[name]])
    if name.endswith("multirange"):
        return TypeEntry(oid, name, Kind.MULTIRANGE, _OIDS[name.replace("multirange", "range")])
    if name in _CATALOG_ROWS:
        return TypeEntry(oid, name, Kind.COMPOSITE)
    return TypeEntry(oid, name, Kind.BASE, _OIDS.get(_VECTORS.get(name, ""), 0), "", _delimiter(name))


def _delimiter(name: str) -> str:
    return ";" if name == "box" else ","  # a box's own text has commas between its points' brackets


BUILTIN_TYPES: dict[int, TypeEntry] = {oid: _builtin(oid, name) for oid, name in BUILTIN_NAMES.items()}
