"""Which table of a read point a query's name means: as the lake names it, or as the source does.

``orders``, ``shop.orders`` and ``lake.shop.orders`` name a lake table; ``public.orders`` names it as the
source does, where the lake has no namespace and table of that name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from slotlake.spark.names import LakeName, derived_table_name, lake_table, source_table
from slotlake.spark.publish.derived_tables import SUFFIXES
from slotlake.spark.read.pinned import Pinned
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import Metadata
from slotlake.spark.tables.schema import SCHEMA_PROPERTY

Names = dict[tuple[str, str], Pinned]


def all_names(read_point: ReadPoint) -> Names:
    """Return namespace and name → table, with the source's names where the lake has no such name."""
    pinned = {
        (each.name.namespace, each.name.table): each for each in read_point.pinned.values() if each.snapshot
    }
    names = dict(pinned)
    for schema in read_point.tables():
        mirror = read_point.find(schema.source_name)
        names.setdefault((schema.schema, schema.table), pinned[mirror.namespace, mirror.table])
        for mode, name in read_point.derived_tables(schema.source_name).items():
            alias = schema.schema, schema.table + SUFFIXES[mode]
            names.setdefault(alias, pinned[name.namespace, name.table])
    return {key: each for key, each in names.items() if "." not in key[0]}  # a dot would part a namespace


def find_table(read_point: ReadPoint, namespace: str, table: str) -> Pinned | None:
    """Return the table that a name means; None if there is none.  Reads the metadata of that table only.

    Args:
        namespace, table: as written in a query; the case of letters decides only between several tables.
    """
    exact = _exactly(read_point, namespace, table)
    if exact is not None:
        return exact
    wanted = namespace.lower(), table.lower()
    alike = [
        pinned
        for name, pinned in read_point.pinned.items()
        if wanted in {_lower(*pair) for pair in _pairs(read_point, name)}
    ]
    return alike[0] if len(alike) == 1 and alike[0].snapshot else None


def _exactly(read_point: ReadPoint, namespace: str, table: str) -> Pinned | None:
    own = read_point.pinned.get(LakeName(namespace, table))
    if own is not None and own.snapshot:
        return own
    mirror = _mirror(read_point, namespace, table)
    if mirror is not None:
        return mirror
    for suffix in SUFFIXES.values():
        base = _mirror(read_point, namespace, table.removesuffix(suffix)) if table.endswith(suffix) else None
        derived = base and read_point.pinned.get(derived_table_name(base.name, suffix))
        if derived is not None and derived.snapshot:
            return derived
    return None


def _mirror(read_point: ReadPoint, schema: str, table: str) -> Pinned | None:
    """The mirror of a source table."""
    pinned = read_point.pinned.get(lake_table(read_point.lake.namespace, schema, table))
    if pinned is None or SCHEMA_PROPERTY not in pinned.properties or not pinned.snapshot:
        return None
    return pinned if (pinned.shape.schema, pinned.shape.table) == (schema, table) else None


def _pairs(read_point: ReadPoint, name: LakeName) -> Iterator[tuple[str, str]]:
    """A table's names, as far as they can be known without its metadata."""
    yield name.namespace, name.table
    with suppress(KeyError):
        yield source_table(read_point.lake.namespace, name)


def _lower(namespace: str, table: str) -> tuple[str, str]:
    return namespace.lower(), table.lower()


def pinned_metadata(pinned: Pinned) -> Metadata | None:
    """Return metadata whose main and current schema are those of the pinned snapshot.

    None if the file at ``pinned.location`` is that already.
    """
    snapshot_id = (pinned.snapshot or {})["snapshot-id"]
    metadata = pinned.metadata
    is_main = catalog_metadata.ref(metadata, catalog_metadata.MAIN) == snapshot_id
    if is_main and pinned.schema_id == metadata["current-schema-id"]:
        return None
    moved = catalog_metadata.with_ref(metadata, catalog_metadata.MAIN, snapshot_id)
    return {**moved, "current-schema-id": pinned.schema_id}


@dataclass(frozen=True)
class ReadableTable:
    """A table that can be read at a point, for lists.

    Attributes:
        name: as a query names it; without the namespace where names without one are looked up.
        source: the source table's name, as PostgreSQL writes it; empty for a table that slotlake made itself.
        pinned: the table.
    """

    name: str
    source: str
    pinned: Pinned

    def columns(self) -> list[tuple[str, str, str]]:
        """Return name, type in the lake and type at the source of each column; the last may be empty."""
        metadata, schema_id = self.pinned.metadata, self.pinned.schema_id
        schema = next(each for each in metadata["schemas"] if each["schema-id"] == schema_id)
        at_source: dict[str, str] = {}
        if self.source:
            at_source = {column.lake_name: column.type_name for column in self.pinned.shape.columns}
        return [
            (field["name"], type_text(field["type"]), at_source.get(field["name"], ""))
            for field in schema["fields"]
        ]


def readable_tables(read_point: ReadPoint) -> list[ReadableTable]:
    """Return all tables that are there at the point, by name."""
    own = read_point.lake.namespace
    tables = []
    for name, pinned in read_point.pinned.items():
        if pinned.snapshot:
            is_mirror = SCHEMA_PROPERTY in pinned.properties
            source = pinned.shape.source_name if is_mirror else ""
            tables.append(ReadableTable(name.table if name.namespace == own else str(name), source, pinned))
    return sorted(tables, key=lambda table: table.name)


def type_text(kind: str | Mapping[str, Any]) -> str:
    """Return an Iceberg type as text: ``list<string>``, ``struct<lower: int, upper: int>``."""
    if isinstance(kind, str):
        return kind.replace(", ", ",")  # decimal(6,2)
    if kind["type"] == "list":
        return f"list<{type_text(kind['element'])}>"
    if kind["type"] == "map":
        return f"map<{type_text(kind['key'])}, {type_text(kind['value'])}>"
    fields = (f"{field['name']}: {type_text(field['type'])}" for field in kind["fields"])
    return f"struct<{', '.join(fields)}>"
