"""Names of the source ↔ names in the lake, one to one.

A lake name must be held by Iceberg (a dot separates namespace levels and nested fields), by Spark
(a backtick ends a quoted name), by a file system (a slash, at most 255 bytes) and by the catalog
(255 characters).  What one of them cannot hold is written as in SQL/XML (ISO 9075-14, 9.1): a
character as ``_x<hex>_``, and an underscore that would begin such a thing as ``_x5F_``.

Reserved, so that no source name can meet them: the table `commits`, the endings ``__changes`` and
``__history`` (tables), ``__exact`` (columns) and ``__copying`` (namespaces), and the columns that Iceberg
and Spark have of their own in every table (:data:`READERS_OWN`); a source name like these has a character
of it escaped.

Case is kept: catalogs and our sessions tell `Orders` from `orders`.  Columns that differ only by
case cannot be told apart by a reader who runs Spark with its default, nor by Trino or DuckDB; the later one
has its capitals escaped, which is why columns are named together (:func:`lake_columns`).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from slotlake.decoder.errors import LakeError

COMMITS = "commits"
EXACT_SUFFIX = "__exact"
COPYING_SUFFIX = "__copying"
CHANGES_SUFFIX, HISTORY_SUFFIX = "__changes", "__history"
PUBLIC = "public"
# Trino's own columns hold a character that no lake name has, and DuckDB's step aside.
READERS_OWN = frozenset(
    {
        # Iceberg's (MetadataColumns.java): Spark neither reads nor changes a table with such a column, ...
        *("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"),
        # ... and these a view of its changes has.
        *("_change_type", "_change_ordinal", "_commit_snapshot_id"),
        # Spark's within a MERGE (RewriteMergeIntoTable.scala).
        *("__row_from_source", "__row_from_target", "__row_id", "__row_operation"),
    }
)
# Catalogs keep names in VARCHAR(255) and file systems in 255 bytes; a table's name also names a directory.
_ENCODED_BYTES_MAX = 200
_LONG = "_xb"
# What AWS Glue takes by Iceberg's client (IcebergToGlueConverter.java).
_METASTORE_NAME = re.compile(r"[a-z0-9_]+")
_ESCAPE = re.compile(r"_x([0-9A-F]+)_")
_PART = r'("(?:[^"]|"")+"|[^".\s]+)'
_QUALIFIED = re.compile(rf"{_PART}(?:\s*\.\s*{_PART})?")
# Also without its closing underscore: an escape that follows would lend it one.
_STARTS_ESCAPE = re.compile(r"_(?=x[0-9A-Fb])")


class LakeName(NamedTuple):
    """A table in the catalog. A tuple: where tables are thousands, they are sorted and looked up often."""

    namespace: str
    table: str

    def __str__(self) -> str:
        return f"{self.namespace}.{self.table}"

    @classmethod
    def parse(cls, text: str) -> LakeName:
        """The inverse of ``str``: neither part can hold a dot."""
        namespace, _, table = text.rpartition(".")
        return cls(namespace, table)

    def sql(self, catalog: str) -> str:
        """As Spark SQL names it."""
        return f"{quote(catalog)}.{quote(self.namespace)}.{quote(self.table)}"


def quote(name: str) -> str:
    """A name in Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A string in Spark SQL, also where escapes are understood."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def lake_table(namespace: str, schema: str, table: str) -> LakeName:
    """Where a source table goes: `public` to ``namespace``, another schema to ``namespace__schema``."""
    target = namespace if schema == PUBLIC else f"{namespace}__{_encode_schema(schema)}"
    return LakeName(target, _encode_table(table))


def source_table(namespace: str, name: LakeName) -> tuple[str, str]:
    """The inverse of :func:`lake_table`.

    Raises:
        KeyError: the lake table is not one of this namespace's.
    """
    table = decode(name.table)
    if name.namespace == namespace:
        return PUBLIC, table
    schema = decode(name.namespace.removeprefix(f"{namespace}__"))
    if lake_table(namespace, schema, table) != name:
        raise KeyError(str(name))
    return schema, table


def copying(name: LakeName) -> LakeName:
    """Where a table is filled before anyone may see it."""
    return LakeName(name.namespace + COPYING_SUFFIX, name.table)


def visible(namespace: str) -> str:
    """The namespace that a hidden one's tables will be in."""
    return namespace.removesuffix(COPYING_SUFFIX)


def is_copying(namespace: str) -> bool:
    """Return whether this is a hidden namespace, whose tables are still being filled."""
    return namespace.endswith(COPYING_SUFFIX)


def belongs(namespace: str, to: str) -> bool:
    """Return whether this is a published namespace of the pipeline whose namespace is ``to``."""
    return namespace == to or (namespace.startswith(f"{to}__") and not is_copying(namespace))


def derived_table_name(mirror: LakeName, suffix: str) -> LakeName:
    """Return the name of a derived table of a mirror."""
    return LakeName(mirror.namespace, mirror.table + suffix)


def lake_columns(columns: Sequence[str]) -> list[str]:
    """Lake names of a table's columns, in order; of a column that comes twice the same."""
    used_names: set[str] = set()
    names: dict[str, str] = {}
    for column in dict.fromkeys(columns):
        names[column] = next(each for each in _column_names(column) if _folded(each) not in used_names)
        used_names.add(_folded(names[column]))
    return [names[column] for column in columns]


def _column_names(column: str) -> Iterator[str]:
    """What a column can be called: with its letters, without those that have another case, with none."""
    yield _encode_column(column, _holds)
    yield _encode_column(column, lambda c: _holds(c) and c == _folded(c))
    yield _in_base32(column)


def _folded(name: str) -> str:
    """Equal for names that some reader takes for the same (Java's equalsIgnoreCase, the coarsest)."""
    return "".join(_other_case(_other_case(c, str.upper), str.lower) for c in name)


def _other_case(character: str, of: Callable[[str], str]) -> str:
    other = of(character)
    return other if len(other) == 1 else character


def is_readers_own(lake_name: str) -> bool:
    """Return whether a reader has its own column of that name; lakes of earlier versions may have one."""
    return lake_name.lower() in READERS_OWN


def exact_name(lake_name: str) -> str:
    """The companion column that holds exact text."""
    return lake_name + EXACT_SUFFIX


def _escape(character: str) -> str:
    return f"_x{ord(character):X}_"


def _holds(character: str) -> bool:
    return character.isalnum() or character == "_"


def _encode(name: str, holds: Callable[[str], bool] = _holds) -> str:
    marked = _STARTS_ESCAPE.sub("\0", name)
    encoded = "".join(c if c != "\0" and holds(c) else _escape(c if c != "\0" else "_") for c in marked)
    return encoded if len(encoded.encode()) <= _ENCODED_BYTES_MAX else _in_base32(name)


def _in_base32(name: str) -> str:
    return _LONG + base64.b32encode(name.encode()).decode().rstrip("=").lower()


def _encode_schema(name: str) -> str:
    encoded = _encode(name)
    return unreserve(encoded, COPYING_SUFFIX) if f"__{encoded}".endswith(COPYING_SUFFIX) else encoded


def _encode_table(name: str) -> str:
    encoded = _encode(name)
    for reserved in (CHANGES_SUFFIX, HISTORY_SUFFIX):
        if encoded.lower().endswith(reserved):
            return unreserve(encoded, reserved)
    return unreserve(encoded, COMMITS) if encoded.lower() == COMMITS else encoded


def _encode_column(name: str, holds: Callable[[str], bool]) -> str:
    encoded = _encode(name, holds)
    if is_readers_own(encoded):
        return unreserve(encoded, encoded)
    return unreserve(encoded, EXACT_SUFFIX) if encoded.lower().endswith(EXACT_SUFFIX) else encoded


def unreserve(encoded: str, reserved: str) -> str:
    """Escape the first letter of a reserved word that ends a name."""
    at = len(encoded) - len(reserved.lstrip("_"))
    return encoded[:at] + _escape(encoded[at]) + encoded[at + 1 :]


def fits_metastore(name: str) -> bool:
    """Return whether AWS Glue and the Hive Metastore can have a database or a table of that name."""
    return bool(_METASTORE_NAME.fullmatch(name))


def require_metastore_name(place: str, name: LakeName, source: tuple[str, str] | None = None) -> None:
    """Check that AWS Glue and the Hive Metastore can have a table.

    Args:
        source: its schema and name in the source, if it is the only one that the error is about.

    Raises:
        LakeError: they cannot.
    """
    if fits_metastore(name.namespace) and fits_metastore(name.table):
        return
    error = LakeError(
        "AWS Glue and the Hive Metastore have names of the letters a to z, digits and underscores only",
        where=f"table {name} in {place}",
        way_out="rename the table (or its schema) in the source, take it out of the publications, or use a "
        "SQL or a REST catalog",
    )
    raise error if source is None else error.of(*source)


def decode(encoded: str) -> str:
    """The source name of an encoded one."""
    if encoded.startswith(_LONG):
        text = encoded[len(_LONG) :].upper()
        return base64.b32decode(text + "=" * (-len(text) % 8)).decode()
    return _ESCAPE.sub(lambda m: chr(int(m[1], 16)), encoded)


def postgres_name(schema: str, table: str) -> str:
    """As PostgreSQL writes it: ``public.orders``, ``public."Odd Name"`` (quote_identifier in ruleutils.c)."""
    return f"{_postgres_quoted(schema)}.{_postgres_quoted(table)}"


def parse_postgres_name(text: str) -> tuple[str, str]:
    """Read ``orders``, ``public.orders`` or ``"Odd Schema"."Odd Name"``; unquoted parts fold to lower case.

    Raises:
        KeyError: it is not such a name.
    """
    schema, table = postgres_parts(text)
    return _unquoted(schema), _unquoted(table)


def postgres_parts(text: str) -> tuple[str, str]:
    """Return schema and table of such a name as they are written, in quotes or not.

    Raises:
        KeyError: it is not such a name.
    """
    match = _QUALIFIED.fullmatch(text.strip())
    if match is None:
        raise KeyError(text)
    first, second = match[1], match[2]
    return (PUBLIC, first) if second is None else (first, second)


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.lower()


def _postgres_quoted(name: str) -> str:
    plain = re.fullmatch(r"[a-z_][a-z0-9_$]*", name)
    return name if plain else '"' + name.replace('"', '""') + '"'
