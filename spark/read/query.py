"""An analyst's SQL in Spark, with every table pinned to one cut.

The cut becomes a catalog of its own: a small read-only SQLite file whose pointers lead to the pinned
snapshots, under the catalog's usual name, in a session of its own.  So every way to name a table
gives the pinned one: ``orders``, ``shop.orders``, ``lake.shop.orders``, and as the source names it,
``public.orders``; Iceberg's metadata tables too; and nothing can be written.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812 - Spark's own short name

from slotlake.decoder.errors import LakeError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.types import oids
from slotlake.decoder.types.table import column_type, to_text
from slotlake.spark import exchange
from slotlake.spark.lake import LakeSettings
from slotlake.spark.publish.derived_tables import SUFFIXES
from slotlake.spark.read.point import Pinned, ReadPoint
from slotlake.spark.read.query_check import Readable, checked_statement
from slotlake.spark.read.query_parser import LEXING, java_view, path_java
from slotlake.spark.session import define_catalog, is_remote, sibling, use_namespace
from slotlake.spark.session_errors import SPARK_ERRORS, message
from slotlake.spark.tables import metadata as catalog_metadata

# As JdbcCatalog makes them (schema V1).
_TABLES = """
CREATE TABLE iceberg_tables (
    catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL,
    table_name VARCHAR(255) NOT NULL,
    metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000), iceberg_type VARCHAR(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name))
"""
_NAMESPACES = """
CREATE TABLE iceberg_namespace_properties (
    catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL,
    property_key VARCHAR(255), property_value VARCHAR(1000),
    PRIMARY KEY (catalog_name, namespace, property_key))
"""
# Spark types whose values have one PostgreSQL text; others are printed by Spark.
_PLAIN = (
    T.BooleanType,
    T.BinaryType,
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.DateType,
    T.TimestampNTZType,
    T.TimestampType,
    T.StringType,
)


@dataclass(frozen=True)
class QueryResult:
    """Rows as PostgreSQL text, None for NULL; arrays, maps and structs as JSON."""

    columns: list[str]
    rows: list[tuple[str | None, ...]]
    position: int


def query(
    session: SparkSession,
    lake: LakeSettings,
    sql: str,
    at: int | datetime | None = None,
    *,
    java: Callable[[], str] = path_java,
) -> QueryResult:
    """Run an analyst's SELECT with every table pinned to one cut.

    Args:
        at: an LSN, or a moment of the source's clock: the newest kept point by then. None: the newest.

        java: finds the ``java`` that parses for a remote session.

    Raises:
        LakeError: the SQL is wrong or no query of this lake's tables, or the lake has no such cut.
    """
    read_point = ReadPoint.of(lake, at)
    names = _names(read_point)
    readable = Readable(lake.catalog, lake.namespace, names.keys(), lambda name: _is_catalog(session, name))
    statement = checked_statement(java_view(session, java), sql, readable)
    with _pinned_catalog(read_point, names) as database, _session_on(session, lake, database) as own:
        try:
            frame = own.sql(statement)
            columns = list(frame.columns)
            table = _printable(frame).toArrow()
            return QueryResult(columns, _rows(table), read_point.position)
        except SPARK_ERRORS as error:
            raise LakeError(
                f"the query failed: {message(error)}",
                where=f"at {format_lsn(read_point.position)}",
                way_out="tables are named as in the source (public.orders) or as in the lake (shop.orders)",
            ) from error


def _is_catalog(session: SparkSession, name: str) -> bool:
    return session.conf.get(f"spark.sql.catalog.{name}", None) is not None


_Names = dict[tuple[str, str], Pinned]


def _names(read_point: ReadPoint) -> _Names:
    """Namespace and name → table: as in the lake, and as in the source where the lake has no such name."""
    pinned = {
        (each.name.namespace, each.name.table): each for each in read_point.pinned.values() if each.snapshot
    }
    names = dict(pinned)
    for schema in read_point.tables():
        names.setdefault((schema.schema, schema.table), pinned[_pair(read_point, schema.source_name)])
        for mode, name in read_point.derived_tables(schema.source_name).items():
            alias = schema.schema, schema.table + SUFFIXES[mode]
            names.setdefault(alias, pinned[name.namespace, name.table])
    return {key: each for key, each in names.items() if "." not in key[0]}  # a dot would part a namespace


@contextmanager
def _pinned_catalog(read_point: ReadPoint, names: _Names) -> Iterator[Path]:
    directory = exchange.exchange_directory(read_point.lake, "cuts", uuid.uuid4().hex)
    try:
        database = directory / "catalog.db"
        _write_catalog(database, read_point.lake.catalog, names)
        yield database
    finally:
        exchange.remove_directory(directory)


def _write_catalog(database: Path, catalog: str, names: _Names) -> None:
    pinned = {each.name: each for each in names.values()}
    locations = {name: _pinned_location(each, database.parent) for name, each in pinned.items()}
    connection = sqlite3.connect(database)
    with connection:
        connection.execute(_TABLES)
        connection.execute(_NAMESPACES)
        connection.executemany(
            "INSERT INTO iceberg_tables VALUES (?, ?, ?, ?, NULL, 'TABLE')",
            [(catalog, *key, locations[each.name]) for key, each in names.items()],
        )
        connection.executemany(
            "INSERT INTO iceberg_namespace_properties VALUES (?, ?, 'exists', 'true')",
            [(catalog, namespace) for namespace in {key[0] for key in names}],
        )
    connection.close()


def _pair(read_point: ReadPoint, source_name: str) -> tuple[str, str]:
    name = read_point.find(source_name)
    return name.namespace, name.table


def _pinned_location(pinned: Pinned, directory: Path) -> str:
    """A metadata file whose main and current schema are those of the pinned snapshot."""
    snapshot = pinned.snapshot or {}
    metadata = pinned.metadata
    schema_id = pinned.schema_id
    is_main = catalog_metadata.ref(metadata, catalog_metadata.MAIN) == snapshot["snapshot-id"]
    if is_main and schema_id == metadata["current-schema-id"]:
        return pinned.location
    moved = catalog_metadata.with_ref(metadata, catalog_metadata.MAIN, snapshot["snapshot-id"])
    location = f"file:{directory}/00000-{uuid.uuid4()}.metadata.json"
    return catalog_metadata.write_next({**moved, "current-schema-id": schema_id}, location)


@contextmanager
def _session_on(session: SparkSession, lake: LakeSettings, database: Path) -> Iterator[SparkSession]:
    own = sibling(session)
    try:
        properties = {
            "type": "jdbc",
            "uri": f"jdbc:sqlite:file:{database}?mode=ro",
            "warehouse": lake.warehouse_uri,
            "jdbc.schema-version": "V1",
            "cache-enabled": "false",
            **lake.file_properties(),
        }
        define_catalog(own, lake.catalog, properties)
        for key, value in {**LEXING, "spark.sql.session.timeZone": "UTC"}.items():
            own.conf.set(key, value)
        use_namespace(own, lake.catalog, lake.namespace)
        yield own
    finally:
        if is_remote(own):
            own.stop()


def _printable(frame: DataFrame) -> DataFrame:
    """Columns c0…, each of a type that has a PostgreSQL text."""
    numbered = frame.toDF(*(f"c{i}" for i in range(len(frame.columns))))
    expressions = []
    for field in numbered.schema.fields:
        name = field.name
        if isinstance(field.dataType, T.ArrayType | T.MapType | T.StructType):
            expressions.append(f"to_json({name}) AS {name}")
        else:
            expressions.append(
                name if isinstance(field.dataType, _PLAIN) else f"CAST({name} AS STRING) AS {name}"
            )
    return numbered.selectExpr(*expressions)


def _rows(table: pa.Table) -> list[tuple[str | None, ...]]:
    return list(zip(*(_text(column) for column in table.columns), strict=True))


def _text(values: pa.ChunkedArray) -> list[Any]:
    kind = values.type
    if pa.types.is_decimal(kind):
        typmod = ((kind.precision << 16) | kind.scale) + 4
        return list(to_text(values, None, column_type(oids.NUMERIC, typmod)).to_pylist())
    oid = _oid_of(kind)
    if oid is None:
        return list(values.cast(pa.string()).to_pylist())
    target = column_type(oid, -1)
    return list(to_text(values.cast(target.arrow), None, target).to_pylist())


def _oid_of(kind: pa.DataType) -> int | None:
    if pa.types.is_timestamp(kind):
        return oids.TIMESTAMP if kind.tz is None else oids.TIMESTAMPTZ
    if pa.types.is_integer(kind):
        return oids.INT8
    tests = (
        (pa.types.is_boolean, oids.BOOL),
        (pa.types.is_binary, oids.BYTEA),
        (pa.types.is_large_binary, oids.BYTEA),
        (pa.types.is_float32, oids.FLOAT4),
        (pa.types.is_float64, oids.FLOAT8),
        (pa.types.is_date, oids.DATE),
    )
    return next((oid for test, oid in tests if test(kind)), None)
