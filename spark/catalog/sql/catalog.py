"""The SQL catalog: all pointers in one query, many pointers moved in one transaction.

The catalog is the two tables that Spark's JdbcCatalog (schema V1) and pyiceberg's SqlCatalog share;
``iceberg_tables.metadata_location`` is a table's pointer.  Whoever moves a pointer does so with
compare-and-set on its old value, so does Iceberg, and so do we: :meth:`SqlPointers.move` moves all
given pointers, or none.

On SQLite the transaction's first statement is an UPDATE, which takes the write lock at once (as BEGIN
IMMEDIATE would); on PostgreSQL rows are locked in one order, so two publishers cannot block each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.abc import RV, PQGen
from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables, SqlCatalog
from sqlalchemy import ColumnElement, and_, delete, event, insert, or_, select, text, update
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from slotlake.decoder.errors import LakeError
from slotlake.spark import lake_files
from slotlake.spark.catalog import views
from slotlake.spark.catalog.base import (
    Catalog,
    Loaded,
    Move,
    UnansweredError,
    ViewNamespace,
    moved_by_another,
)
from slotlake.spark.catalog.fence import require_lock
from slotlake.spark.catalog.listing import Listing, listing_of_rows, listing_of_texts
from slotlake.spark.catalog.sql.pointer_texts import ROWS, PointerTexts, Row
from slotlake.spark.catalog.sql.postgresql_looks import PostgresqlLooks
from slotlake.spark.catalog.sql.sqlite_looks import asked_of, texts_of_file, texts_of_sqlite
from slotlake.spark.lake import LakeSettings
from slotlake.spark.limits import SILENT_SECONDS
from slotlake.spark.names import COMMITS, LakeName
from slotlake.spark.storage.file_io import FILE_IO
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import Metadata

LOCK_SECONDS = 20
_INTERVAL_SECONDS = 0.1
# SQLite takes 32,766 parameters in a statement; above this, reading all rows costs little more.
_NAMED_IN_A_QUERY_MAX = 1000
_TABLES = IcebergTables.__table__.c
# Who makes a new catalog's tables at the same moment as somebody else finds them made by the next look.
_MADE_BY_ANOTHER = ("already exists", "pg_type_typname_nsp_index", "pg_class_relname_nsp_index")
_MAKERS_MAX = 3


class _Bounded(psycopg.Connection[Any]):
    """A connection of which every answer must come within :data:`SILENT_SECONDS`; else it is closed.

    A server that is frozen, or a proxy before one that is gone, acknowledges what it gets and says nothing.
    """

    def wait(self, gen: PQGen[RV], interval: float = _INTERVAL_SECONDS, timeout: float | None = None) -> RV:
        try:
            return super().wait(gen, interval, SILENT_SECONDS if timeout is None else timeout)
        except psycopg.errors.QueryCanceled:
            raise
        except psycopg.OperationalError:
            if self.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                self.close()  # it waits for an answer still: nothing else can be said over it
            raise


class _PatientCatalog(SqlCatalog):
    """pyiceberg's, with a PostgreSQL that is not waited for without end, and tables that several may make."""

    def _init_catalog(self) -> None:
        if self.engine.dialect.name == "postgresql":
            event.listen(self.engine, "do_connect", _connect)
            event.listen(self.engine, "begin", _bound_locks)
        try:
            self._make_tables()
        except BaseException:
            self.engine.dispose()  # nobody will have this catalog, to close it
            raise

    def _make_tables(self) -> None:
        for _ in range(_MAKERS_MAX):
            try:
                super()._init_catalog()
            except (IntegrityError, OperationalError, ProgrammingError) as error:
                if not any(word in str(error.orig) for word in _MADE_BY_ANOTHER):
                    raise
            else:
                return
        super()._init_catalog()


def _connect(dialect: Any, record: Any, arguments: Any, parameters: Any) -> psycopg.Connection[Any]:
    return _Bounded.connect(*arguments, **parameters)


def _bound_locks(connection: Connection) -> None:
    """In each transaction: a pooler may give the next one another session."""
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")


class SqlPointers(Catalog):
    """One connection pool to a SQLite or PostgreSQL catalog."""

    def __init__(self, lake: LakeSettings) -> None:
        self.lake = lake
        with explained(lake):
            self._sql = _PatientCatalog(
                lake.catalog,
                uri=lake.sqlalchemy_uri,
                warehouse=lake.warehouse_uri,
                pool_pre_ping="true",
                **FILE_IO,
            )
        self.iceberg = self._sql

    def close(self) -> None:
        """Give back all connections."""
        self._sql.engine.dispose()

    def pointers(self) -> dict[LakeName, str]:
        """Every table's metadata location, read in one query: one cut of the catalog."""
        rows = self._texts().rows()
        if rows is None:
            rows = self._rows()
        return {LakeName(namespace, table): location for namespace, table, location in rows}

    def listing(self) -> Listing:
        """The same of the lake's own tables, by the same query."""
        return listing_of_texts(self.lake, self._texts()) or listing_of_rows(self.lake, self._rows())

    def _texts(self) -> PointerTexts:
        if (texts := texts_of_file(self.lake)) is not None:
            return texts
        with self._transaction() as connection:

            def ask(query: str, parameters: Mapping[str, str]) -> Any:
                return connection.exec_driver_sql(query, dict(parameters)).one_or_none()

            def ask_all(query: str, parameters: Mapping[str, str]) -> Sequence[Any]:
                return connection.execute(text(query), parameters).all()

            if connection.dialect.name == "postgresql":
                looks = self.lake.memory.of(PostgresqlLooks)
                return looks.texts(connection.connection.driver_connection, ask_all, asked_of(self.lake))
            return texts_of_sqlite(ask, asked_of(self.lake))

    def _rows(self) -> list[Row]:
        """A row per table, where names can only be told apart so."""
        with self._transaction() as connection:
            rows: Iterator[Row] = map(tuple, connection.execute(text(ROWS), asked_of(self.lake)))
            return list(rows)

    def pointer(self, name: LakeName) -> str | None:
        """One table's, without the others."""
        query = select(_TABLES.metadata_location).where(*self._is(name))
        with self._transaction() as connection:
            location = connection.execute(query).scalar()
        return None if location is None else str(location)

    def pointers_of(self, names: Collection[LakeName]) -> Mapping[LakeName, str]:
        """Those of these tables, in one query; where they are very many, out of all."""
        if not names:
            return {}
        if len(names) > _NAMED_IN_A_QUERY_MAX:
            return super().pointers_of(names)
        by_namespace: dict[str, list[str]] = {}
        for name in names:
            by_namespace.setdefault(name.namespace, []).append(name.table)
        named = [
            and_(_TABLES.table_namespace == namespace, _TABLES.table_name.in_(tables))
            for namespace, tables in by_namespace.items()
        ]
        query = select(_TABLES.table_namespace, _TABLES.table_name, _TABLES.metadata_location).where(
            _TABLES.catalog_name == self.lake.catalog,
            _TABLES.metadata_location.is_not(None),
            _TABLES.table_namespace.not_in(views.marked(self.lake.catalog)),
            or_(*named),
        )
        with self._transaction() as connection:
            return {LakeName(row[0], row[1]): row[2] for row in connection.execute(query)}

    def names(self) -> Collection[LakeName]:
        """The tables of the same query."""
        return self.pointers().keys()

    def own_names(self, head: int | None) -> AbstractSet[LakeName]:
        """The tables of the listing; the same object as before, if none came or went."""
        return self.listing().names

    def prepared(self, table: Loaded, metadata: Metadata, rename: LakeName | None = None) -> Move:
        """Write the next metadata file and return the move."""
        return Move(table, metadata, catalog_metadata.write_next(metadata, table.location), rename)

    def forget(self, moves: Sequence[Move]) -> None:
        """Remove those files: no pointer leads to them."""
        lake_files.remove([move.new for move in moves])

    def move(self, moves: Sequence[Move]) -> None:
        """Move all pointers in one transaction, each guarded by its old value."""
        require_lock(self.lake)
        with self._transaction() as connection:
            for move in sorted(moves, key=lambda m: m.name):
                self._move(connection, move)
            for namespace in sorted({m.rename.namespace for m in moves if m.rename}):
                self._ensure_namespace(connection, namespace)
            moved = {move.rename or move.name: move.metadata for move in moves}
            views.follow(connection, self.lake, moved.keys(), moved.get(self._commits))

    def drop(self, names: Sequence[LakeName]) -> None:
        """Forget tables; their files stay."""
        with self._transaction() as connection:
            for name in names:
                connection.execute(delete(IcebergTables).where(*self._is(name)))
            views.forget_tables(connection, self.lake, names)

    def drop_namespace(self, namespace: str) -> None:
        """Forget a namespace that holds no table."""
        of_catalog = IcebergNamespaceProperties.catalog_name == self.lake.catalog
        with self._transaction() as connection:
            connection.execute(
                delete(IcebergNamespaceProperties).where(
                    of_catalog, IcebergNamespaceProperties.namespace == namespace
                )
            )

    def view_namespaces(self) -> list[ViewNamespace]:
        """The namespaces of pinned views, by name."""
        with self._transaction() as connection:
            return views.view_namespaces(connection, self.lake)

    def view_locations(self, name: LakeName) -> list[str]:
        """The metadata files by which pinned views show a table."""
        with self._transaction() as connection:
            return views.locations(connection, self.lake, name)

    def bring_views(self) -> None:
        """Make or remove the pinned views, if the settings ask for it and no publication has yet."""
        with self._transaction() as connection:
            if self.lake.views == bool(views.view_namespaces(connection, self.lake)):
                return
        location = self.pointer(self._commits)
        if location is not None:
            commits = catalog_metadata.load(location)
            with self._transaction() as connection:
                views.follow(connection, self.lake, (), commits)

    def require_room_for_views(self) -> None:
        """See that no table is where the views are to be."""
        if self.lake.views:
            with self._transaction() as connection:
                views.require_free(connection, self.lake)

    def make_namespace(self, namespace: str) -> None:
        """Make a namespace if missing."""
        with self._transaction() as connection:
            self._ensure_namespace(connection, namespace)

    @property
    def _commits(self) -> LakeName:
        return LakeName(self.lake.namespace, COMMITS)

    def _is(self, name: LakeName) -> tuple[ColumnElement[bool], ...]:
        return (
            _TABLES.catalog_name == self.lake.catalog,
            _TABLES.table_namespace == name.namespace,
            _TABLES.table_name == name.table,
        )

    def _move(self, connection: Connection, move: Move) -> None:
        target = move.rename or move.name
        statement = (
            update(IcebergTables)
            .where(*self._is(move.name), _TABLES.metadata_location == move.table.location)
            .values(
                metadata_location=move.new,
                previous_metadata_location=move.table.location,
                table_namespace=target.namespace,
                table_name=target.table,
            )
        )
        if connection.execute(statement).rowcount != 1:
            raise moved_by_another(move.name, self.lake)

    def _ensure_namespace(self, connection: Connection, namespace: str) -> None:
        of_catalog = IcebergNamespaceProperties.catalog_name == self.lake.catalog
        existing = connection.execute(
            select(IcebergNamespaceProperties.namespace).where(
                of_catalog, IcebergNamespaceProperties.namespace == namespace
            )
        ).first()
        if existing is None:
            connection.execute(
                insert(IcebergNamespaceProperties).values(
                    catalog_name=self.lake.catalog,
                    namespace=namespace,
                    property_key="exists",
                    property_value="true",
                )
            )

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with explained(self.lake), self._sql.engine.begin() as connection:
            yield connection


@contextmanager
def explained(lake: LakeSettings) -> Iterator[None]:
    """Turn what SQLAlchemy raises into a LakeError without anything secret.

    Raises:
        LakeError: the catalog cannot be reached, or refuses.
    """
    try:
        yield
    except SQLAlchemyError as error:
        original = getattr(error, "orig", None)
        if isinstance(original, psycopg.errors.LockNotAvailable):
            raise UnansweredError(
                f"a row of the catalog has been locked by someone else for {LOCK_SECONDS} s",
                where=lake.place,
                way_out="end the transaction that holds it (pg_locks: on iceberg_tables), then run again: "
                "nothing was changed",
            ) from None
        if isinstance(original, psycopg.OperationalError) and original.sqlstate is None:
            raise UnansweredError(
                f"the catalog cannot be reached: {_reason(error, lake)}",
                where=lake.place,
                way_out="check that the server runs and can be reached from here, then run again",
            ) from None
        done = "reached" if isinstance(error, OperationalError) else "used"
        raise LakeError(
            f"the catalog cannot be {done}: {_reason(error, lake)}",
            where=lake.place,
            way_out="check that lake.uri is right, the server runs, and this user may read and write there",
        ) from None


def _reason(error: SQLAlchemyError, lake: LakeSettings) -> str:
    """The driver's own first line, without what may be secret."""
    text = str(getattr(error, "orig", None) or error).strip().split("\n")[0]
    url = make_url(lake.uri)
    for secret in (url.password, url.query.get("password"), url.query.get("sslpassword")):
        text = text.replace(str(secret), "***") if secret else text
    return text
