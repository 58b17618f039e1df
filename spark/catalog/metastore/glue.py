"""AWS Glue: an entry's ``VersionId`` guards its change; there is nothing for several entries at once.

Requests are boto3's, which finds keys as AWS's own programs do (environment, profile, role, web identity)
where ``lake.glue`` has none, and repeats what is throttled.  The package is the extra ``glue``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

from slotlake.decoder.errors import LakeError, SetupError
from slotlake.spark.catalog.base import Move, UnansweredError
from slotlake.spark.catalog.metastore.catalog import (
    LOCATION,
    PREVIOUS,
    TABLE_TYPE,
    MetastorePointers,
    is_possible,
)
from slotlake.spark.catalog.metastore.entries import Entry, RefusedError, columns
from slotlake.spark.lake import LakeSettings
from slotlake.spark.limits import CONNECT_SECONDS, SILENT_SECONDS
from slotlake.spark.names import LakeName
from slotlake.spark.storage.file_io import FILE_IO
from slotlake.spark.tables.metadata import Metadata

try:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError
    from pyiceberg.catalog.glue import GlueCatalog
    from pyiceberg.exceptions import NamespaceNotEmptyError, NoSuchNamespaceError
except ModuleNotFoundError as missing:
    raise SetupError(
        f"lake.uri is AWS Glue, which needs a package that is not installed: {missing.name}",
        where="lake.uri",
        way_out="pip install 'slotlake[glue]'",
    ) from None

_AT_ONCE = 8
_TRIES = 5
_COMMENT_CHARACTERS = 255
# What of an entry may be given back; the rest says how it came about.
_INPUT = ("Name", "Description", "Owner", "Retention", "StorageDescriptor", "PartitionKeys", "TableType")
_MISSING, _THERE = "EntityNotFoundException", "AlreadyExistsException"
_CHANGED = frozenset({"ConcurrentModificationException", "VersionMismatchException", _MISSING})
_LATER = frozenset(
    {
        *("ThrottlingException", "Throttling", "RequestLimitExceeded", "OperationTimeoutException"),
        *("InternalServiceException", "InternalFailure", "ServiceUnavailable", "503", "500"),
    }
)


class GluePointers(MetastorePointers):
    """One client of AWS Glue."""

    def __init__(self, lake: LakeSettings) -> None:
        super().__init__(lake)
        with _explained(lake):
            self._glue = boto3.client(
                "glue",
                region_name=lake.region,
                endpoint_url=lake.glue.get("endpoint"),
                aws_access_key_id=lake.glue.get("access_key"),
                aws_secret_access_key=lake.glue.get("secret_key"),
                aws_session_token=lake.glue.get("session_token"),
                config=Config(
                    connect_timeout=CONNECT_SECONDS,
                    read_timeout=SILENT_SECONDS,
                    max_pool_connections=_AT_ONCE,
                    retries={"mode": "standard", "total_max_attempts": _TRIES},
                ),
            )
            if "catalog_id" in lake.glue:
                _name_catalog(self._glue, lake.glue["catalog_id"])
            self.iceberg = GlueCatalog(lake.catalog, self._glue, warehouse=lake.warehouse_uri, **FILE_IO)

    def close(self) -> None:
        """Close the connections."""
        self._glue.close()

    def entries(self, names: Sequence[LakeName]) -> dict[LakeName, Entry]:
        """Read the entries of these tables, several at a time."""
        wanted = [name for name in dict.fromkeys(names) if is_possible(name)]
        with _explained(self.lake), ThreadPoolExecutor(_AT_ONCE) as pool:
            read = list(pool.map(self._table, wanted))
        entries = {name: _entry(table) for name, table in zip(wanted, read, strict=True) if table}
        return {name: entry for name, entry in entries.items() if entry is not None}

    def entries_in(self, namespace: str) -> dict[LakeName, Entry]:
        """Read the entries of a namespace, a hundred with each request."""
        entries: dict[LakeName, Entry] = {}
        request: dict[str, Any] = {"DatabaseName": namespace}
        with _explained(self.lake):
            while (page := _if_there(self._glue.get_tables, **request)) is not None:
                for table in page["TableList"]:
                    if (entry := _entry(table)) is not None:
                        entries[LakeName(namespace, table["Name"])] = entry
                if "NextToken" not in page:
                    break
                request["NextToken"] = page["NextToken"]
        return entries

    def namespaces(self) -> list[str]:
        """Return the databases."""
        with _explained(self.lake):
            pages = self._glue.get_paginator("get_databases").paginate()
            return [database["Name"] for page in pages for database in page["DatabaseList"]]

    def create(self, name: LakeName, metadata: Metadata, location: str) -> None:
        """Make an entry.

        Raises:
            RefusedError: there is one of that name.
        """
        table = {
            "Name": name.table,
            "TableType": "EXTERNAL_TABLE",
            "Parameters": {TABLE_TYPE: "ICEBERG", LOCATION: location},
            "StorageDescriptor": _storage(metadata),
        }
        with _explained(self.lake), _refused(_THERE):
            self._glue.create_table(DatabaseName=name.namespace, TableInput=table)

    def swap(self, name: LakeName, entry: Entry, move: Move) -> None:
        """Change an entry, if it still has the version that was read.

        Raises:
            RefusedError: it has another.
        """
        parameters = {**entry.raw["Parameters"], LOCATION: move.new, PREVIOUS: entry.location}
        table = {key: entry.raw[key] for key in _INPUT if key in entry.raw}
        change = partial(
            self._glue.update_table,
            DatabaseName=name.namespace,
            TableInput={
                **table,
                "Parameters": parameters,
                "StorageDescriptor": {**table.get("StorageDescriptor", {}), **_storage(move.metadata)},
            },
            SkipArchive=True,  # each version would be kept, up to a limit
        )
        with _explained(self.lake), _refused(*_CHANGED):
            change(**({"VersionId": entry.raw["VersionId"]} if "VersionId" in entry.raw else {}))

    def drop_one(self, name: LakeName) -> None:
        """Remove an entry."""
        if is_possible(name):
            with _explained(self.lake):
                _if_there(self._glue.delete_table, DatabaseName=name.namespace, Name=name.table)

    def drop_namespace(self, namespace: str) -> None:
        """Remove a database that holds nothing; Glue would remove what is in it, too."""
        with _explained(self.lake), suppress(NoSuchNamespaceError, NamespaceNotEmptyError):
            self.iceberg.drop_namespace(namespace)

    def make_namespace(self, namespace: str) -> None:
        """Make a database if it is missing."""
        with _explained(self.lake), suppress(RefusedError), _refused(_THERE):
            if _if_there(self._glue.get_database, Name=namespace) is None:
                self._glue.create_database(DatabaseInput={"Name": namespace})

    def explained(self) -> AbstractContextManager[None]:
        """Turn what the client raises into errors of the lake."""
        return _explained(self.lake)

    def _table(self, name: LakeName) -> Mapping[str, Any] | None:
        answer = _if_there(self._glue.get_table, DatabaseName=name.namespace, Name=name.table)
        return None if answer is None else answer["Table"]


def _entry(table: Mapping[str, Any]) -> Entry | None:
    """An Iceberg table's entry; None of anything else."""
    parameters = table.get("Parameters") or {}
    is_iceberg = parameters.get(TABLE_TYPE, "").lower() == "iceberg"
    return Entry(parameters[LOCATION], table) if is_iceberg and parameters.get(LOCATION) else None


def _storage(metadata: Metadata) -> dict[str, Any]:
    return {
        "Location": metadata["location"],
        "Columns": [
            {
                "Name": name,
                "Type": type_name,
                **({"Comment": comment[:_COMMENT_CHARACTERS]} if comment else {}),
            }
            for name, type_name, comment in columns(metadata)
        ],
    }


def _name_catalog(client: Any, catalog_id: str) -> None:
    """Put the catalog's id into each request."""

    def named(params: dict[str, Any], **_: Any) -> None:
        params.setdefault("CatalogId", catalog_id)

    client.meta.events.register("provide-client-params.glue", named)


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _if_there(ask: Callable[..., dict[str, Any]], **request: Any) -> dict[str, Any] | None:
    """The answer; None if what it is about is not there."""
    try:
        return ask(**request)
    except ClientError as error:
        if _code(error) != _MISSING:
            raise
        return None


@contextmanager
def _refused(*codes: str) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        if _code(error) not in codes:
            raise
        raise RefusedError from None


@contextmanager
def _explained(lake: LakeSettings) -> Iterator[None]:
    """Turn what boto3 raises into a LakeError; its texts may name users and roles.

    Raises:
        LakeError: Glue cannot be reached, or refuses.
    """
    try:
        yield
    except ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if _code(error) in _LATER or status >= 500:
            raise UnansweredError(
                f"AWS Glue failed, or has too much to do: {_code(error)}",
                where=lake.place,
                way_out="run again: it completes what is missing",
            ) from None
        raise LakeError(
            f"AWS Glue refused: {error.operation_name}, {_code(error)}",
            where=lake.place,
            way_out="check the region, lake.glue and its keys, and that this user may read and change these "
            "databases and tables (glue:GetDatabase, GetTable, CreateTable, UpdateTable, DeleteTable …)",
        ) from None
    except BotoCoreError as error:
        raise UnansweredError(
            f"AWS Glue cannot be reached: {type(error).__name__}",
            where=lake.place,
            way_out="check the region (glue://region), lake.glue.endpoint, the network, and that this "
            "machine has AWS keys (environment, profile, role); then run again",
        ) from None
