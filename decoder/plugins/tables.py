"""The tables of a plugin that sends names with every row: makes a `Relation` from the names and the catalog.

Owns the known version of each table.  A row with all its columns replaces the known version.  A row without
some columns (wal2json leaves out unchanged TOASTed values, an old tuple everything that is not in the key) is
read with the known version.

Invariant: no column is moved or guessed.  If a name does not fit the known version, the row makes a new
version of the table, with only the columns of the row itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from slotlake.decoder.plugins.catalog import Catalog, TableFacts
from slotlake.decoder.plugins.model import NoValue, Tuple, Value
from slotlake.decoder.protocol.relations import Column, Relation
from slotlake.decoder.types.names import BUILTIN_NAMES


@dataclass(frozen=True)
class SentColumn:
    """A column as a plugin sends it; ``sql_type`` "" and ``type_oid`` 0 if the plugin does not send them."""

    name: str
    sql_type: str = ""
    type_oid: int = 0


@dataclass(frozen=True)
class _TableVersion:
    relation: Relation
    toastable: frozenset[str]
    sent: tuple[SentColumn, ...]


class Tables:
    """The known versions, by schema and table."""

    def __init__(self, catalog: Catalog | None = None) -> None:
        self._catalog = catalog
        self._versions: dict[tuple[str, str], _TableVersion] = {}

    def complete(self, schema: str, table: str, sent: Sequence[SentColumn]) -> Relation:
        """Return the table that has exactly these columns."""
        version = self._versions.get((schema, table))
        if version is None or version.sent != tuple(sent):
            version = self._described(schema, table, tuple(sent))
        return version.relation

    def fitting(self, schema: str, table: str, sent: Sequence[SentColumn], *, toasted: bool) -> Relation:
        """Return the table that has these columns, and maybe others.

        Args:
            toasted: the columns that were not sent must be ones that can be TOASTed.
        """
        version = self._versions.get((schema, table))
        if version is not None and _covers(version, sent, toasted):
            return version.relation
        facts = self._ask(schema, table)
        if facts is not None:
            version = _from_facts(schema, table, facts)
            if _covers(version, sent, toasted) and _agree(facts, sent):
                self._versions[schema, table] = version
                return version.relation
        return self._described(schema, table, tuple(sent)).relation

    def named(self, schema: str, table: str) -> Relation:
        """The table, if the plugin sends only its name (a truncation)."""
        version = self._versions.get((schema, table))
        if version is not None:
            return version.relation
        facts = self._ask(schema, table)
        if facts is None:
            return Relation(0, schema, table, "", ())
        self._versions[schema, table] = _from_facts(schema, table, facts)
        return self._versions[schema, table].relation

    def origin(self, number: int) -> str:
        """Name of a replication origin; its number if the name is not known."""
        name = self._catalog.origin(number) if self._catalog is not None else None
        return str(number) if name is None else name

    def _ask(self, schema: str, table: str) -> TableFacts | None:
        return self._catalog.table(schema, table) if self._catalog is not None else None

    def _described(self, schema: str, table: str, sent: tuple[SentColumn, ...]) -> _TableVersion:
        facts = self._ask(schema, table)
        names = [column.name for column in sent]
        if facts is not None and [f.column.name for f in facts.columns] == names and _agree(facts, sent):
            version = _from_facts(schema, table, facts, sent)
        else:
            columns = tuple(_column(column) for column in sent)
            version = _TableVersion(Relation(0, schema, table, "", columns), frozenset(names), sent)
        self._versions[schema, table] = version
        return version


def values_of(relation: Relation, sent: Mapping[str, Value], missing: NoValue) -> Tuple:
    """Return the tuple in the table's order."""
    return tuple(sent.get(column.name, missing) for column in relation.columns)


def old_tuple(relation: Relation, sent: Mapping[str, Value]) -> tuple[Literal["", "K", "O"], Tuple]:
    """Kind and content of an old tuple, whichever columns the plugin sent.

    The replica identity decides the kind.  If it is not known, a tuple with a value in every
    column counts as a whole row, any other as a key.
    """
    values = values_of(relation, sent, NoValue.NULL)
    identity = relation.replica_identity
    whole = identity == "f" if identity else NoValue.NULL not in values
    if whole:
        return "O", values
    if identity:
        keyed = zip(relation.columns, values, strict=True)
        values = tuple(value if column.in_key else NoValue.NULL for column, value in keyed)
    return "K", values


def _column(sent: SentColumn) -> Column:
    oid, typmod, name = parse_type(sent.sql_type) if sent.sql_type else (0, -1, "")
    if sent.type_oid and sent.type_oid != oid:
        oid, typmod = sent.type_oid, -1
    return Column(sent.name, oid, typmod, False, name)


def _from_facts(
    schema: str, table: str, facts: TableFacts, sent: tuple[SentColumn, ...] = ()
) -> _TableVersion:
    toastable = frozenset(f.column.name for f in facts.columns if f.toastable)
    return _TableVersion(facts.relation(schema, table), toastable, sent)


def _covers(version: _TableVersion, sent: Sequence[SentColumn], toasted: bool) -> bool:
    columns = {column.name: column for column in version.relation.columns}
    if any(column.name not in columns for column in sent):
        return False
    before = {column.name: column for column in version.sent}
    if not all(_consistent(before.get(column.name, column), column) for column in sent):
        return False
    sent_names = {column.name for column in sent}
    return not toasted or all(name in sent_names or name in version.toastable for name in columns)


def _consistent(one: SentColumn, other: SentColumn) -> bool:
    """True if two descriptions of a column do not contradict each other."""
    types = {one.sql_type, other.sql_type} - {""}
    oids = {one.type_oid, other.type_oid} - {0}
    return len(types) <= 1 and len(oids) <= 1


def _agree(facts: TableFacts, sent: Sequence[SentColumn]) -> bool:
    """True if the columns with these names have the same types in the catalog and from the plugin."""
    by_name = {f.column.name: f for f in facts.columns}
    return all(_same(by_name[column.name].column, by_name[column.name].sql_type, column) for column in sent)


def _same(column: Column, sql_type: str, sent: SentColumn) -> bool:
    if sent.type_oid:
        return sent.type_oid == column.type_oid
    oid = parse_type(sent.sql_type)[0] if sent.sql_type else 0
    if oid:
        return oid == column.type_oid
    return not sent.sql_type or same_type(sent.sql_type, sql_type)


# Reads type names as SQL prints them (format_type.c) into OID, modifier and name in pg_type.
#
# test_decoding, wal2json and decoderbufs name types by format_type: "character varying(20)",
# "timestamp(3) with time zone", "integer[]".  pgoutput and this project use pg_type's names and OIDs.
# A name that is not built in has OID 0 here; the catalog may know it (catalog.py).

_OIDS = {name: oid for oid, name in BUILTIN_NAMES.items()}
_SQL_NAMES = {
    "bigint": "int8",
    "bit": "bit",
    "bit varying": "varbit",
    "boolean": "bool",
    "character": "bpchar",
    "character varying": "varchar",
    "double precision": "float8",
    "integer": "int4",
    "real": "float4",
    "smallint": "int2",
    "time with time zone": "timetz",
    "time without time zone": "time",
    "timestamp with time zone": "timestamptz",
    "timestamp without time zone": "timestamp",
}
_MODIFIER = re.compile(r"\((-?\d{1,9}(?:,-?\d{1,9})?)\)")
_ANY_MODIFIER = re.compile(r"\([^()]*\)")  # a user type may have any modifier
_INTERVAL_FIELDS = re.compile(r"^interval (year|month|day|hour|minute|second)[a-z ]*$")


@cache  # each column of each row has such a text
def parse_type(text: str) -> tuple[int, int, str]:
    """(type OID, modifier, name in pg_type) of a printed type; OID 0 and the text itself if not built in."""
    element, array = (text[:-2], True) if text.endswith("[]") else (text, False)
    plain = _MODIFIER.sub("", element).strip()
    fields = _INTERVAL_FIELDS.match(plain)
    plain = "interval" if fields else plain
    if plain.startswith('"') and plain.endswith('"') and plain.count('"') == 2:
        plain = plain.strip('"')
    name = _SQL_NAMES.get(plain, plain)
    full = f"_{name}" if array else name
    if full not in _OIDS:
        return 0, -1, text
    return _OIDS[full], -1 if fields else _modifier(name, _MODIFIER.search(element)), full


def same_type(one: str, other: str) -> bool:
    """True if two printed names may mean the same type; modifier, quotes and schema do not count."""
    return _bare(one) == _bare(other)


def _bare(text: str) -> str:
    return _ANY_MODIFIER.sub("", text).replace('"', "").rpartition(".")[2].strip()


def _modifier(name: str, match: re.Match[str] | None) -> int:
    """As the type's typmodin function packs it (varchar.c, numeric.c, timestamp.c, varbit.c)."""
    if match is None:
        return -1
    numbers = [int(part) for part in match[1].split(",")]
    if name in ("varchar", "bpchar"):
        return numbers[0] + 4
    if name == "numeric":
        precision, scale = (*numbers, 0)[:2]
        return ((precision << 16) | (scale & 0x7FF)) + 4
    if name == "interval":
        return (0x7FFF << 16) | numbers[0]
    return numbers[0]
