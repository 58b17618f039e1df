"""A DuckDB for one statement: views of the tables that it reads, and no way to any other file.

Invariant: when the statement runs, the database may open files below the tables' own folders only, loads no
extension, has no name from this Python process, and no setting can be changed any more.  A file there holds
rows of a table that the statement may read anyway.

DuckDB reads each table by a metadata file whose main and current schema are those of the point; where the
table's own file is not such a one, it is written to a private folder for as long as the statement runs.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyiceberg.manifest import read_manifest_list

from slotlake.decoder.errors import SetupError
from slotlake.spark.lake import LakeSettings
from slotlake.spark.read.duck.quoting import literal, quoted
from slotlake.spark.read.pinned import Pinned
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.read.table_names import pinned_metadata
from slotlake.spark.storage.base import StoreRefusedError, StoreUnavailableError
from slotlake.spark.storage.file_io import StoreFileIO
from slotlake.spark.storage.folder import local_path
from slotlake.spark.storage.location import S3_SCHEMES, Location
from slotlake.spark.storage.settings import StorageSettings
from slotlake.spark.storage.stores import canonical, settings_of
from slotlake.spark.tables.metadata import Metadata

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_EXTENSIONS = ("avro", "iceberg")  # each needs those before it
_S3_EXTENSIONS = ("httpfs",)
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    # DuckDB would hash 60 MB for a signature of the two extensions, a sixth of a second.  They come from
    # wheels, as Python's own modules do, and once the statement runs nothing can be loaded.
    "allow_unsigned_extensions": "true",
}
_SETTINGS = (
    # DuckDB 1.5.5 reads a wrong deletion vector with this cache (docs/adr/0031).
    "SET enable_external_file_cache = false",
    "SET python_enable_replacements = false",
    "SET TimeZone = 'UTC'",
    "SET default_null_order = 'nulls_first_on_asc_last_on_desc'",  # as Spark
)
# Names that DuckDB has itself, and the lake's catalog cannot get.
_RESERVED = frozenset({"memory", "system", "temp", "main", "pg_catalog", "information_schema"})
_OTHER_CATALOG = "slotlake_lake"
# No condition passes it, so DuckDB chooses no files by the condition.
_NO_LIMIT = f" LIMIT {2**63 - 1}"
Views = Mapping[tuple[str, str], Pinned]


def unreadable_reason(read_point: ReadPoint) -> str | None:
    """Return why DuckDB cannot read the tables of a point; None if it can."""
    try:
        _extension_files()
    except SetupError as error:
        return error.what
    pointers = (each.pointer for each in read_point.pinned.values())
    schemes = {Location(pointer).scheme for pointer in pointers} - {"file", *S3_SCHEMES}
    if schemes:
        return f"DuckDB reads folders and S3 here, not {min(schemes)}://"
    try:
        if read_point.lake.is_in_bucket and not read_point.lake.borrows_keys:
            read_point.lake.storage.keys()
    except (StoreRefusedError, StoreUnavailableError) as error:
        return error.what
    return None


@contextmanager
def new_database() -> Iterator[DuckDBPyConnection]:
    """A DuckDB in memory, without extensions; it can still open any file.

    Raises:
        SetupError: DuckDB is not installed.
    """
    _extension_files()
    import duckdb

    with closing(duckdb.connect(":memory:", config=_CONFIG)) as connection:
        for setting in _SETTINGS:
            connection.execute(setting)
        yield connection


@contextmanager
def reading(connection: DuckDBPyConnection, lake: LakeSettings, views: Views) -> Iterator[None]:
    """Make views of tables, and close everything else, for one statement.

    Args:
        lake: the lake; names without a namespace are looked up in its own.
        views: namespace and name, as the statement writes them, of each table that it reads.

    Raises:
        SetupError: an extension of DuckDB's version is not installed.
    """
    catalog, namespace = lake.catalog, lake.namespace
    _load_extensions(connection, _EXTENSIONS + _S3_EXTENSIONS * lake.is_in_bucket)
    if lake.is_in_bucket:
        for statement in _secrets(lake, views):
            connection.execute(statement)
    with tempfile.TemporaryDirectory(prefix="slotlake-query-") as name:  # mode 0700
        folder = Path(name)
        numbered = enumerate(views.items())
        locations = {key: _location(pinned, folder, number) for number, (key, pinned) in numbered}
        place = quoted(catalog_name(catalog, views))
        connection.execute(f"ATTACH ':memory:' AS {place}")
        for schema in {namespace, *(schema for schema, _ in views)}:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {place}.{quoted(schema)}")
        _close(connection, [name, *(each for pinned in views.values() for each in _folders(pinned))])
        for (schema, table), location in locations.items():
            limit = _NO_LIMIT if has_early_moments(views[schema, table]) else ""
            connection.execute(
                f"CREATE VIEW {place}.{quoted(schema)}.{quoted(table)} AS "
                f"SELECT * FROM iceberg_scan({literal(location)}){limit}"
            )
        connection.execute(f"USE {place}.{quoted(namespace)}")
        connection.execute("SET lock_configuration = true")
        yield


def _load_extensions(connection: DuckDBPyConnection, names: tuple[str, ...]) -> None:
    import duckdb

    for file in _extension_files(names):
        try:
            connection.execute(f"LOAD {literal(str(file))}")
        except duckdb.Error as error:
            raise _not_installed(str(error).splitlines()[0]) from None


def catalog_name(catalog: str, views: Views) -> str:
    """Return what the lake's catalog is called in DuckDB, where no name may mean two things."""
    used = {schema.lower() for schema, _ in views}
    return _OTHER_CATALOG if catalog.lower() in _RESERVED | used else catalog


def _close(connection: DuckDBPyConnection, folders: list[str]) -> None:
    """Allow these folders, then nothing else."""
    listed = ", ".join(literal(f"{each}/") for each in dict.fromkeys(folders))
    connection.execute(f"SET temp_directory = {literal(f'{folders[0]}/spill')}")
    connection.execute(f"SET allowed_directories = [{listed}]")
    connection.execute("SET enable_external_access = false")


# -- files: the only place that knows where DuckDB reads ----------------------------------------------------


def _location(pinned: Pinned, folder: Path, number: int) -> str:
    """The metadata file by which DuckDB reads a table as it was at the point."""
    metadata = pinned_metadata(pinned)
    if metadata is None:
        return _place(pinned.location)
    path = folder / f"{number}.metadata.json"
    path.write_text(json.dumps(metadata), encoding="utf-8")
    return str(path)


def _folders(pinned: Pinned) -> Iterator[str]:
    """Where a table's files are."""
    yield Location(_place(pinned.location)).parent
    yield _place(pinned.metadata["location"])


def _place(location: str) -> str:
    """A location as DuckDB names it: a path, or an address."""
    where = canonical(location)
    return where if where.is_in_bucket else str(local_path(where))


def _secrets(lake: LakeSettings, views: Views) -> Iterator[str]:
    """The statements that tell DuckDB how the lake's bucket is reached, and no other."""
    if not lake.borrows_keys:
        yield _secret("lake", lake.storage, lake.root.bucket)
        return
    folders = dict.fromkeys(_place(pinned.metadata["location"]) for pinned in views.values())
    for number, folder in enumerate(folders):
        yield _secret(f"table_{number}", settings_of(f"{folder}/data"), f"{folder}/")


def _secret(name: str, storage: StorageSettings, scope: str) -> str:
    address, keys = urlsplit(storage.endpoint or ""), storage.keys()
    parts = {"KEY_ID": keys.access_key, "SECRET": keys.secret_key, "SESSION_TOKEN": keys.token}
    parts |= {"REGION": storage.signing_region()}
    parts |= {"ENDPOINT": address.netloc, "URL_STYLE": "path" if storage.uses_paths else "vhost"}
    listed = ", ".join(f"{key} {literal(text)}" for key, text in parts.items() if text)
    secure = "false" if address.scheme == "http" else "true"
    return f"CREATE SECRET {name} (TYPE s3, SCOPE {literal(scope)}, USE_SSL {secure}, {listed})"


def _extension_files(names: tuple[str, ...] = _EXTENSIONS) -> list[Path]:
    """The extensions, which come as wheels: nothing is fetched.

    Raises:
        SetupError: one is missing, or of another version than DuckDB.
    """
    engine = importlib.util.find_spec("duckdb")
    if engine is None:
        raise _not_installed("there is no package duckdb")
    import duckdb

    return [_extension_file(name, duckdb.__version__) for name in names]


def _extension_file(name: str, version: str) -> Path:
    package = importlib.util.find_spec(f"duckdb_extension_{name}")
    if package is None or package.origin is None:
        raise _not_installed(f"there is no package duckdb-extension-{name}")
    file = Path(package.origin).parent / "extensions" / f"v{version}" / f"{name}.duckdb_extension"
    if not file.exists():
        raise _not_installed(f"duckdb-extension-{name} is not of DuckDB's version {version}")
    return file


def _not_installed(reason: str) -> SetupError:
    return SetupError(
        f"DuckDB cannot read the lake: {reason}",
        where="this Python's packages duckdb, duckdb-extension-avro and duckdb-extension-iceberg",
        way_out="install all three in one version (pip install slotlake does), or use --engine spark",
    )


# Which tables DuckDB would read wrongly by the day or month of a moment: those with moments before 1970.
#
# DuckDB 1.5.5 rounds such days and months up, Iceberg rounds them down, so a condition on the column leaves
# out files that have such rows.  The summaries of a manifest list say whether a table has them; no manifest
# is read.

_MISREAD = frozenset({"day", "month"})
_MOMENTS = frozenset({"timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})


def has_early_moments(pinned: Pinned) -> bool:
    """Return whether some partition is the day or month of moments before 1970."""
    places = _misread_places(pinned.metadata)
    snapshot = pinned.snapshot
    if not places or snapshot is None:
        return False
    listed = StoreFileIO().new_input(snapshot["manifest-list"])
    return any(
        _is_early(manifest.partitions[place].lower_bound)
        for manifest in read_manifest_list(listed)
        for place in places.get(manifest.partition_spec_id, ())
        if manifest.partitions
    )


def _misread_places(metadata: Metadata) -> dict[int, list[int]]:
    """Spec → which of its fields are days or months of moments."""
    types = {field["id"]: field["type"] for schema in metadata["schemas"] for field in schema["fields"]}
    places = {
        spec["spec-id"]: [
            place
            for place, field in enumerate(spec["fields"])
            if field["transform"] in _MISREAD and types.get(field["source-id"]) in _MOMENTS
        ]
        for spec in metadata["partition-specs"]
    }
    return {spec: misread for spec, misread in places.items() if misread}


def _is_early(lower_bound: bytes | None) -> bool:
    """Whether a bound, an integer of days or months since 1970 with its lowest byte first, is negative."""
    return lower_bound is not None and int.from_bytes(lower_bound, "little", signed=True) < 0
