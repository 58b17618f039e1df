"""What all tables beside a mirror have in common: how they are made, what of them is where.

A table beside a mirror has no shape of its own: its columns follow the mirror's, by lake name.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spark.catalog_metadata import Metadata
from spark.names import CHANGES_SUFFIX, HISTORY_SUFFIX, LakeName, beside, literal, quote
from spark.tables import PIPELINE_PROPERTY, LakeColumn, TableSchema

MODE_PROPERTY = "slotlake.mode"
SUFFIXES = {"append": CHANGES_SUFFIX, "history": HISTORY_SUFFIX}


def tables_beside(names: Container[LakeName], mirror: LakeName) -> dict[str, LakeName]:
    """The tables that the lake keeps beside a mirror, by mode."""
    found = {mode: beside(mirror, suffix) for mode, suffix in SUFFIXES.items()}
    return {mode: name for mode, name in found.items() if name in names}


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
    plain = [Field(c.lake_name, c.kept.spark, c, exact=False) for c in schema.columns]
    return plain + [Field(c.exact_name, "string", c, exact=True) for c in schema.columns if c.exact]


def create(name: LakeName, catalog: str, definitions: Sequence[str], options: Mapping[str, Any]) -> str:
    """The SQL that makes such a table.

    Args:
        options: ``mode``, ``pipeline``, ``location``, ``partitioned`` (SQL).
    """
    properties = {
        "format-version": "3",
        "write.delete.mode": "merge-on-read",
        "write.update.mode": "merge-on-read",
        "write.merge.mode": "merge-on-read",
        "write.distribution-mode": "none",
        "write.merge.distribution-mode": "none",
        "write.update.distribution-mode": "none",
        "write.parquet.compression-codec": "zstd",
        MODE_PROPERTY: options["mode"],
        PIPELINE_PROPERTY: options["pipeline"],
    }
    listed = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())
    return (
        f"CREATE TABLE {name.sql(catalog)} ({', '.join(definitions)}) USING iceberg "
        f"PARTITIONED BY ({options['partitioned']}) "
        f"LOCATION {literal(options['location'])} TBLPROPERTIES ({listed})"
    )


def present(metadata: Metadata) -> dict[str, Any]:
    """Name → Iceberg type, of the table's columns, in its order."""
    current = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
    return {field["name"]: field["type"] for field in current["fields"]}


def fields_present(metadata: Metadata) -> frozenset[str]:
    """The names of the table's columns."""
    return frozenset(present(metadata))


def timestamp(moment: datetime) -> str:
    """A moment with a zone in Spark SQL."""
    return f"TIMESTAMP'{moment.isoformat(sep=' ', timespec='microseconds')}'"


def nothing_new(name: LakeName, catalog: str) -> str:
    """A statement that makes a snapshot without a row: the point's name must stand on one."""
    branch = f"{name.sql(catalog)}.branch_stage"
    return f"INSERT INTO {branch} SELECT * FROM {branch} WHERE false"
