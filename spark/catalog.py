"""The SQL catalog: all pointers in one query, many pointers moved in one transaction.

The catalog is the two tables that Spark's JdbcCatalog (schema V1) and pyiceberg's SqlCatalog share;
``iceberg_tables.metadata_location`` is a table's pointer.  Whoever moves a pointer does so with
compare-and-set on its old value, so does Iceberg, and so do we: :meth:`Catalog.move` moves all given
pointers, or none.

On SQLite the transaction's first statement is an UPDATE, which takes the write lock at once (as BEGIN
IMMEDIATE would); on PostgreSQL rows are locked in one order, so two publishers cannot block each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables, SqlCatalog
from sqlalchemy import ColumnElement, delete, insert, select, update
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from decoder.errors import LakeError
from spark import lake_files
from spark.lake import LakeSettings
from spark.names import LakeName

_TABLES = IcebergTables.__table__.c


@dataclass(frozen=True)
class Move:
    """A pointer to be moved, and perhaps the table to be renamed with it."""

    name: LakeName
    old: str
    new: str
    rename: LakeName | None = None


class PointerMovedError(LakeError):
    """Someone else changed a table since it was read; nothing was moved."""

    retryable = True


class Catalog:
    """One connection pool to the catalog. ``iceberg`` is pyiceberg's view of the same."""

    def __init__(self, lake: LakeSettings) -> None:
        self.lake = lake
        with _explained(lake):
            self.iceberg = SqlCatalog(
                lake.catalog, uri=lake.sqlalchemy_uri, warehouse=lake.warehouse_uri, pool_pre_ping="true"
            )

    def close(self) -> None:
        """Give back all connections."""
        self.iceberg.engine.dispose()

    def pointers(self) -> dict[LakeName, str]:
        """Every table's metadata location, read in one query: one cut of the catalog."""
        query = select(_TABLES.table_namespace, _TABLES.table_name, _TABLES.metadata_location).where(
            _TABLES.catalog_name == self.lake.catalog, _TABLES.metadata_location.is_not(None)
        )
        with self._transaction() as connection:
            return {LakeName(row[0], row[1]): row[2] for row in connection.execute(query)}

    def move(self, moves: Sequence[Move]) -> None:
        """Move all pointers, or none.

        Raises:
            PointerMovedError: a pointer is no longer what ``old`` says; nothing was moved.
        """
        with self._transaction() as connection:
            for move in sorted(moves, key=lambda m: m.name):
                self._move(connection, move)
            for namespace in sorted({m.rename.namespace for m in moves if m.rename}):
                self._ensure_namespace(connection, namespace)

    def drop(self, names: Sequence[LakeName]) -> None:
        """Forget tables; their files stay."""
        with self._transaction() as connection:
            for name in names:
                connection.execute(delete(IcebergTables).where(*self._is(name)))

    def drop_namespace(self, namespace: str) -> None:
        """Forget a namespace that holds no table."""
        mine = IcebergNamespaceProperties.catalog_name == self.lake.catalog
        with self._transaction() as connection:
            connection.execute(
                delete(IcebergNamespaceProperties).where(
                    mine, IcebergNamespaceProperties.namespace == namespace
                )
            )

    def make_namespace(self, namespace: str) -> None:
        """Make a namespace if missing."""
        with self._transaction() as connection:
            self._ensure_namespace(connection, namespace)

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
            .where(*self._is(move.name), _TABLES.metadata_location == move.old)
            .values(
                metadata_location=move.new,
                previous_metadata_location=move.old,
                table_namespace=target.namespace,
                table_name=target.table,
            )
        )
        if connection.execute(statement).rowcount != 1:
            raise PointerMovedError(
                "a lake table was changed by someone else meanwhile; nothing was published",
                where=f"table {move.name} in {self.lake.place}",
                way_out="run again; if it comes back, find out what else writes to this lake's tables",
            )

    def _ensure_namespace(self, connection: Connection, namespace: str) -> None:
        mine = IcebergNamespaceProperties.catalog_name == self.lake.catalog
        found = connection.execute(
            select(IcebergNamespaceProperties.namespace).where(
                mine, IcebergNamespaceProperties.namespace == namespace
            )
        ).first()
        if found is None:
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
        with _explained(self.lake), self.iceberg.engine.begin() as connection:
            yield connection


@contextmanager
def open_catalog(lake: LakeSettings) -> Iterator[Catalog]:
    """A catalog for one piece of work.

    Raises:
        LakeError: it cannot be reached.
    """
    catalog = Catalog(lake)
    try:
        yield catalog
    finally:
        catalog.close()


def check_lake(lake: LakeSettings) -> None:
    """See that catalog and warehouse can be reached and written; makes both if missing.

    Raises:
        LakeError: which of them cannot, and why.
    """
    lake_files.check_warehouse(lake)
    url = make_url(lake.sqlalchemy_uri)
    if url.get_backend_name() == "sqlite" and url.database:
        lake_files.make_directory(Path(url.database).parent)
    with open_catalog(lake) as catalog:
        catalog.make_namespace(lake.namespace)


@contextmanager
def _explained(lake: LakeSettings) -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        done = "reached" if isinstance(error, OperationalError) else "used"
        raise LakeError(
            f"the catalog cannot be {done}: {_reason(error, lake)}",
            where=lake.place,
            way_out="see that lake.uri is right, the server runs, and this user may read and write there",
        ) from None


def _reason(error: SQLAlchemyError, lake: LakeSettings) -> str:
    """The driver's own first line, without what may be secret."""
    text = str(getattr(error, "orig", None) or error).strip().split("\n")[0]
    password = make_url(lake.uri).password
    return text.replace(str(password), "***") if password else text
