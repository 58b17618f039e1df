"""The SQL catalog in which tables of a REST server are staged: pointers to metadata that is ours.

A pointer is good as long as the published metadata that it began at is still the table's; that is kept as a
property of the table's namespace, which this catalog has anyway, and changes in the same transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables
from sqlalchemy import ColumnElement, delete, insert, select
from sqlalchemy.engine import Connection

from slotlake.spark.catalog.base import Move
from slotlake.spark.catalog.sql import SqlPointers
from slotlake.spark.names import LakeName

_PROPERTIES = IcebergNamespaceProperties.__table__.c
_TABLES = IcebergTables.__table__.c


@dataclass(frozen=True)
class Entry:
    """A table's pointer here, and the published metadata that it began at."""

    location: str
    base: str | None


class StagingTables(SqlPointers):
    """One connection pool to the catalog."""

    def entry(self, name: LakeName) -> Entry | None:
        """Return a table's entry; None if it has none."""
        pointer = select(_TABLES.metadata_location).where(*self._is(name))
        base = select(_PROPERTIES.property_value).where(*self._is_base(name))
        with self._transaction() as connection:
            location = connection.execute(pointer).scalar()
            return None if location is None else Entry(str(location), connection.execute(base).scalar())

    def place(self, entries: Mapping[LakeName, Entry], gone: Sequence[LakeName] = ()) -> None:
        """Set entries, whatever was there.

        Args:
            entries: by table; a base of None is none.
        """
        with self._transaction() as connection:
            for name in sorted({*entries, *gone}):
                connection.execute(delete(IcebergTables).where(*self._is(name)))
                connection.execute(delete(IcebergNamespaceProperties).where(*self._is_base(name)))
            for name, entry in sorted(entries.items()):
                self._ensure_namespace(connection, name.namespace)
                self._insert(connection, name, entry)

    def move_internally(self, moves: Sequence[Move]) -> None:
        """Move pointers of tables that stay where they are published; all of them, or none.

        Raises:
            PointerMovedError: a table is no longer what it was when read.
        """
        super().move(moves)

    def _insert(self, connection: Connection, name: LakeName, entry: Entry) -> None:
        connection.execute(
            insert(IcebergTables).values(
                catalog_name=self.lake.catalog,
                table_namespace=name.namespace,
                table_name=name.table,
                metadata_location=entry.location,
                iceberg_type="TABLE",
            )
        )
        if entry.base is not None:
            connection.execute(
                insert(IcebergNamespaceProperties).values(
                    catalog_name=self.lake.catalog,
                    namespace=name.namespace,
                    property_key=_key(name),
                    property_value=entry.base,
                )
            )

    def _is_base(self, name: LakeName) -> tuple[ColumnElement[bool], ...]:
        return (
            _PROPERTIES.catalog_name == self.lake.catalog,
            _PROPERTIES.namespace == name.namespace,
            _PROPERTIES.property_key == _key(name),
        )


def _key(name: LakeName) -> str:
    """The property of a table's namespace; a table's name can be longer than a property's."""
    return f"slotlake.base.{hashlib.sha256(name.table.encode()).hexdigest()[:40]}"
