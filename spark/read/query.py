"""An analyst's SQL in Spark, with every table pinned to one cut.

The cut becomes a catalog of its own: a small read-only SQLite file whose pointers lead to the pinned
snapshots, under the catalog's usual name, in a session of its own.  So every way to name a table
gives the pinned one: ``orders``, ``shop.orders``, ``lake.shop.orders``, and as the source names it,
``public.orders``; Iceberg's metadata tables too; and nothing can be written.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812 - Spark's own short name

from slotlake.decoder.errors import LakeError
from slotlake.decoder.lsn import format_lsn
from slotlake.spark import exchange, lake_files
from slotlake.spark.java import java_ended
from slotlake.spark.lake import LakeSettings
from slotlake.spark.maintenance.unreadable import damage_behind_query
from slotlake.spark.names import literal, quote
from slotlake.spark.read.pinned import Pinned
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.read.query_check import Readable, checked_statement
from slotlake.spark.read.query_parser import LEXING, java_view, path_java
from slotlake.spark.read.result import QueryResult
from slotlake.spark.read.table_names import Names, all_names, pinned_metadata
from slotlake.spark.session import define_catalog, is_remote, shares_files, sibling, use_namespace
from slotlake.spark.session_errors import SPARK_ERRORS, message
from slotlake.spark.storage.location import Location
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
# Spark types whose values come as Arrow values; others are printed by Spark.
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
    return query_at(session, ReadPoint.of(lake, at), sql, java=java)


def query_at(
    session: SparkSession, read_point: ReadPoint, sql: str, *, java: Callable[[], str] = path_java
) -> QueryResult:
    """Run an analyst's SELECT with every table as it is at a read point.

    Args:
        java: finds the ``java`` that parses for a remote session.

    Raises:
        LakeError: the SQL is wrong or no query of this lake's tables.
    """
    lake, names = read_point.lake, all_names(read_point)
    readable = Readable(lake.catalog, lake.namespace, names.keys(), lambda name: _is_catalog(session, name))
    statement = checked_statement(java_view(session, java), sql, readable)
    with pinned_session(session, read_point, _mentioned(names, sql)) as own:
        try:
            use_namespace(own, lake.catalog, lake.namespace)
            frame = own.sql(statement)
            columns = list(frame.columns)
            return QueryResult.of(columns, _printable(frame).toArrow(), read_point.position)
        except KeyboardInterrupt:
            own.interruptAll()
            raise
        except SPARK_ERRORS as error:
            if (ended := java_ended(error)) is not None:
                raise ended from error
            read = [(each.name, each.metadata, each.snapshot) for each in _mentioned(names, sql).values()]
            is_mistake = isinstance(error, AnalysisException)
            if not is_mistake and (damaged := damage_behind_query(error, read)) is not None:
                raise damaged from error
            raise LakeError(
                f"the query failed: {message(error)}",
                where=f"at {format_lsn(read_point.position)}",
                way_out="tables are named as in the source (public.orders) or as in the lake (shop.orders)",
            ) from error


def _is_catalog(session: SparkSession, name: str) -> bool:
    return session.conf.get(f"spark.sql.catalog.{name}", None) is not None


def _mentioned(names: Names, sql: str) -> Names:
    """The tables that a query can mean: its text has their name, or writes names in another way."""
    text = sql.lower()
    if "``" in text or "show" in text:
        return names
    return {key: pinned for key, pinned in names.items() if key[-1].lower() in text}


@contextmanager
def pinned_session(session: SparkSession, read_point: ReadPoint, names: Names) -> Iterator[SparkSession]:
    """A session whose catalog has these tables as they are at the point, and no others."""
    if shares_files(session):
        with (
            _pinned_catalog(read_point, names) as database,
            _session_on(session, read_point.lake, _on_sqlite(read_point.lake, f"{database}?mode=ro")) as own,
        ):
            yield own
        return
    folder = read_point.lake.root / exchange.CONTROL_DIRECTORY / "cuts" / uuid.uuid4().hex
    in_memory = f"slotlake_{uuid.uuid4().hex}?mode=memory&cache=shared"  # of the JVM that opens it
    with _session_on(session, read_point.lake, _on_sqlite(read_point.lake, in_memory)) as own:
        try:
            _register(own, read_point.lake, names, folder)
            yield own
        finally:
            lake_files.remove_tree(folder)


def _register(own: SparkSession, lake: LakeSettings, names: Names, folder: Location) -> None:
    """Make the tables known to a catalog that begins empty, in the memory of Spark's driver."""
    catalog = lake.catalog
    locations = {pinned.name: _pinned_location(pinned, folder) for pinned in names.values()}
    for namespace in {lake.namespace, *(key[0] for key in names)}:
        own.sql(f"CREATE NAMESPACE IF NOT EXISTS {quote(catalog)}.{quote(namespace)}").collect()
    for key, pinned in names.items():
        table = literal(".".join(quote(part) for part in (catalog, *key)))
        place = literal(locations[pinned.name])
        call = f"CALL {quote(catalog)}.system.register_table(table => {table}, metadata_file => {place})"
        own.sql(call).collect()


@contextmanager
def _pinned_catalog(read_point: ReadPoint, names: Names) -> Iterator[Path]:
    directory = exchange.exchange_directory(read_point.lake, "cuts", uuid.uuid4().hex)
    try:
        database = directory / "catalog.db"
        _write_catalog(database, read_point.lake, names)
        yield database
    finally:
        exchange.remove_directory(directory)


def _write_catalog(database: Path, lake: LakeSettings, names: Names) -> None:
    pinned = {each.name: each for each in names.values()}
    folder = Location(f"file:{database.parent}")
    locations = {name: _pinned_location(each, folder) for name, each in pinned.items()}
    connection = sqlite3.connect(database)
    with connection:
        connection.execute(_TABLES)
        connection.execute(_NAMESPACES)
        connection.executemany(
            "INSERT INTO iceberg_tables VALUES (?, ?, ?, ?, NULL, 'TABLE')",
            [(lake.catalog, *key, locations[each.name]) for key, each in names.items()],
        )
        connection.executemany(
            "INSERT INTO iceberg_namespace_properties VALUES (?, ?, 'exists', 'true')",
            [(lake.catalog, namespace) for namespace in {lake.namespace, *(key[0] for key in names)}],
        )
    connection.close()


def _pinned_location(pinned: Pinned, folder: Location) -> str:
    """A metadata file whose main and current schema are those of the pinned snapshot."""
    metadata = pinned_metadata(pinned)
    if metadata is None:
        return pinned.location
    return catalog_metadata.write_next(metadata, folder / f"00000-{uuid.uuid4()}.metadata.json")


def _on_sqlite(lake: LakeSettings, database: str) -> dict[str, str]:
    return {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:file:{database}",
        "warehouse": lake.warehouse_uri,
        "jdbc.schema-version": "V1",
        "cache-enabled": "false",
        **lake.file_properties(),
    }


@contextmanager
def _session_on(
    session: SparkSession, lake: LakeSettings, properties: Mapping[str, str]
) -> Iterator[SparkSession]:
    own = sibling(session)
    try:
        define_catalog(own, lake.catalog, properties)
        for key, value in {**LEXING, "spark.sql.session.timeZone": "UTC"}.items():
            own.conf.set(key, value)
        yield own
    finally:
        if is_remote(own):
            own.stop()


def _printable(frame: DataFrame) -> DataFrame:
    """Columns c0…, each of a type that Arrow has; what it has not is printed by Spark."""
    numbered = frame.toDF(*(f"c{i}" for i in range(len(frame.columns))))
    return numbered.selectExpr(*(_expression(field) for field in numbered.schema.fields))


def _expression(field: T.StructField) -> str:
    if _is_plain(field.dataType):
        return field.name
    if isinstance(field.dataType, T.ArrayType | T.MapType | T.StructType):
        return f"to_json({field.name}) AS {field.name}"
    return f"CAST({field.name} AS STRING) AS {field.name}"


def _is_plain(kind: T.DataType) -> bool:
    if isinstance(kind, T.ArrayType):
        return _is_plain(kind.elementType)
    if isinstance(kind, T.MapType):
        return _is_plain(kind.keyType) and _is_plain(kind.valueType)
    if isinstance(kind, T.StructType):
        one_of_each = len(set(kind.names)) == len(kind.names)  # Arrow's structs in Spark take no name twice
        return one_of_each and all(_is_plain(field.dataType) for field in kind.fields)
    return isinstance(kind, _PLAIN)
