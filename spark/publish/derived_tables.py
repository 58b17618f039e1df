"""What all tables beside a mirror have in common: how they are made, what of them is where.

A table beside a mirror has no shape of its own: its columns follow the mirror's, by lake name.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog.base import Loaded, load
from slotlake.spark.names import CHANGES_SUFFIX, HISTORY_SUFFIX, LakeName, derived_table_name, literal, quote
from slotlake.spark.tables.metadata import Metadata
from slotlake.spark.tables.schema import (
    PIPELINE_PROPERTY,
    WRITE_PROPERTIES,
    LakeColumn,
    TableSchema,
    unbounded,
)
from slotlake.spark.tables.settle import STAGED_FIELDS_PROPERTY

_SPARK_NAMES = {"long": "bigint", "timestamptz": "timestamp", "timestamp": "timestamp_ntz"}
MODE_PROPERTY = "slotlake.mode"
SUFFIXES = {"append": CHANGES_SUFFIX, "history": HISTORY_SUFFIX}


def derived_table_names(names: Container[LakeName], mirror: LakeName) -> dict[str, LakeName]:
    """The tables that the lake keeps beside a mirror, by mode."""
    names_by_mode = {mode: derived_table_name(mirror, suffix) for mode, suffix in SUFFIXES.items()}
    return {mode: name for mode, name in names_by_mode.items() if name in names}


def with_derived_names(mirrors: Iterable[LakeName]) -> list[LakeName]:
    """Mirrors, each with the names that its derived tables would have."""
    return [
        name
        for mirror in mirrors
        for name in (mirror, *(derived_table_name(mirror, suffix) for suffix in SUFFIXES.values()))
    ]


def load_derived_tables(pointers: Mapping[LakeName, str], mirror: LakeName) -> dict[str, Loaded]:
    """The tables that the lake keeps beside a mirror, by mode.

    Raises:
        LakeError: a table that has such a name was not made for that.
    """
    tables = {mode: load(pointers, name) for mode, name in derived_table_names(pointers, mirror).items()}
    for mode, table in tables.items():
        if table.metadata.get("properties", {}).get(MODE_PROPERTY) != mode:
            raise LakeError(
                "a table is not what its name says",
                where=f"table {table.name}, which should be the {mode} table of {mirror}",
                way_out="move it to another namespace; or, if an earlier version of slotlake made it from a "
                "source table of that name, make a new lake",
            )
    return tables


@dataclass(frozen=True)
class Field:
    """A field of a row of the source as the lake has it: a column, or its exact text."""

    name: str
    kind: str
    column: LakeColumn
    exact: bool

    @property
    def definition(self) -> str:
        """In ALTER TABLE."""
        return f"{quote(self.name)} {self.kind}"


@dataclass(frozen=True)
class Source:
    """A table whose rows are read as a copy, and what is known of that copy.

    Attributes:
        name: as Spark SQL names it.
        fields: the names of its columns.
        position: of the copy.
        time: the source's, at the copy.
    """

    name: str
    fields: frozenset[str]
    position: int
    time: datetime


def fields_of(schema: TableSchema) -> list[Field]:
    """The fields that a row needs, columns that are gone included."""
    plain = [Field(c.lake_name, c.spark_type, c, exact=False) for c in schema.columns]
    return plain + [Field(c.exact_name, "string", c, exact=True) for c in schema.columns if c.exact]


def create(name: LakeName, catalog: str, definitions: Sequence[str], options: Mapping[str, Any]) -> str:
    """The SQL that makes such a table.

    Args:
        options: ``mode``, ``pipeline``, ``location``, ``format``, ``partitioned`` (SQL), ``unbounded``.
    """
    properties = {
        "format-version": str(options["format"]),
        **WRITE_PROPERTIES,
        "write.distribution-mode": "none",
        "write.merge.distribution-mode": "none",
        "write.update.distribution-mode": "none",
        "write.parquet.compression-codec": "zstd",
        MODE_PROPERTY: options["mode"],
        PIPELINE_PROPERTY: options["pipeline"],
        **options["unbounded"],
    }
    listed = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())
    return (
        f"CREATE TABLE {name.sql(catalog)} ({', '.join(definitions)}) USING iceberg "
        f"PARTITIONED BY ({options['partitioned']}) "
        f"LOCATION {literal(options['location'])} TBLPROPERTIES ({listed})"
    )


def column_types(metadata: Metadata) -> dict[str, Any]:
    """Name → Iceberg type, of the table's columns, in its order."""
    current = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
    return {field["name"]: field["type"] for field in current["fields"]}


def column_names(metadata: Metadata) -> frozenset[str]:
    """The names of the table's columns."""
    return frozenset(column_types(metadata))


def timestamp(moment: datetime) -> str:
    """A moment with a zone in Spark SQL."""
    return f"TIMESTAMP'{moment.isoformat(sep=' ', timespec='microseconds')}'"


def empty_insert(name: LakeName, catalog: str) -> str:
    """A statement that makes a snapshot without a row: the point's name must stand on one."""
    branch = f"{name.sql(catalog)}.branch_stage"
    return f"INSERT INTO {branch} SELECT * FROM {branch} WHERE false"


def field_changes(
    metadata: Metadata, images: Sequence[str], fields: Sequence[Field], names: Mapping[str, str]
) -> list[str]:
    """What ALTER TABLE must do so that the table has these fields.

    A field of another type than the mirror's, because the mirror's was dropped and made anew, steps aside and
    keeps its values.  Those that get another name do so in the swap that publishes the rows, as the mirror's.

    Args:
        images: the structs that hold a row; none if the table's own columns do.
        names: fields that get another name with the publication, and that name.
    """
    from slotlake.spark.tables.change import can_widen  # late: readers need only the names of these tables

    changes: list[str] = []
    known: set[str] = set()
    for image in images or ("",):
        place = f"{quote(image)}." if image else ""
        types = sql_types(metadata, image)
        known |= {*types, *(field.name for field in fields)}
        for field in fields:
            present_type, name = types.get(field.name), f"{place}{quote(field.name)}"
            if present_type is not None and can_widen(present_type, field.kind):
                changes.append(f"ALTER COLUMN {name} TYPE {field.kind}")
            elif present_type is not None and is_other_type(present_type, field.kind):
                changes.append(f"RENAME COLUMN {name} TO {quote(unused_field_name(field.name, types))}")
                present_type = None
            if present_type is None:
                changes.append(f"ADD COLUMNS ({place}{field.definition})")
    metrics: dict[str, str] = {}
    for image in images or ("",):
        metrics |= unbounded((field.column for field in fields if not field.exact), image)
    properties = metadata.get("properties", {})
    missing = {key: value for key, value in metrics.items() if properties.get(key) != value}
    if missing:
        listed = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in missing.items())
        changes.append(f"SET TBLPROPERTIES ({listed})")
    plan = {old: new for old, new in names.items() if old in known}
    plan |= {new: unused_field_name(new, known) for new in plan.values() if new in known and new not in plan}
    if plan:
        plan_json = json.dumps({"names": plan, "gone": [], "inside": list(images)}, ensure_ascii=False)
        changes.append(f"SET TBLPROPERTIES ('{STAGED_FIELDS_PROPERTY}' = {literal(plan_json)})")
    return changes


def unused_field_name(name: str, used_names: Container[str]) -> str:
    """Another name for a field whose own is needed."""
    names = (f"{name}__dropped{number or ''}" for number in itertools.count())
    return next(candidate for candidate in names if candidate not in used_names)


def sql_types(metadata: Metadata, image: str = "") -> dict[str, str]:
    """Field → its type as Spark SQL writes it; a list's or a struct's is not told.

    Args:
        image: the struct that holds them; none if the table's own columns do.
    """
    columns = column_types(metadata)
    if image:
        columns = {field["name"]: field["type"] for field in columns[image]["fields"]}
    return {name: _written(kind) if isinstance(kind, str) else "" for name, kind in columns.items()}


def _written(kind: str) -> str:
    return _SPARK_NAMES.get(kind, kind).replace(" ", "")


def is_other_type(present_kind: str, kind: str) -> bool:
    """Return whether a type, as `sql_types` writes it, is known and differs from another one."""
    return bool(present_kind) and present_kind != kind.lower().replace(" ", "")
