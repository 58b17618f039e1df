"""What catalogs have in common that swap one pointer at a time: AWS Glue and the Hive Metastore.

A table's pointer is the parameter ``metadata_location`` of its entry.  The metadata files are ours, as with a
SQL catalog; each entry is then changed by itself, under the server's own guard, in the order given: `commits`
is the last, so that a reader who begins with it finds every table at its point.  These catalogs are served
only with ``lake.publish: per_table``, which says that tables opened at `latest` may differ.

Invariants:

- Before the first entry is changed, all of them are what they were when read; else nothing is changed.
- A file that was prepared is removed only if it is certain that no entry leads to it: an answer that was lost
  may hide a change that was made, so after every refusal the entry is read again.
- Entries that are no Iceberg tables, and names that the catalog would write in another way, are not there.

A new table is made under its visible name, with its content; its hidden entry is dropped afterwards.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from slotlake.decoder.errors import LakeError
from slotlake.decoder.failpoints import reach
from slotlake.spark import lake_files
from slotlake.spark.catalog.base import (
    Catalog,
    Loaded,
    Move,
    PointerMovedError,
    ViewNamespace,
    moved_by_another,
)
from slotlake.spark.catalog.fence import require_lock
from slotlake.spark.catalog.metastore.entries import Entry, RefusedError
from slotlake.spark.catalog.metastore.views import MetastoreViews
from slotlake.spark.catalog.registered_views import RegisteredViews
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import (
    COMMITS,
    LakeName,
    belongs,
    fits_metastore,
    require_metastore_name,
    visible,
)
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import Metadata

TABLE_TYPE, LOCATION, PREVIOUS = "table_type", "metadata_location", "previous_metadata_location"


class PartlyMovedError(LakeError):
    """Someone else changed a table while others were being published; `commits` was not published."""

    retryable = True


class MetastorePointers(Catalog):
    """One connection to such a catalog."""

    def __init__(self, lake: LakeSettings) -> None:
        self.lake = lake
        if lake.publish != "per_table":
            raise LakeError(
                "this catalog cannot publish several tables at once",
                where=lake.place,
                way_out="accept with lake.publish: per_table that tables opened at `latest` can differ in "
                "position (what is pinned through `commits` never does), or use SQLite, PostgreSQL, or a "
                "REST server that can",
            )
        self._places = MetastoreViews(self)
        self.views = RegisteredViews(self._places, lake)

    # -- what a catalog of this kind does ---------------------------------------------------------------

    @abstractmethod
    def entries(self, names: Sequence[LakeName]) -> dict[LakeName, Entry]:
        """Read the entries of these tables; what is missing, or no Iceberg table, is left out."""

    @abstractmethod
    def entries_in(self, namespace: str) -> dict[LakeName, Entry]:
        """Read the entries of all Iceberg tables of a namespace."""

    @abstractmethod
    def namespaces(self) -> list[str]:
        """Return the names of all namespaces that can be this lake's."""

    @abstractmethod
    def create(self, name: LakeName, metadata: Metadata, location: str) -> None:
        """Make an entry.

        Raises:
            RefusedError: there is one of that name.
        """

    @abstractmethod
    def swap(self, name: LakeName, entry: Entry, move: Move) -> None:
        """Change an entry, if it is still what was read.

        Raises:
            RefusedError: it is not.
        """

    @abstractmethod
    def drop_one(self, name: LakeName) -> None:
        """Remove an entry; a missing one is fine."""

    @abstractmethod
    def explained(self) -> AbstractContextManager[None]:
        """Turn what the client raises into errors of the lake, for what is asked through `iceberg`."""

    def locked(self, names: Sequence[LakeName]) -> AbstractContextManager[object]:
        """Keep others, who ask for a lock, from changing these tables."""
        return nullcontext()

    # -- what publishing and reading ask ----------------------------------------------------------------

    def pointers(self) -> Mapping[LakeName, str]:
        """The lake's tables, each read when it is asked for, or all at once; `commits` before the others."""
        return _Pointers(self)

    def pointer(self, name: LakeName) -> str | None:
        """One table's, without the others."""
        if not is_possible(name):
            return None
        entry = self.entries([name]).get(name)
        return None if entry is None else entry.location

    def pointers_of(self, names: Collection[LakeName]) -> Mapping[LakeName, str]:
        """Those of these tables; no other table is asked for."""
        return {name: entry.location for name, entry in self.entries(list(names)).items()}

    def names(self) -> Collection[LakeName]:
        """The Iceberg tables of this lake's namespaces, hidden ones too."""
        return self.all_entries().keys()

    def all_entries(self) -> dict[LakeName, Entry]:
        """Read the entries of all tables of this lake."""
        entries: dict[LakeName, Entry] = {}
        for namespace in self.namespaces():
            own = belongs(visible(namespace), self.lake.namespace)
            if own and not self._places.is_of_views(namespace):
                entries |= self.entries_in(namespace)
        return entries

    def prepared(self, table: Loaded, metadata: Metadata, rename: LakeName | None = None) -> Move:
        """Write the next metadata file and return the move.

        Raises:
            LakeError: the catalog cannot have a table of that name.
        """
        if rename is not None:
            require_metastore_name(self.lake.place, rename)
        return Move(table, metadata, catalog_metadata.write_next(metadata, table.location), rename)

    def forget(self, moves: Sequence[Move]) -> None:
        """Remove those files: no entry leads to them."""
        lake_files.remove([move.new for move in moves])

    def move(self, moves: Sequence[Move]) -> None:
        """Change one entry after the other, in the order given.

        Raises:
            PointerMovedError: a table was no longer what it was when read; nothing was changed.
            PartlyMovedError: so was one after others had been changed.
        """
        if not moves:
            return
        require_lock(self.lake)
        new_names = [move.rename for move in moves if move.rename is not None]
        self.views.require_outside(new_names)
        for namespace in sorted({name.namespace for name in new_names}):
            self.make_namespace(namespace)
        with self.locked([move.name for move in moves]):
            entries = self._unchanged(moves)
            for done, move in enumerate(moves):
                if done:
                    reach("publish.between_tables")
                try:
                    self._one(entries[move.name], move)
                except PointerMovedError as error:
                    if not done:
                        raise
                    self.forget(moves[done:])
                    raise _partly(error, done, len(moves)) from None
        self.drop([move.name for move in moves if move.rename is not None])
        self.views.follow(moves)

    def view_namespaces(self) -> Sequence[ViewNamespace]:
        """The namespaces of pinned views, by name."""
        return self.views.namespaces()

    def view_locations(self, name: LakeName) -> Collection[str]:
        """The metadata files by which pinned views show a table."""
        return self.views.locations(name)

    def bring_views(self) -> None:
        """Make, complete or remove the pinned views."""
        location = self.pointer(LakeName(self.lake.namespace, COMMITS)) if self.lake.views else None
        self.views.bring(None if location is None else catalog_metadata.load(location))

    def require_room_for_views(self) -> None:
        """See that no table is where the views are to be."""
        self.views.require_room()

    def add(self, name: LakeName, location: str) -> None:
        """Make an entry for a metadata file that is there; pyiceberg does not know all types in it.

        Raises:
            LakeError: the catalog cannot have a table of that name, or has one.
        """
        require_metastore_name(self.lake.place, name)
        try:
            self.create(name, catalog_metadata.load(location), location)
        except RefusedError:
            raise moved_by_another(name, self.lake) from None

    def drop(self, names: Sequence[LakeName]) -> None:
        """Forget tables, one after another; `commits`, without which nothing is read, first."""
        self.views.forget_tables(names)
        for name in sorted(names, key=lambda name: (name.table != COMMITS, name)):
            self.drop_one(name)

    def _unchanged(self, moves: Sequence[Move]) -> dict[LakeName, Entry]:
        """The entries that are to be changed, all of them as they were when read."""
        targets = [move.rename for move in moves if move.rename is not None]
        entries = self.entries([*(move.name for move in moves), *targets])
        for move in moves:
            entry = entries.get(move.name)
            if entry is None or entry.location != move.table.location or move.rename in entries:
                raise moved_by_another(move.name, self.lake)
        return entries

    def _one(self, entry: Entry, move: Move) -> None:
        name = move.rename or move.name
        try:
            if move.rename is not None:
                self.create(name, move.metadata, move.new)
            else:
                self.swap(name, entry, move)
        except RefusedError:
            now = self.entries([name]).get(name)
            if now is None or now.location != move.new:  # else: made, and the answer was lost
                raise moved_by_another(name, self.lake) from None


class _Pointers(Mapping[LakeName, str]):
    """Pointers, each read once, when it is asked for."""

    def __init__(self, catalog: MetastorePointers) -> None:
        self._catalog = catalog
        self._read: dict[LakeName, str | None] = {}
        self._all = False

    def __getitem__(self, name: LakeName) -> str:
        if name not in self._read and not self._all:
            self._read[name] = self._catalog.pointer(name)
        location = self._read.get(name)
        if location is None:
            raise KeyError(str(name))
        return location

    def __iter__(self) -> Iterator[LakeName]:
        if not self._all:
            # Before the others: what it names is in them then (spark/read/point.py).
            self.get(LakeName(self._catalog.lake.namespace, COMMITS))
            for name, entry in self._catalog.all_entries().items():
                self._read.setdefault(name, entry.location)
            self._all = True
        return iter(sorted(name for name, location in self._read.items() if location is not None))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def is_possible(name: LakeName) -> bool:
    """Return whether these catalogs can have a table of that name."""
    return fits_metastore(name.namespace) and fits_metastore(name.table)


def _partly(error: PointerMovedError, done: int, of: int) -> PartlyMovedError:
    return PartlyMovedError(
        f"a lake table was changed by someone else meanwhile; {done} of {of} tables were published, "
        "`commits` was not",
        where=error.where,
        way_out="run again: it completes what is missing, and readers who pin through `commits` see nothing "
        "of it before; if it fails again, find out what else writes to this lake's tables",
    )
