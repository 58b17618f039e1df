"""Readers of a lake that are not slotlake's: each reads a table by snapshot id, by tag and as it is now.

All give rows as PostgreSQL's text, so that they can be compared with each other and with the source.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import polars
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog

from slotlake.spark.lake import LakeSettings
from slotlake.spark.read.texts import rows_of
from tests.storage import pyiceberg_properties

Rows = Counter[tuple[tuple[str, str | None], ...]]


class Reader(Protocol):
    """One way to read the lake's tables."""

    name: str
    lake: LakeSettings
    refuses: Mapping[str, str]  # a way to name a point, or a format → what the reader says of it

    def read(self, table: str, version: int | str | None) -> Any:
        """Read a table of the namespace: at a snapshot id, at a tag, or as it is now."""


def rows_in(table: pa.Table) -> Rows:
    """Return a result's rows as a bag of (column, text) pairs; an exact text is put in its column's place."""
    names = table.column_names
    return Counter(_row(names, values) for values in rows_of(table))


def _row(names: list[str], values: tuple[str | None, ...]) -> tuple[tuple[str, str | None], ...]:
    row = dict(zip(names, values, strict=True))
    exact = {name: row.pop(name) for name in names if name.endswith("__exact")}
    row |= {name.removesuffix("__exact"): text for name, text in exact.items() if text is not None}
    return tuple(sorted(row.items()))


@dataclass
class Spark:
    """Spark, over whichever catalog the session is set to."""

    session: Any
    lake: LakeSettings
    name: str = "Spark"
    refuses: Mapping[str, str] = field(default_factory=dict)

    def read(self, table: str, version: int | str | None) -> Any:
        literal = f"'{version}'" if isinstance(version, str) else version
        at = "" if version is None else f" VERSION AS OF {literal}"
        place = f"{self.lake.catalog}.{self.lake.namespace}.{table}"
        return self.session.sql(f"SELECT * FROM {place}{at}").toArrow()


@dataclass
class PyIceberg:
    """pyiceberg, over its own catalog."""

    catalog: Any
    lake: LakeSettings
    name: str = "pyiceberg"
    refuses: Mapping[str, str] = field(default_factory=dict)

    def read(self, table: str, version: int | str | None) -> Any:
        loaded = self.catalog.load_table(f"{self.lake.namespace}.{table}")
        if isinstance(version, str):
            return loaded.scan().use_ref(version).to_arrow()
        return loaded.scan(snapshot_id=version).to_arrow()


@dataclass
class Polars:
    """polars, which asks pyiceberg's catalog for the files and reads them, and their deletes, itself."""

    catalog: Any
    lake: LakeSettings
    name: str = "polars"
    refuses: Mapping[str, str] = field(default_factory=dict)

    def read(self, table: str, version: int | str | None) -> Any:
        loaded = self.catalog.load_table(f"{self.lake.namespace}.{table}")
        version = loaded.metadata.refs[version].snapshot_id if isinstance(version, str) else version
        return polars.scan_iceberg(loaded, snapshot_id=version, reader_override="native").collect().to_arrow()


@dataclass
class DuckFiles:
    """DuckDB by metadata files, of which pyiceberg's catalog says where they are."""

    catalog: Any
    lake: LakeSettings
    name: str = "DuckDB, by file"
    refuses: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._connection = duckdb_connection("httpfs", "avro", "iceberg")
        duckdb_secret(self._connection)

    def read(self, table: str, version: int | str | None) -> Any:
        loaded = self.catalog.load_table(f"{self.lake.namespace}.{table}")
        version = loaded.metadata.refs[version].snapshot_id if isinstance(version, str) else version
        at = "" if version is None else f", snapshot_from_id = {version}"
        scan = f"SELECT * FROM iceberg_scan('{loaded.metadata_location}'{at})"
        return self._connection.execute(scan).to_arrow_table()


@dataclass
class DuckAttached:
    """DuckDB that attaches the REST catalog itself."""

    uri: str
    lake: LakeSettings
    name: str = "DuckDB, attached"
    refuses: Mapping[str, str] = field(default_factory=lambda: {"tag": "Failed to cast"})

    def __post_init__(self) -> None:
        self._connection = duckdb_connection("httpfs", "avro", "iceberg")
        duckdb_secret(self._connection)
        self._connection.execute(
            f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{self.uri}', AUTHORIZATION_TYPE 'none')"
        )

    def read(self, table: str, version: int | str | None) -> Any:
        literal = f"'{version}'" if isinstance(version, str) else version
        at = "" if version is None else f" AT (VERSION => {literal})"
        return self._connection.execute(
            f'SELECT * FROM lake."{self.lake.namespace}"."{table}"{at}'
        ).to_arrow_table()


def pyiceberg_catalog(lake: LakeSettings) -> Catalog:
    """Return pyiceberg's own catalog of a lake of the run, which knows the lake's storage.

    Args:
        lake: with a catalog in a database, or a REST server.
    """
    if lake.is_rest:
        return load_catalog(lake.catalog, type="rest", uri=lake.uri, **pyiceberg_properties())
    place = {"uri": lake.uri, "warehouse": lake.warehouse, **pyiceberg_properties()}
    return load_catalog(lake.catalog, type="sql", **place)


def duckdb_secret(connection: Any) -> None:
    """Tell DuckDB the keys of the bucket in which the run's lakes are, if they are in one.

    Args:
        connection: one that has httpfs.
    """
    properties = pyiceberg_properties()
    if properties:
        keys = {
            "endpoint": "endpoint",
            "access_key": "access-key-id",
            "secret_key": "secret-access-key",
            "region": "region",
        }
        connection.execute(s3_secret({ours: properties[f"s3.{its}"] for ours, its in keys.items()}))


def s3_secret(storage: Mapping[str, str]) -> str:
    """The statement that tells DuckDB the keys of a bucket, from ``lake.storage`` of a pipeline file."""
    host = storage["endpoint"].partition("://")[2]
    return (
        f"CREATE SECRET (TYPE s3, ENDPOINT '{host}', USE_SSL false, URL_STYLE 'path',"
        f" KEY_ID '{storage['access_key']}', SECRET '{storage['secret_key']}', REGION '{storage['region']}')"
    )


def duckdb_connection(*extensions: str) -> Any:
    """A DuckDB with extensions that come as wheels: nothing is fetched."""
    import duckdb

    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    for name in extensions:
        package = importlib.util.find_spec(f"duckdb_extension_{name}")
        assert package is not None
        assert package.origin is not None
        (file,) = Path(package.origin).parent.rglob(f"{name}.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    connection.execute("SET enable_external_file_cache = false; SET TimeZone = 'UTC'")
    return connection


class TrinoError(Exception):
    """What Trino said instead of an answer."""


@dataclass
class Trino:
    """Trino, over its HTTP protocol: a statement is posted, its results are fetched page by page."""

    uri: str
    lake: LakeSettings
    name: str = "Trino 476"
    refuses: Mapping[str, str] = field(default_factory=lambda: {"3": "Unexpected PUFFIN file format"})

    def read(self, table: str, version: int | str | None) -> Any:
        literal = f"'{version}'" if isinstance(version, str) else version
        at = "" if version is None else f" FOR VERSION AS OF {literal}"
        return self.query(f'SELECT * FROM "{self.lake.namespace}"."{table}"{at}')

    def query(self, statement: str) -> Any:
        """Run a statement and return its result in Arrow columns.

        Raises:
            TrinoError: the server refused it.
        """
        page = self._asked(f"{self.uri}/v1/statement", statement.encode())
        columns, rows = page.get("columns"), list(page.get("data") or [])
        while "nextUri" in page:
            page = self._asked(page["nextUri"])
            columns = page.get("columns") or columns
            rows += page.get("data") or []
        if "error" in page:
            raise TrinoError(page["error"]["message"])
        arrays = [
            pa.array([_value(column["type"], row[i]) for row in rows]) for i, column in enumerate(columns)
        ]
        return pa.table(arrays, names=[column["name"] for column in columns])

    def _asked(self, address: str, body: bytes | None = None) -> Any:
        headers = {"X-Trino-User": "test", "X-Trino-Catalog": self.lake.catalog, "X-Trino-Time-Zone": "UTC"}
        request = urllib.request.Request(address, body, headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)


def _value(kind: str, value: Any) -> Any:
    """A value of Trino's JSON as one whose text is PostgreSQL's."""
    if value is None or kind.startswith(("varchar", "decimal", "date")):
        return value
    if kind.startswith("timestamp"):
        return re.sub(r"\.?0+( UTC)?$", r"\1", value).replace(" UTC", "+00")
    return base64.b64decode(value) if kind == "varbinary" else value
