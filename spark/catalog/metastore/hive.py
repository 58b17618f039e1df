"""A Hive Metastore: tables are locked, compared, and changed one after another.

The lock is the one that Spark, Flink and Hive ask for before they change an Iceberg table; it covers all
tables of a point.  Servers that know it (2.3.10, 4.0) are also asked to compare the old pointer themselves,
for those who take no lock.  The client is pyiceberg's generated one; ``thrift`` is the extra ``hive``.
"""

from __future__ import annotations

import getpass
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from slotlake.decoder.errors import LakeError, SetupError
from slotlake.spark.catalog.base import Move, UnansweredError, moved_by_another
from slotlake.spark.catalog.metastore.catalog import (
    LOCATION,
    PREVIOUS,
    TABLE_TYPE,
    MetastorePointers,
    is_possible,
)
from slotlake.spark.catalog.metastore.entries import Entry, RefusedError, columns
from slotlake.spark.lake import ANSWER_SECONDS, LakeSettings
from slotlake.spark.limits import CONNECT_SECONDS
from slotlake.spark.names import LakeName
from slotlake.spark.storage.file_io import FILE_IO
from slotlake.spark.tables.metadata import Metadata

try:
    from hive_metastore import ttypes as hive
    from hive_metastore.ThriftHiveMetastore import Client
    from pyiceberg.catalog.hive import HiveCatalog
    from thrift.protocol.TBinaryProtocol import TBinaryProtocol
    from thrift.Thrift import TApplicationException, TException
    from thrift.transport.TSocket import TSocket
    from thrift.transport.TTransport import TBufferedTransport, TTransportException
except ModuleNotFoundError as missing:
    raise SetupError(
        f"lake.uri is a Hive Metastore, which needs a package that is not installed: {missing.name}",
        where="lake.uri",
        way_out="pip install 'slotlake[hive]'",
    ) from None

_LOCK_SECONDS, _POLL_SECONDS = 60.0, 0.2
_AT_ONCE = 200
_SERDE = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"
_INPUT, _OUTPUT = "org.apache.hadoop.mapred.FileInputFormat", "org.apache.hadoop.mapred.FileOutputFormat"
# Derby and others keep a parameter in so many characters; Iceberg leaves out what is longer, too.
_PARAMETER_CHARACTERS = 32672
# A server of Hive 2 fails at the type of timestamps that Hive 3 has.
_HIVE_2 = {"hive.hive2-compatible": "true"}
_INCOMPATIBLE = ("types incompatible", "type expected at the position")
_NO_STATISTICS = {"DO_NOT_UPDATE_STATS": "true"}


class _IncompatibleError(Exception):
    """The server refuses another type in the place of a column (disallow.incompatible.col.type.changes)."""


class _Connection:
    """One connection, opened when it is first used; also what pyiceberg's catalog is given as its client."""

    def __init__(self, uri: str) -> None:
        self._uris = [urlsplit(each) for each in uri.split(",")]
        self._transport: Any = None
        self._client: Any = None

    def __enter__(self) -> Any:
        if self._client is None:
            self._open()
        return self._client

    def __exit__(self, *failure: object) -> None:
        if isinstance(failure[1], TTransportException | OSError):
            self.close()  # what was asked may still be answered

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._transport = self._client = None

    def _open(self) -> None:
        for at, parts in enumerate(self._uris):
            wire = TSocket(parts.hostname, parts.port)
            wire.setTimeout(CONNECT_SECONDS * 1000)
            transport = TBufferedTransport(wire)
            try:
                transport.open()
            except TTransportException:
                if at + 1 == len(self._uris):
                    raise
                continue
            wire.setTimeout(ANSWER_SECONDS * 1000)
            self._transport, self._client = transport, Client(TBinaryProtocol(transport))
            self._client.set_ugi(_user(), [])
            return


class _Catalog(HiveCatalog):
    """pyiceberg's, which would wait for ever, over a connection that does not."""

    @staticmethod
    def _create_hive_client(properties: dict[str, str]) -> Any:
        return _Connection(properties["uri"])


class HivePointers(MetastorePointers):
    """One connection to a Hive Metastore."""

    def __init__(self, lake: LakeSettings) -> None:
        super().__init__(lake)
        with _explained(lake):
            place = {"uri": lake.uri, "warehouse": lake.warehouse_uri}
            self.iceberg = _Catalog(lake.catalog, **place, **_HIVE_2, **FILE_IO)
        self._connection = _Connection(lake.uri)
        self._one_at_a_time = threading.RLock()  # a connection has one question at a time

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()
        self.iceberg._client.close()  # type: ignore[attr-defined]  # noqa: SLF001

    def entries(self, names: Sequence[LakeName]) -> dict[LakeName, Entry]:
        """Read the entries of these tables, many with each request."""
        by_namespace: dict[str, list[str]] = {}
        for name in dict.fromkeys(names):
            if is_possible(name):
                by_namespace.setdefault(name.namespace, []).append(name.table)
        entries: dict[LakeName, Entry] = {}
        for namespace, tables in by_namespace.items():
            entries |= self._entries(namespace, tables)
        return entries

    def entries_in(self, namespace: str) -> dict[LakeName, Entry]:
        """Read the entries of a namespace."""
        with self._asked() as client:
            tables = client.get_all_tables(namespace)
        return self._entries(namespace, tables)

    def namespaces(self) -> list[str]:
        """Return the databases that begin like the lake's."""
        with self._asked() as client:
            return list(client.get_databases(f"{self.lake.namespace}*"))

    @contextmanager
    def locked(self, names: Sequence[LakeName]) -> Iterator[None]:
        """Hold the locks of all these tables.

        Raises:
            UnansweredError: someone else has held one of them for too long.
        """
        parts = [
            hive.LockComponent(hive.LockType.EXCLUSIVE, hive.LockLevel.TABLE, name.namespace, name.table)
            for name in dict.fromkeys(names)
        ]
        with self._asked() as client:
            lock = client.lock(hive.LockRequest(parts, user=_user(), hostname=socket.gethostname()))
        try:
            self._await(lock)
            yield
        finally:
            with suppress(TException, OSError, LakeError), self._asked() as client:
                client.unlock(hive.UnlockRequest(lock.lockid))

    def create(self, name: LakeName, metadata: Metadata, location: str) -> None:
        """Make an entry.

        Raises:
            RefusedError: there is one of that name.
        """
        own = {**_properties(metadata), "EXTERNAL": "TRUE", TABLE_TYPE: "ICEBERG", LOCATION: location}
        table = hive.Table(
            tableName=name.table,
            dbName=name.namespace,
            owner=_user(),
            createTime=int(time.time()),
            sd=_storage(metadata),
            partitionKeys=[],
            parameters=own,
            tableType="EXTERNAL_TABLE",
        )
        with self._asked() as client:
            try:
                client.create_table(table)
            except hive.AlreadyExistsException:
                raise RefusedError from None

    def swap(self, name: LakeName, entry: Entry, move: Move) -> None:
        """Change an entry; it is locked, and was read under the lock.

        Raises:
            RefusedError: it is not what was read.
        """
        table = entry.raw
        before, after = _properties(move.table.metadata), _properties(move.metadata)
        others = {
            key: text for key, text in table.parameters.items() if key not in before.keys() - after.keys()
        }
        table.parameters = {**others, **after, LOCATION: move.new, PREVIOUS: entry.location}
        table.sd = _storage(move.metadata)
        try:
            self._alter(name, table, entry.location)
        except _IncompatibleError:
            # The server compares columns by their places; with none there is nothing to compare.
            table.sd.cols = []
            self._alter(name, table, entry.location)
            table.sd = _storage(move.metadata)
            with suppress(LakeError, RefusedError, _IncompatibleError):  # people see them; readers do not ask
                self._alter(name, table, move.new)

    def make_room_for_columns(self, name: LakeName) -> None:
        """Leave the entry without columns: the server compares those of a change with it by their places.

        Spark writes the columns with its change; no field could be added to a struct, which a change log has,
        otherwise.

        Raises:
            PointerMovedError: somebody else changes it.
        """
        with self.locked([name]):
            entry = self.entries([name]).get(name)
            if entry is None or not entry.raw.sd.cols:
                return
            entry.raw.sd.cols = []
            try:
                self._alter(name, entry.raw, entry.location)
            except RefusedError:
                raise moved_by_another(name, self.lake) from None

    def _alter(self, name: LakeName, table: Any, expected: str) -> None:
        """Change an entry whose metadata file is the one that is expected."""
        guard = {"expected_parameter_key": LOCATION, "expected_parameter_value": expected}
        context = hive.EnvironmentContext({**_NO_STATISTICS, **guard})
        with self._asked() as client:
            try:
                client.alter_table_with_environment_context(name.namespace, name.table, table, context)
            except hive.NoSuchObjectException:
                raise RefusedError from None
            except (hive.MetaException, hive.InvalidOperationException) as error:
                # HiveAlterHandler.java has no classes of their own for these.
                text = str(error.message)
                if any(part in text for part in _INCOMPATIBLE):
                    raise _IncompatibleError from None
                if "has been modified" in text or "doesn't exist" in text:
                    raise RefusedError from None
                raise

    def drop_one(self, name: LakeName) -> None:
        """Remove an entry."""
        if is_possible(name):
            with self._asked() as client, suppress(hive.NoSuchObjectException):
                client.drop_table(name.namespace, name.table, deleteData=False)

    def drop_namespace(self, namespace: str) -> None:
        """Remove a database that holds nothing."""
        gone = (hive.NoSuchObjectException, hive.InvalidOperationException)
        with self._asked() as client, suppress(*gone):
            client.drop_database(namespace, deleteData=False, cascade=False)

    def make_namespace(self, namespace: str) -> None:
        """Make a database if it is missing."""
        with self._asked() as client:
            if namespace not in client.get_databases(namespace):
                with suppress(hive.AlreadyExistsException):
                    client.create_database(hive.Database(name=namespace, parameters={}))

    def _entries(self, namespace: str, tables: Sequence[str]) -> dict[LakeName, Entry]:
        entries = {}
        for at in range(0, len(tables), _AT_ONCE):
            for table in self._tables(namespace, list(tables[at : at + _AT_ONCE])):
                parameters = table.parameters or {}
                is_iceberg = parameters.get(TABLE_TYPE, "").lower() == "iceberg"
                if is_iceberg and parameters.get(LOCATION):
                    entries[LakeName(namespace, table.tableName)] = Entry(parameters[LOCATION], table)
        return entries

    def _tables(self, namespace: str, tables: list[str]) -> list[Any]:
        with self._asked() as client:
            try:
                return list(client.get_table_objects_by_name(namespace, tables))
            except TApplicationException:
                # The generated client does not know how Hive 2 says that there is no such database.
                if namespace in client.get_databases(namespace):
                    raise
                return []

    def _await(self, lock: Any) -> None:
        give_up = time.monotonic() + _LOCK_SECONDS
        while lock.state == hive.LockState.WAITING and time.monotonic() < give_up:
            time.sleep(_POLL_SECONDS)
            with self._asked() as client:
                lock = client.check_lock(hive.CheckLockRequest(lock.lockid))
        if lock.state != hive.LockState.ACQUIRED:
            raise UnansweredError(
                f"someone else has held the lock of a lake table for {_LOCK_SECONDS:.0f} s",
                where=self.lake.place,
                way_out="see who has it (SHOW LOCKS in Hive); the Metastore takes it from a client that has "
                "died after hive.txn.timeout, 5 minutes by default; then run again: nothing was changed",
            )

    def explained(self) -> AbstractContextManager[None]:
        """Turn what the client raises into errors of the lake."""
        return _explained(self.lake)

    @contextmanager
    def _asked(self) -> Iterator[Any]:
        with self._one_at_a_time, _explained(self.lake), self._connection as client:
            yield client


def _user() -> str:
    """As Hadoop's clients do."""
    with suppress(KeyError, OSError):  # a container may have no name for its user
        return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    return "slotlake"


def _properties(metadata: Metadata) -> dict[str, str]:
    """A table's properties, as far as an entry can have them."""
    properties: dict[str, str] = {**metadata.get("properties", {}), "uuid": metadata["table-uuid"]}
    return {key: text for key, text in properties.items() if len(text) <= _PARAMETER_CHARACTERS}


def _storage(metadata: Metadata) -> Any:
    return hive.StorageDescriptor(
        cols=[hive.FieldSchema(name, kind, comment) for name, kind, comment in columns(metadata)],
        location=metadata["location"],
        inputFormat=_INPUT,
        outputFormat=_OUTPUT,
        serdeInfo=hive.SerDeInfo(serializationLib=_SERDE),
    )


@contextmanager
def _explained(lake: LakeSettings) -> Iterator[None]:
    """Turn what the client raises into a LakeError.

    Raises:
        LakeError: the Metastore cannot be reached, or refuses.
    """
    try:
        yield
    except (TTransportException, OSError) as error:
        raise UnansweredError(
            f"the Hive Metastore cannot be reached, or has not answered for {ANSWER_SECONDS} s: "
            f"{type(error).__name__}",
            where=lake.place,
            way_out="check that lake.uri is right and that the server runs, then run again: it completes "
            "what is missing",
        ) from None
    except TException as error:
        text = str(getattr(error, "message", "") or "").split("\n")[0][:200]
        raise LakeError(
            f"the Hive Metastore refused: {type(error).__name__} {text}".rstrip(),
            where=lake.place,
            way_out="see the Metastore's log; it must reach the warehouse itself, and have the tables for "
            "locks (schematool); Kerberos is not supported",
        ) from None
