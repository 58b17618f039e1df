"""A REST server that keeps one snapshot of a table, with a SQL catalog in which its tables are staged.

Such a server makes no branches and no tags: Nessie's is one.  So the whole metadata of a table (its
snapshots, the branch ``stage``, the tags of the kept points) is ours, as with a SQL catalog, and Spark works
on it in a SQL catalog of this pipeline alone.  The server's table has a property that says where the
published metadata is, and its own main is the same snapshot.  All tables of a point change there by one
request: the server is the only truth about what is published.

Invariants: what the SQL catalog has of a table is used only while it began at the metadata that the server
names; else it is thrown away.  So it can be lost at any moment, and costs a batch that is applied again.
A server's main that none of our snapshots is was written by somebody else, and is shown as such.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables
from sqlalchemy import ColumnElement, delete, insert, select
from sqlalchemy.engine import Connection, make_url

from slotlake.decoder.errors import LakeError
from slotlake.spark import exchange
from slotlake.spark.catalog.base import Catalog, Loaded, Move, ViewNamespace, moved_by_another
from slotlake.spark.catalog.fence import require_lock
from slotlake.spark.catalog.rest.catalog import RestPointers
from slotlake.spark.catalog.rest.changes import COPYING, Change
from slotlake.spark.catalog.rest.pointers import Pointers
from slotlake.spark.catalog.rest.published import (
    METADATA_PROPERTY,
    STAGED_PROPERTIES,
    published_change,
    published_content,
    published_creation,
)
from slotlake.spark.catalog.rest.session import Answered
from slotlake.spark.catalog.sql.catalog import SqlPointers
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import COMMITS, LakeName, belongs, copying, is_copying, visible
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import MAIN, STAGE, Metadata

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog as IcebergCatalog


class StagedCatalog(Catalog):
    """A session with the server, and the SQL catalog."""

    def __init__(self, lake: LakeSettings) -> None:
        self.lake = lake
        self._server = RestPointers(lake)
        self._answered: dict[LakeName, Answered] = {}

    def close(self) -> None:
        """Close the connections of the SQL catalog."""
        if "_staging" in vars(self):
            self._staging.close()

    @cached_property
    def _staging(self) -> StagingTables:
        """The SQL catalog; who only looks at a lake that is not there yet makes none."""
        _make_folder(self.lake.staging)
        return StagingTables(self.lake.of_staging)

    @cached_property
    def iceberg(self) -> IcebergCatalog:  # type: ignore[override]  # others have it from the beginning
        """The SQL catalog as pyiceberg has it."""
        return self._staging.iceberg

    def pointers(self) -> Mapping[LakeName, str]:
        """The lake's tables, each asked for when it is needed."""
        return Pointers(self.names, self._location)

    def pointers_of(self, names: Collection[LakeName]) -> Mapping[LakeName, str]:
        """Those of these tables, several asked for at a time; no other table is."""
        return Pointers(self.names, self._location).of(names)

    def names(self) -> Collection[LakeName]:
        """Every table that the server has, and those that are being filled."""
        hidden = {
            name
            for name in (self._staging.names() if self._is_there else ())
            if is_copying(name.namespace) and belongs(visible(name.namespace), self.lake.namespace)
        }
        return hidden | self._server.names()

    @property
    def _is_there(self) -> bool:
        """Whether the SQL catalog can have tables: its file is not made by looking."""
        file = _file(self.lake.staging)
        return file is None or file.exists()

    def prepared(self, table: Loaded, metadata: Metadata, rename: LakeName | None = None) -> Move:
        """Write the next metadata file and return the move."""
        return self._staging.prepared(table, metadata, rename)

    def forget(self, moves: Sequence[Move]) -> None:
        """Remove the metadata files of moves that were not made."""
        self._staging.forget(moves)

    def move(self, moves: Sequence[Move]) -> None:
        """Make all moves; what readers see of them changes by one request to the server."""
        require_lock(self.lake)
        internal = [move for move in moves if _is_internal(move)]
        public = [move for move in moves if not _is_internal(move)]
        new_names = [move.rename for move in public if move.rename is not None]
        self._server.views.require_outside(new_names)
        self._publish(public)
        entries = {move.rename or move.name: Entry(move.new, move.new) for move in public}
        if entries:
            # Who reads from now on finds what the server names, whatever becomes of this.
            self._staging.place(entries, [move.name for move in public])
            self._answered.clear()
        if internal:
            self._staging.move_internally(internal)
        self._server.views.follow(public)

    def add(self, name: LakeName, location: str) -> None:
        """Add a table of which there is a metadata file, here and on the server."""
        metadata = catalog_metadata.load(location)
        move = Move(Loaded(copying(name), location, metadata), metadata, location, name)
        self._publish([move])
        self._staging.place({name: Entry(location, location)})

    def bring(self, name: LakeName) -> None:
        """Publish the main that Spark has made, if the server has another."""
        location = self._location(name)
        if location is None:
            return
        table = Loaded(name, location, catalog_metadata.load(location))
        server = self._answered[name].metadata
        if catalog_metadata.ref(table.metadata, MAIN) != catalog_metadata.ref(server, MAIN):
            self._answered_move(table)

    def files_of(self, name: LakeName) -> Collection[str]:
        """The server's own metadata file, and the published one of ours."""
        answered = self._server.answered(name)
        if answered is None:
            return ()
        published = answered.metadata.get("properties", {}).get(METADATA_PROPERTY)
        return [answered.location, *([published] if published else [])]

    def view_namespaces(self) -> Sequence[ViewNamespace]:
        """The namespaces of pinned views, which the server has."""
        return self._server.view_namespaces()

    def view_locations(self, name: LakeName) -> Collection[str]:
        """The metadata files by which pinned views show a table."""
        return self._server.view_locations(name)

    def bring_views(self) -> None:
        """Make, complete or remove the pinned views."""
        views = self.lake.views
        location = self._location(LakeName(self.lake.namespace, COMMITS)) if views else None
        self._server.views.bring(None if location is None else catalog_metadata.load(location))

    def require_room_for_views(self) -> None:
        """See that no table is where the views are to be."""
        self._server.require_room_for_views()

    def discard(self, name: LakeName, pipeline: str) -> None:
        """Drop what a crashed attempt has left on the server."""
        self._server.discard(name, pipeline)

    def drop(self, names: Sequence[LakeName]) -> None:
        """Forget tables, here and on the server; their files stay."""
        self._server.drop([name for name in names if not is_copying(name.namespace)])
        self._staging.place({}, names)

    def drop_namespace(self, namespace: str) -> None:
        """Forget a namespace that holds no table."""
        if not is_copying(namespace):
            self._server.drop_namespace(namespace)
        self._staging.drop_namespace(namespace)

    def make_namespace(self, namespace: str) -> None:
        """Make a namespace if missing; one of tables that are being filled is not shown to anyone."""
        if not is_copying(namespace):
            self._server.make_namespace(namespace)
        self._staging.make_namespace(namespace)

    # -- what a table is now -----------------------------------------------------------------------------

    def _location(self, name: LakeName) -> str | None:
        if is_copying(name.namespace):
            return self._staging.pointer(name)
        answered = self._server.answered(name)
        if answered is None or COPYING in answered.metadata.get("properties", {}):
            return None
        self._answered[name] = answered
        published = answered.metadata.get("properties", {}).get(METADATA_PROPERTY)
        if published is None:  # somebody else's
            catalog_metadata.remember(answered.location, answered.metadata, answered.size)
            return answered.location
        entry = self._staging.entry(name)
        if entry is None or entry.base != published:
            entry = Entry(published, published)
            self._staging.place({name: entry})
        return self._with_foreign(name, entry, answered.metadata)

    def _with_foreign(self, name: LakeName, entry: Entry, server: Metadata) -> str:
        """The table as our metadata has it, with the server's main on top if that is none of ours."""
        head = catalog_metadata.head(server)
        metadata = catalog_metadata.load(entry.location)
        if head is None or catalog_metadata.snapshot(metadata, head["snapshot-id"]) is not None:
            return entry.location
        snapshot = {
            **{key: value for key, value in head.items() if key != "schema-id"},
            "parent-snapshot-id": catalog_metadata.ref(metadata, MAIN),
            "sequence-number": max(int(head["sequence-number"]), int(metadata["last-sequence-number"]) + 1),
        }
        grown = {
            **metadata,
            "snapshots": [*metadata.get("snapshots", ()), snapshot],
            "last-sequence-number": snapshot["sequence-number"],
        }
        grown = catalog_metadata.with_ref(grown, MAIN, snapshot["snapshot-id"])
        location = catalog_metadata.write_next(grown, entry.location)
        self._staging.place({name: replace(entry, location=location)})
        return location

    # -- changes -----------------------------------------------------------------------------------------

    def _publish(self, moves: Sequence[Move]) -> None:
        """Tell the server, by one request."""
        new_tables = [move for move in moves if move.rename is not None]
        changes = {id(move): self._change(move) for move in moves if move.rename is None}
        if not new_tables:
            self._server.commit(list(changes.values()))
            return
        for move in new_tables:
            self._server.discard_for(move)
        whole = {id(move): published_creation(move) for move in new_tables}
        content = {id(move): published_content(move) for move in new_tables}
        self._server.make(
            [(changes | whole)[id(move)] for move in moves],
            [published_creation(move, content=False) for move in new_tables],
            [(changes | content)[id(move)] for move in moves],
        )

    def _change(self, move: Move) -> Change:
        if move.name not in self._answered:
            self._location(move.name)
        answered = self._answered.get(move.name)
        if answered is None:
            raise LakeError(
                "a table of the lake is not in the catalog any more",
                where=f"table {move.name} in {self.lake.place}",
                way_out="run `slotlake recover`, which copies it again",
            )
        head = catalog_metadata.head(answered.metadata)
        if head and catalog_metadata.snapshot(move.table.metadata, head["snapshot-id"]) is None:
            raise moved_by_another(move.name, self.lake)
        return published_change(move.name, answered.metadata, move.metadata, move.new)

    def _answered_move(self, table: Loaded) -> None:
        """Publish a table as it is staged here: its metadata file is there."""
        self.move([Move(table, table.metadata, table.location)])


def _is_internal(move: Move) -> bool:
    """Whether a move changes nothing that the server has: a table out of sight, or what is staged."""
    if move.rename is not None:
        return False
    is_published_again = move.new == move.table.location
    return is_copying(move.name.namespace) or (
        not is_published_again and _without_stage(move.table.metadata) == _without_stage(move.metadata)
    )


def _without_stage(metadata: Metadata) -> dict[str, Any]:
    refs = {name: ref for name, ref in metadata.get("refs", {}).items() if name != STAGE}
    properties = {
        key: text for key, text in metadata.get("properties", {}).items() if key not in STAGED_PROPERTIES
    }
    return {**metadata, "refs": refs, "properties": properties}


def _make_folder(staging: str) -> None:
    if (file := _file(staging)) is not None:
        exchange.make_directory(file.parent)


def _file(staging: str) -> Path | None:
    """The file of a SQLite catalog."""
    url = make_url(staging)
    return Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None


# The SQL catalog in which tables of a REST server are staged: pointers to metadata that is ours.
#
# A pointer is good as long as the published metadata that it began at is still the table's; that is kept as a
# property of the table's namespace, which this catalog has anyway, and changes in the same transaction.

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
