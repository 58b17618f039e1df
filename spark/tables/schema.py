"""A lake table's shape: which source column became which, and the Spark SQL that makes it.

The shape is kept as JSON in the table property ``slotlake.schema``.  While a batch is staged, its
shape waits in ``slotlake.schema.stage``; publishing moves it to ``slotlake.schema`` in the same swap
as the rows, so a reader never meets a shape that its rows do not have yet.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from slotlake.decoder.errors import LAKE_ALTERED, LakeError
from slotlake.spark.names import LakeName, exact_name, lake_columns, lake_table, literal, postgres_name, quote
from slotlake.spark.tables import soft_deletes
from slotlake.spark.tables.metadata import Metadata

if TYPE_CHECKING:
    from slotlake.decoder.types.column_type import ColumnType
    from slotlake.decoder.types.representations import Representation
    from slotlake.spark.tables.shapes import TableShape

SCHEMA_PROPERTY = "slotlake.schema"
STAGED_SCHEMA_PROPERTY = "slotlake.schema.stage"
PIPELINE_PROPERTY = "slotlake.pipeline"
NEWEST_FORMAT = 3
# What all tables have: rows of theirs are deleted by vectors, in format 2 by a position delete file for each
# data file, which readers find by its bounds, and which the next MERGE replaces.
WRITE_PROPERTIES = {
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.delete.granularity": "file",
}
_PROPERTIES = {
    **WRITE_PROPERTIES,
    # Rows arrive folded: shuffling them once more before writing only costs.
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
    "write.delete.distribution-mode": "none",
    "write.parquet.compression-codec": "zstd",
}
METRICS = "write.metadata.metrics.column."
_UNBOUNDED = {
    METRICS: "none",
    "write.parquet.stats-enabled.column.": "false",
    "write.parquet.dict-encoding-enabled.column.": "false",
}
# Iceberg counts and bounds so many columns by default; a wide table's key must have them wherever it stands.
COLUMNS_COUNTED = 100
# Every batch looks at the shapes of all tables several times, and they hardly ever change.
_READ_LATELY = 1 << 15
# Attribute of a shape → its key in the property, where earlier versions chose another word.
_STORED_NAMES = {"fingerprint": "mark"}
_FIELD_NAMES = {stored: name for name, stored in _STORED_NAMES.items()}


@dataclass(frozen=True)
class LakeColumn:
    """A source column and its lake column.

    Attributes:
        exact: the lake has a companion for its exact text.
        dropped: the source has it no more; the lake keeps the values of the rows it had.
        unfilled: it was added after the copy; rows from before are NULL in it, which is right only if the
            source gave them no default.
        lost: some row's value was not sent and is NULL here: the table is to be copied again.
        form: how the lake keeps it (`decoder.types.representations`), "" for as the table of types says.
        number: its attribute number at the source, 0 if that is not known.
        renamed: its field is to have its name from the next publication on (`spark.tables.settle`).
    """

    name: str
    lake_name: str
    type_oid: int
    typmod: int
    type_name: str
    exact: bool = False
    dropped: bool = False
    unfilled: bool = False
    lost: bool = False
    form: str = ""
    number: int = 0
    renamed: bool = False

    @property
    def representation(self) -> Representation:
        """How the lake keeps its values."""
        from slotlake.decoder.types.representations import representation_of  # late: numba takes its time

        return representation_of(self.form, self.type_oid, self.typmod)

    def formed(self, form: str) -> LakeColumn:
        """The same in a form; a list or a struct has its companion from the start."""
        from slotlake.decoder.types.representations import representation_of

        nested = representation_of(form, self.type_oid, self.typmod)
        return replace(self, form=form, exact=self.exact or (bool(form) and nested.inexact))

    @property
    def type(self) -> ColumnType:
        """Its row in the table of types, by which the change log has its values."""
        from slotlake.decoder.types.table import column_type

        return column_type(self.type_oid, self.typmod)

    @property
    def exact_name(self) -> str:
        """Its companion's lake name, whether there is one or not."""
        return exact_name(self.lake_name)

    @property
    def spark_type(self) -> str:
        """Its type in Spark SQL."""
        return self.representation.spark

    @property
    def definition(self) -> str:
        """In CREATE TABLE."""
        return f"{quote(self.lake_name)} {self.spark_type}"

    @property
    def exact_definition(self) -> str:
        """Its companion's, in CREATE TABLE."""
        return f"{quote(self.exact_name)} string"


@dataclass(frozen=True)
class TableSchema:
    """A source table as the lake keeps it.

    Attributes:
        key: source names of the columns that identify a row.
        selection: what the lake takes of it (`spark.row_filter.selection.Selection`), "" for all.
        partitions: which partitions it was copied with (`infra.source.partitions`), "" if it has none.
        types: by which rules its columns got their forms (`spark.tables.type_rules`), "" for the usual.
        fingerprint: what the source's catalog said of the table (`infra.source.fingerprints`), "" if unknown.
        drop: columns that are gone leave the lake with the next publication.
        soft_deletes: rows that the source deleted stay, marked (`spark.tables.soft_deletes`).
    """

    relation_id: int
    schema: str
    table: str
    replica_identity: str
    key: tuple[str, ...]
    columns: tuple[LakeColumn, ...]
    selection: str = ""
    partitions: str = ""
    types: str = ""
    fingerprint: str = ""
    drop: bool = False
    soft_deletes: bool = False

    @property
    def source_name(self) -> str:
        """As PostgreSQL writes it: ``public.orders``, ``public."Odd Name"``."""
        return postgres_name(self.schema, self.table)

    @classmethod
    def of(cls, relation: TableShape) -> TableSchema:
        """From a relation of a batch's manifest, or a table found in the source."""
        names = lake_columns([column.name for column in relation.columns])
        columns = tuple(
            LakeColumn(column.name, name, column.type_oid, column.typmod, column.type_name)
            for column, name in zip(relation.columns, names, strict=True)
        )
        return cls(
            relation.relation_id,
            relation.schema,
            relation.table,
            relation.replica_identity,
            tuple(relation.key),
            columns,
        )

    def lake_name(self, namespace: str) -> LakeName:
        """Where it is in a lake with this namespace."""
        return lake_table(namespace, self.schema, self.table)

    def column(self, name: str) -> LakeColumn:
        """A column by its source name.

        Raises:
            KeyError: there is none.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    @property
    def live(self) -> tuple[LakeColumn, ...]:
        """The columns that the source has, in its order."""
        return tuple(column for column in self.columns if not column.dropped)

    def with_exact(self, names: Sequence[str]) -> TableSchema:
        """The same, with companions for these source columns too, as far as their forms need one."""
        source_names = set(names)
        return replace(
            self,
            columns=tuple(
                replace(c, exact=c.exact or (c.name in source_names and c.representation.inexact))
                for c in self.columns
            ),
        )

    def with_lost(self, names: Collection[str]) -> TableSchema:
        """The same, with values missing in these source columns."""
        return replace(self, columns=tuple(replace(c, lost=c.lost or c.name in names) for c in self.columns))

    def filled(self) -> TableSchema:
        """The same, after all rows were read anew."""
        return replace(
            self, columns=tuple(replace(column, unfilled=False, lost=False) for column in self.columns)
        )

    def to_json(self) -> str:
        """For the table property."""
        fields = {_STORED_NAMES.get(name, name): value for name, value in asdict(self).items()}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> TableSchema:
        """From the table property.

        Raises:
            LakeError: it is not what :meth:`to_json` wrote.
        """
        return _read(text)


@lru_cache(maxsize=_READ_LATELY)
def _read(text: str) -> TableSchema:
    try:
        stored: dict[str, Any] = json.loads(text)
        fields = {_FIELD_NAMES.get(name, name): value for name, value in stored.items()}
        columns = tuple(LakeColumn(**column) for column in fields.pop("columns"))
        return TableSchema(**{**fields, "key": tuple(fields["key"]), "columns": columns})
    except (ValueError, TypeError, KeyError) as error:
        raise LakeError(
            f"a table's property {SCHEMA_PROPERTY} is damaged", where=text[:80], way_out=LAKE_ALTERED
        ) from error


def schema_of(metadata: Metadata, name: LakeName) -> TableSchema:
    """A lake table's shape as published.

    Raises:
        LakeError: it is not a table of ours.
    """
    text = metadata.get("properties", {}).get(SCHEMA_PROPERTY)
    if text is None:
        raise LakeError(
            "a table in the lake was not made by slotlake",
            where=f"table {name}",
            way_out="move it to another namespace, or give the pipeline another one",
        )
    return TableSchema.from_json(text)


def create_table(
    name: LakeName,
    catalog: str,
    schema: TableSchema,
    pipeline: str,
    location: str,
    table_format: int = NEWEST_FORMAT,
) -> str:
    """Return the SQL that makes a lake table, with a companion for every column that may need one."""
    definitions = [column.definition for column in schema.columns]
    definitions += [column.exact_definition for column in schema.columns if column.representation.inexact]
    definitions += soft_deletes.definitions() if schema.soft_deletes else []
    properties = {"format-version": str(table_format), **_PROPERTIES}
    properties |= {SCHEMA_PROPERTY: schema.to_json(), PIPELINE_PROPERTY: pipeline}
    if len(definitions) > COLUMNS_COUNTED:
        properties |= {METRICS + schema.column(key).lake_name: "truncate(16)" for key in schema.key}
    properties |= unbounded(schema.columns)
    listed = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())
    return (
        f"CREATE TABLE {name.sql(catalog)} ({', '.join(definitions)}) USING iceberg "
        f"LOCATION {literal(location)} TBLPROPERTIES ({listed})"
    )


def unbounded(columns: Iterable[LakeColumn], inside: str = "") -> dict[str, str]:
    """Return the properties by which Iceberg and Parquet keep no bounds of floats (docs/adr/0092).

    Args:
        inside: the struct in which they are; "" if they are the table's own.
    """
    from slotlake.decoder.types.floats import float_fields  # late: as representations

    names = ((f"{inside}.{c.lake_name}" if inside else c.lake_name, c) for c in columns)
    fields = (field for name, c in names for field in float_fields(name, c.representation.arrow))
    return unbounded_fields(fields)


def unbounded_fields(fields: Iterable[str]) -> dict[str, str]:
    """As :func:`unbounded`, of floats by their names in Iceberg."""
    return {prefix + field: value for field in fields for prefix, value in _UNBOUNDED.items()}


def add_columns(name: LakeName, catalog: str, definitions: Sequence[str]) -> str:
    """Return the SQL that adds nullable columns.

    Args:
        definitions: name and type of each column, as in CREATE TABLE.
    """
    return f"ALTER TABLE {name.sql(catalog)} ADD COLUMNS ({', '.join(definitions)})"
