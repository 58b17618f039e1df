"""What publishing and reading ask of a catalog, whatever kind it is.

A table's *pointer* is the location of its metadata file.  A change of tables is prepared first (slow,
seen by nobody) and then made by one call: all tables of it, or none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog as IcebergCatalog

from slotlake.decoder.errors import LakeError
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import Metadata
from slotlake.spark.tables.schema import PIPELINE_PROPERTY


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
        """Give back all connections."""

    @abstractmethod
    def pointers(self) -> Mapping[LakeName, str]:
        """Every table's metadata location.

        On a SQL catalog read in one query: one cut of it.  A REST catalog has no such query: each is read
        when it is asked for, so ask for `commits` first (spark/read/point.py tells why that is enough).
        """

    def pointer(self, name: LakeName) -> str | None:
        """One table's metadata location; None if there is no such table."""
        return self.pointers().get(name)

    @abstractmethod
    def names(self) -> Collection[LakeName]:
        """The tables that there are, without a look at any."""

    @abstractmethod
    def prepared(self, table: Loaded, metadata: Metadata, rename: LakeName | None = None) -> Move:
        """Get a table's next metadata ready; nobody sees it before :meth:`move`."""

    @abstractmethod
    def move(self, moves: Sequence[Move]) -> None:
        """Make all moves, or none.

        Raises:
            PointerMovedError: a table is no longer what it was when read; nothing was moved.
        """

    @abstractmethod
    def forget(self, moves: Sequence[Move]) -> None:
        """Remove what :meth:`prepared` wrote for moves that certainly were not made."""

    @abstractmethod
    def drop(self, names: Sequence[LakeName]) -> None:
        """Forget tables; their files stay."""

    def discard(self, name: LakeName, pipeline: str) -> None:  # noqa: B027  (only REST leaves such a thing)
        """Drop what a crashed attempt of this pipeline at making a new table left under its name.

        Raises:
            LakeError: another pipeline is making it.
        """

    @abstractmethod
    def drop_namespace(self, namespace: str) -> None:
        """Forget a namespace that holds no table."""

    @abstractmethod
    def make_namespace(self, namespace: str) -> None:
        """Make a namespace if missing."""


def moved_by_another(name: LakeName, lake: LakeSettings) -> PointerMovedError:
    """The error of a move that came too late."""
    return PointerMovedError(
        "a lake table was changed by someone else meanwhile; nothing was published",
        where=f"table {name} in {lake.place}",
        way_out="run again; if it comes back, find out what else writes to this lake's tables",
    )


def require_own(name: LakeName, properties: Mapping[str, str], pipeline: str) -> None:
    """A table that is being filled must be this pipeline's before it is dropped.

    Raises:
        LakeError: it is another one's.
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
    """As :func:`load`, without a look at the other tables, of which there may be thousands."""
    return _loaded(name, catalog.pointer(name))


def _loaded(name: LakeName, location: str | None) -> Loaded:
    if location is None:
        raise LakeError(
            "the lake lacks a table",
            where=f"table {name}",
            way_out="run `slotlake init` first, or see that lake.namespace is the one it was run with",
        )
    return Loaded(name, location, catalog_metadata.load(location))
