"""What publishing and reading ask of a catalog, whatever kind it is.

A table's *pointer* is the location of its metadata file.  A change of tables is prepared first (slow,
seen by nobody) and then made by one call: all tables of it, or none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog.listing import Listing, listing_of_pointers
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import Metadata
from slotlake.spark.tables.schema import PIPELINE_PROPERTY

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog as IcebergCatalog

VIEWS_SUFFIX = "__at"


@dataclass(frozen=True)
class Loaded:
    """A table as the catalog points at it now."""

    name: LakeName
    location: str
    metadata: Metadata


@dataclass(frozen=True)
class Move:
    """A table's next metadata, prepared, and perhaps the name that it gets with it.

    Attributes:
        table: as it was read; the move fails if it is that no more.
        metadata: what it becomes.
        new: where that is written; empty where the server writes it.
        rename: its new name.
    """

    table: Loaded
    metadata: Metadata
    new: str
    rename: LakeName | None = None

    @property
    def name(self) -> LakeName:
        """The table's present name."""
        return self.table.name


@dataclass(frozen=True)
class ViewNamespace:
    """A namespace of views.

    Attributes:
        base: the namespace of the tables.
        position: the point at which its views are; None if that is not known.
        made: when it was made, in seconds since 1970.
    """

    name: str
    base: str
    position: int | None
    made: float

    @property
    def follows(self) -> bool:
        """Whether it follows the lake."""
        return self.name == self.base + VIEWS_SUFFIX


class PointerMovedError(LakeError):
    """Someone else changed a table since it was read; nothing was moved."""

    retryable = True


class UnansweredError(LakeError):
    """The catalog did not answer a change in time, or failed at it: perhaps the change was made."""

    retryable = True


class Catalog(ABC):
    """One connection to a catalog. ``iceberg`` is pyiceberg's view of the same."""

    lake: LakeSettings
    iceberg: IcebergCatalog

    @abstractmethod
    def close(self) -> None:
        """Close all connections."""

    @abstractmethod
    def pointers(self) -> Mapping[LakeName, str]:
        """Return every table's metadata location.

        A SQL catalog reads them in one query, so they belong together.  A REST catalog has no such query: it
        reads each location when it is asked for, so ask for `commits` first (spark/read/point.py says why
        that is enough).
        """

    def pointer(self, name: LakeName) -> str | None:
        """Return one table's metadata location; None if there is no such table."""
        return self.pointers().get(name)

    def pointers_of(self, names: Collection[LakeName]) -> Mapping[LakeName, str]:
        """Return the metadata locations of these tables, read as :meth:`pointers` reads them.

        What a batch does must not cost more where the lake has thousands of other tables.

        Args:
            names: of tables; those that are not there are left out.
        """
        pointers = self.pointers()
        return {name: pointers[name] for name in names if name in pointers}

    def listing(self) -> Listing:
        """Return the pointers of the lake's own tables, with what has changed since the last look.

        On REST, while a sync runs, some are as they were read lately (looks.py): build nothing on them.
        """
        return listing_of_pointers(self.lake, self.pointers())

    @abstractmethod
    def names(self) -> Collection[LakeName]:
        """Return the names of all tables, without reading any table."""

    def own_names(self, head: int | None) -> AbstractSet[LakeName]:
        """Return at least the names of the lake's own tables, without reading any table.

        Args:
            head: the snapshot of `commits` that they are asked for.
        """
        return frozenset(self.names())

    @abstractmethod
    def prepared(self, table: Loaded, metadata: Metadata, rename: LakeName | None = None) -> Move:
        """Prepare a table's next metadata; nobody sees it before :meth:`move`.

        Args:
            rename: its new name; None: it keeps its name.
        """

    def in_present(self, metadata: Metadata) -> Metadata:
        """Return metadata without times that are ahead of this machine's clock, where it is written here."""
        return catalog_metadata.in_present(metadata)

    @abstractmethod
    def move(self, moves: Sequence[Move]) -> None:
        """Make all moves, or none.

        Raises:
            PointerMovedError: a table is no longer what it was when read; nothing was moved.
        """

    @abstractmethod
    def forget(self, moves: Sequence[Move]) -> None:
        """Remove what :meth:`prepared` wrote for moves that were certainly not made."""

    @abstractmethod
    def drop(self, names: Sequence[LakeName]) -> None:
        """Remove tables from the catalog; their files stay."""

    def discard(self, name: LakeName, pipeline: str) -> None:  # noqa: B027  (only REST leaves such a thing)
        """Drop what a crashed attempt of this pipeline to make a table left under its name.

        Raises:
            LakeError: another pipeline is making the table.
        """

    def add(self, name: LakeName, location: str) -> None:
        """Add a table of which there is a metadata file.

        Args:
            name: the table; the catalog has none of that name.
        """
        self.iceberg.register_table((name.namespace, name.table), location)

    def bring(self, name: LakeName) -> None:  # noqa: B027  (only a catalog with a staging catalog has to)
        """Make what Spark committed to a table's main the table's content for all readers."""

    def make_room_for_columns(self, name: LakeName) -> None:  # noqa: B027  (only a Metastore has to)
        """Let Spark change a table's columns next, where the catalog's entry would refuse other types."""

    def files_of(self, name: LakeName) -> Collection[str]:
        """Return the locations of files in a table's folder that only the catalog needs."""
        del name
        return ()

    def view_namespaces(self) -> Sequence[ViewNamespace]:
        """Return the namespaces of pinned views, by name."""
        return ()

    def view_locations(self, name: LakeName) -> Collection[str]:
        """Return the metadata files by which pinned views show a table."""
        return ()

    def bring_views(self) -> None:  # noqa: B027  (a catalog for tests may have none)
        """Make, complete or remove the pinned views, if no publication has done so yet."""

    def require_room_for_views(self) -> None:  # noqa: B027  (as above)
        """See that no table is where the views are to be.

        Raises:
            LakeError: a table is.
        """

    @abstractmethod
    def drop_namespace(self, namespace: str) -> None:
        """Remove a namespace that holds no table."""

    @abstractmethod
    def make_namespace(self, namespace: str) -> None:
        """Make a namespace if it is missing."""


def moved_by_another(name: LakeName, lake: LakeSettings) -> PointerMovedError:
    """Return the error of a move that came too late."""
    return PointerMovedError(
        "a lake table was changed by someone else meanwhile; nothing was published",
        where=f"table {name} in {lake.place}",
        way_out="run again; if it fails again, find out what else writes to this lake's tables",
    )


def require_own(name: LakeName, properties: Mapping[str, str], pipeline: str) -> None:
    """Require that a table that is being filled is this pipeline's, before it is dropped.

    Raises:
        LakeError: it is another pipeline's.
    """
    owner = properties.get(PIPELINE_PROPERTY)
    if owner != pipeline:
        raise LakeError(
            "another pipeline is filling a table of that name",
            where=f"table {name}, pipeline {owner}",
            way_out="give this pipeline a lake.namespace of its own",
        )


def load(pointers: Mapping[LakeName, str], name: LakeName) -> Loaded:
    """Read a table's present metadata.

    Raises:
        LakeError: the catalog has no such table.
    """
    return _loaded(name, pointers.get(name))


def load_one(catalog: Catalog, name: LakeName) -> Loaded:
    """As :func:`load`, without reading the pointers of the other tables, of which there may be thousands."""
    return _loaded(name, catalog.pointer(name))


def load_all(catalog: Catalog, names: Collection[LakeName]) -> dict[LakeName, Loaded]:
    """As :func:`load_one`, of several tables: by one request where the catalog can do that, else in parallel.

    Raises:
        LakeError: the catalog lacks one of them.
    """
    pointers = catalog.pointers_of(names)
    catalog_metadata.read_ahead(pointers.values(), whole=True)
    return {name: load(pointers, name) for name in names}


def _loaded(name: LakeName, location: str | None) -> Loaded:
    if location is None:
        raise LakeError(
            "the lake has no such table",
            where=f"table {name}",
            way_out="run `slotlake init` first, or check that lake.namespace is the one that `init` ran with",
        )
    return Loaded(name, location, catalog_metadata.load(location))
