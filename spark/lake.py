"""Where a lake is: catalog, warehouse and namespace, and what of it this version can serve.

The catalog must have the same name in Spark's JdbcCatalog and in pyiceberg's SqlCatalog: the name is
part of every row of ``iceberg_tables``, so both see the same tables only then.

Invariant: nothing here ever prints a password.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from slotlake.decoder.errors import LakeError
from slotlake.decoder.memory import Memory
from slotlake.spark.layout import Layout
from slotlake.spark.limits import CONNECT_SECONDS, SILENT_SECONDS
from slotlake.spark.storage.location import S3_SCHEMES, Location
from slotlake.spark.storage.settings import StorageSettings

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

SQLITE_BUSY_SECONDS = 30
DELEGATION = "header.x-iceberg-access-delegation"
ANSWER_SECONDS = 120  # of a REST server, which writes the tables' metadata files before it answers
# By a location's scheme: what `query` pins lies in a folder of this machine.
_FILE_IO = "org.apache.iceberg.io.ResolvingFileIO"
# Manifests never change: without this each statement fetches all of them again.
_MANIFEST_CACHE = {"io.manifest.cache-enabled": "true", "io.manifest.cache.expiration-interval-ms": "3600000"}
# Iceberg's client has no properties for the keys of Glue (spark/session.py sets those of the process).
_GIVEN_KEYS = "software.amazon.awssdk.auth.credentials.SystemPropertyCredentialsProvider"
_GLUE = re.compile(r"glue(?::(?://(?P<region>[a-z0-9-]*)/?)?)?")
_HIVE = re.compile(r"thrift://[^/,@\s]+:[0-9]+/?(,thrift://[^/,@\s]+:[0-9]+/?)*")
# A request is made at most nine times, with pauses of 0.2 to 20 s; a silent store costs 30 s each time.
_LIMITS = {
    "http-client.urlconnection.connection-timeout-ms": str(CONNECT_SECONDS * 1000),
    "http-client.urlconnection.socket-timeout-ms": "30000",
    "http-client.apache.connection-timeout-ms": str(CONNECT_SECONDS * 1000),
    "http-client.apache.socket-timeout-ms": "30000",
    "s3.retry.num-retries": "8",
    "s3.retry.min-wait-ms": "200",
    "s3.retry.max-wait-ms": "20000",
}
# A server that has gone without a word is noticed at every step; keepalives do not run while something that
# was sent has not been acknowledged.
_WAITS = {
    "connect_timeout": str(CONNECT_SECONDS),
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": str(SILENT_SECONDS * 1000),
}


@dataclass(frozen=True)
class KeepPoints:
    """How much of the past readers can stand at: the newest ``count`` points, none older than ``days``."""

    count: int = 100
    days: float = 7.0


@dataclass(frozen=True)
class LakeSettings:
    """The section ``lake`` of a pipeline file.

    Attributes:
        catalog: the catalog's name, the same in every engine that reads it.
        uri: ``sqlite:////abs/catalog.db``, ``postgresql+psycopg://user:password@host/database``,
            ``https://…`` of a REST catalog, ``glue://region``, ``thrift://host:9083`` of a Hive Metastore.
        warehouse: ``file:///abs/path``, or a plain absolute path; ``s3://…``, ``gs://…``, ``abfss://…``.
        namespace: where tables of the source schema ``public`` go.
        keep: how many consistency points are kept.
        publish: ``atomic``, all tables at once; ``per_table``, one after another, for a REST server that
            cannot do better.
        staging: the SQL catalog in which tables are staged, for a REST server that makes no branches
            (spark/catalog/rest/staged.py); empty: the catalog itself.
        unused_seconds: for so long a snapshot that no kept point needs stays after it was current.
        rest: what pyiceberg and Spark are told about a REST server (token, credential, warehouse …).
        glue: ``endpoint`` and ``catalog_id`` of AWS Glue, where they are not the usual ones, and keys for it.
        table_format: Iceberg's format of new tables, 2 or 3.
        table_formats: of those of some tables, by source name, where it is another.
        layouts: of those tables that are partitioned or sorted, by source name.
        storage: how the warehouse's object store is reached.
        exchange: a folder for files that pass between processes of this machine, where the warehouse is not a
            folder itself.
        views: are there namespaces whose tables are pinned to a point?
        shared: do several machines work on it, so that ranges of a copy must not stay on one?
        slice_bytes: so much memory this process may take for the changes that it folds at a time.
        packs: may a batch that is staged without Spark take the rows of small files into its own file?
        memories: see :meth:`memory`.
    """

    catalog: str
    uri: str = field(repr=False)
    warehouse: str
    namespace: str
    keep: KeepPoints = KeepPoints()
    publish: str = "atomic"
    unused_seconds: float = 300.0
    rest: Mapping[str, str] = field(default_factory=dict, repr=False)
    staging: str = field(default="", repr=False)
    glue: Mapping[str, str] = field(default_factory=dict, repr=False)
    table_format: int = 3
    table_formats: Mapping[str, int] = field(default_factory=dict)
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    storage: StorageSettings = field(default_factory=StorageSettings)
    exchange: Path | None = None
    views: bool = False
    shared: bool = False
    slice_bytes: int = 640 << 20
    packs: bool = True
    memories: dict[tuple[object, ...], Memory] = field(default_factory=dict, compare=False, repr=False)

    @property
    def memory(self) -> Memory:
        """What is remembered of this lake; settings that differ in something else only have the same."""
        key = self.uri, self.catalog, self.namespace, *sorted(self.rest.items())
        return self.memories.setdefault(key, Memory())

    def format_of(self, table: str) -> int:
        """The format that a table, and its derived tables, are to have."""
        return self.table_formats.get(table, self.table_format)

    def layout_of(self, table: str) -> Layout:
        """The layout that a table, and its history, are to have, by the source's columns."""
        return self.layouts.get(table, Layout())

    @property
    def root(self) -> Location:
        """The warehouse as the beginning of the tables' locations, as Iceberg writes them.

        Raises:
            LakeError: the warehouse is neither a folder of this machine nor in an object store.
        """
        if self.is_in_bucket:
            location = Location(self.warehouse.rstrip("/"))
            return Location(f"{location.bucket}/{location.key}".rstrip("/"))
        return Location(f"file://{self.warehouse_path}")

    @property
    def is_in_bucket(self) -> bool:
        """Whether the warehouse is in an object store."""
        return Location(self.warehouse).is_in_bucket

    @property
    def is_rest(self) -> bool:
        """Whether the catalog is a REST server."""
        return urlsplit(self.uri).scheme in ("http", "https")

    @property
    def borrows_keys(self) -> bool:
        """Whether the tables' files are reached by keys that a REST server lends for each table only."""
        asked = [text for name, text in self.rest.items() if name.lower() == DELEGATION]
        lends = any("vended-credentials" in text.lower() for text in asked)
        own = self.storage.access_key is not None or bool(self.staging)
        return lends and self.is_rest and not own and Location(self.warehouse).scheme in S3_SCHEMES

    @property
    def server_writes_metadata(self) -> bool:
        """Whether the catalog's server writes the tables' metadata files, and not this program."""
        return self.is_rest and not self.staging

    @property
    def of_staging(self) -> LakeSettings:
        """The same lake in the SQL catalog in which its tables are staged."""
        return replace(self, uri=self.staging, staging="", rest={})

    @property
    def is_glue(self) -> bool:
        """Whether the catalog is AWS Glue."""
        return self.uri == "glue" or self.uri.startswith("glue:")

    @property
    def is_hive(self) -> bool:
        """Whether the catalog is a Hive Metastore."""
        return self.uri.startswith("thrift:")

    @property
    def is_metastore(self) -> bool:
        """Whether the catalog has no commit of several tables at all, and names in lower case only."""
        return self.is_glue or self.is_hive

    @property
    def can_clone(self) -> bool:
        """Whether the catalog can have, for a moment, a second table in a table's folder."""
        return not (self.is_rest or self.is_metastore)

    @property
    def can_lower_formats(self) -> bool:
        """Whether a table can get a lower format of Iceberg: no REST server has a request for that."""
        return not self.is_rest

    @property
    def region(self) -> str | None:
        """The region of AWS that the catalog is in; None: the one that this machine is set to."""
        return _glue_region(self.uri) or self.storage.region

    @property
    def place(self) -> str:
        """The catalog as it may be shown to a user: without a password."""
        if self.is_metastore:
            return self.uri
        if self.is_rest:
            parts = urlsplit(self.uri)
            return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError

        try:
            return str(_without_secrets(make_url(self.uri)).render_as_string(hide_password=True))
        except ArgumentError:
            return "(a catalog uri that cannot be read)"

    @property
    def warehouse_path(self) -> Path:
        """The warehouse's directory on this machine.

        Raises:
            LakeError: the warehouse is not a directory path of this machine.
        """
        return _warehouse_path(self.warehouse)

    @property
    def warehouse_uri(self) -> str:
        """The warehouse as Spark and pyiceberg take it."""
        return str(self.root) if self.is_in_bucket else self.warehouse_path.as_uri()

    @property
    def sqlalchemy_uri(self) -> str:
        """The catalog as SQLAlchemy and pyiceberg take it, with waiting times set.

        Raises:
            LakeError: this version does not support such a catalog.
        """
        url = _supported(self)
        if url.get_backend_name() == "sqlite":
            return url.update_query_dict({"timeout": str(SQLITE_BUSY_SECONDS)}).render_as_string(
                hide_password=False
            )
        waits = {name: value for name, value in _WAITS.items() if name not in url.query}
        return url.update_query_dict(waits).render_as_string(hide_password=False)

    def spark_properties(self) -> dict[str, str]:
        """Properties of the catalog for Spark, without the ``spark.sql.catalog.<name>`` prefix.

        Raises:
            LakeError: this version does not support such a catalog or warehouse.
        """
        if self.staging:
            return self.of_staging.spark_properties()
        if self.is_rest:
            limits = {
                "rest.client.connection-timeout-ms": str(CONNECT_SECONDS * 1000),
                "rest.client.socket-timeout-ms": str(ANSWER_SECONDS * 1000),
            }
            rest = {"type": "rest", "uri": self.uri, "cache-enabled": "false"}
            # By default Spark's client exchanges its token for a new one, which not every server understands.
            login = {"token-exchange-enabled": "false"} if "credential" in self.rest else {}
            return {**limits, **self.file_properties(), **login, **self.rest, **rest}
        if self.is_metastore:
            own = _glue_properties(self.glue, self.region) if self.is_glue else _hive_properties(self.uri)
            files = self.file_properties() or {"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}
            return {"warehouse": self.warehouse_uri, "cache-enabled": "false", **_LIMITS, **files, **own}
        from slotlake.spark.jdbc import jdbc_properties

        url = _supported(self)
        jdbc = _sqlite_jdbc(url) if url.get_backend_name() == "sqlite" else jdbc_properties(url)
        return {
            "type": "jdbc",
            "warehouse": self.warehouse_uri,
            "jdbc.schema-version": "V1",
            # A second session would otherwise merge from a table as it was before our swap.
            "cache-enabled": "false",
            **self.file_properties(),
            **jdbc,
        }

    def file_properties(self) -> dict[str, str]:
        """Properties of a catalog for Spark that say how it reads and writes the lake's files."""
        if not self.is_in_bucket:
            return {}
        return {
            "io-impl": _FILE_IO,
            **_LIMITS,
            **_MANIFEST_CACHE,
            **self.storage.iceberg_properties(self.root),
        }


def _without_secrets(url: URL) -> URL:
    """An address without what may be secret beside the password, as sslpassword."""
    return url.set(query={k: v for k, v in url.query.items() if k in ("host", "port", "dbname", "user")})


def _supported(lake: LakeSettings) -> URL:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(lake.uri)
    except ArgumentError:
        raise _not_served(lake.place) from None
    backend = _BACKENDS.get(url.drivername)
    if backend is None:
        raise _not_served(lake.place)
    return backend(url)


def _not_served(place: str) -> LakeError:
    return LakeError(
        "this version does not support such a catalog",
        where=place,
        way_out="give lake.uri as sqlite:////absolute/path.db or "
        "postgresql+psycopg://user:password@host/database, https://… of a REST catalog, glue://region, or "
        "thrift://host:9083 of a Hive Metastore",
    )


def _sqlite(url: URL) -> URL:
    if not url.database or not url.database.startswith("/"):
        raise LakeError(
            "the catalog's file must be an absolute path",
            where=url.render_as_string(hide_password=True),
            way_out="write it with four slashes: sqlite:////absolute/path.db",
        )
    return url


def _postgresql(url: URL) -> URL:
    return url.set(drivername="postgresql+psycopg")


_BACKENDS: dict[str, Callable[[URL], URL]] = {
    "sqlite": _sqlite,
    "sqlite+pysqlite": _sqlite,
    "postgresql": _postgresql,
    "postgresql+psycopg": _postgresql,
}


def _sqlite_jdbc(url: URL) -> dict[str, str]:
    return {"uri": f"jdbc:sqlite:{url.database}?busy_timeout={SQLITE_BUSY_SECONDS * 1000}"}


def _warehouse_path(warehouse: str) -> Path:
    parts = urlsplit(warehouse)
    path = Path(unquote(parts.path))
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        raise LakeError(
            "this version cannot use such a warehouse",
            where=warehouse.partition("?")[0],
            way_out="give lake.warehouse as file:///absolute/path, s3://bucket/prefix, gs://bucket/prefix or "
            "abfss://container@account/prefix",
        )
    if not path.is_absolute():
        raise LakeError(
            "the warehouse must be an absolute path",
            where=warehouse,
            way_out="give lake.warehouse as file:///absolute/path",
        )
    return path


def _glue_region(uri: str) -> str | None:
    """The region that stands in the address."""
    match = _GLUE.fullmatch(uri)
    return match["region"] or None if match else None


def _glue_properties(settings: Mapping[str, str], region: str | None) -> dict[str, str]:
    """Return the properties of Spark's catalog for AWS Glue."""
    given = {
        "client.region": region,
        "glue.endpoint": settings.get("endpoint"),
        "glue.id": settings.get("catalog_id"),
        "client.credentials-provider": _GIVEN_KEYS if "access_key" in settings else None,
    }
    return {"type": "glue", **{name: text for name, text in given.items() if text is not None}}


def _hive_properties(uri: str) -> dict[str, str]:
    """Return the properties of Spark's catalog for a Hive Metastore."""
    return {
        "type": "hive",
        "uri": uri,
        "hadoop.hive.metastore.client.socket.timeout": f"{ANSWER_SECONDS}s",
        "hadoop.hive.metastore.client.connect.retry.delay": "1s",
    }


def is_metastore_address(uri: str) -> bool:
    """Return whether this is an address of AWS Glue or of a Hive Metastore, without a fault."""
    return bool(_GLUE.fullmatch(uri) or _HIVE.fullmatch(uri))
