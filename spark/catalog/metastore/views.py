"""Pinned views in AWS Glue and in a Hive Metastore: a second entry that names the same metadata file.

Tables are published one after another there, so only a namespace that stays shows all of them at one point:
it is made when `commits`, the last of them, is published.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchNamespaceError

from slotlake.spark.catalog.base import Loaded, Move, moved_by_another
from slotlake.spark.catalog.metastore.entries import Entry, RefusedError
from slotlake.spark.catalog.view_spaces import OWNER, POINT, may_be
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName, belongs
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import Metadata

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog as IcebergCatalog


class Entries(Protocol):
    """What a catalog of entries does."""

    lake: LakeSettings
    iceberg: IcebergCatalog

    def names(self) -> Collection[LakeName]:
        """Return the names of the lake's tables."""

    def entries(self, names: Sequence[LakeName]) -> dict[LakeName, Entry]:
        """Read the entries of these tables."""

    def entries_in(self, namespace: str) -> dict[LakeName, Entry]:
        """Read the entries of a namespace."""

    def namespaces(self) -> list[str]:
        """Return the names of all namespaces that can be this lake's."""

    def create(self, name: LakeName, metadata: Metadata, location: str) -> None:
        """Make an entry."""

    def swap(self, name: LakeName, entry: Entry, move: Move) -> None:
        """Change an entry."""

    def drop_one(self, name: LakeName) -> None:
        """Remove an entry."""

    def drop_namespace(self, namespace: str) -> None:
        """Remove a namespace that holds nothing."""

    def explained(self) -> AbstractContextManager[None]:
        """Turn what the client raises into errors of the lake."""


class MetastoreViews:
    """The views of one lake in its catalog.

    Args:
        catalog: the catalog.
    """

    def __init__(self, catalog: Entries) -> None:
        self._catalog = catalog
        self.names = catalog.names

    def spaces(self) -> Mapping[str, Mapping[str, str]]:
        """Return the namespaces that can be of views by their names, with their properties."""
        lake = self._catalog.lake
        names = [n for n in self._catalog.namespaces() if may_be(n) and belongs(n, lake.namespace)]
        return {name: self._properties(name) for name in names}

    def is_of_views(self, space: str) -> bool:
        """Return whether a namespace is one of views, of whichever lake."""
        return may_be(space) and OWNER in self._properties(space)

    def make_space(self, name: str, properties: dict[str, str]) -> None:
        """Make a namespace, or give these properties to the one that is there."""
        with self._catalog.explained():
            try:
                self._catalog.iceberg.create_namespace(name, properties)
            except NamespaceAlreadyExistsError:
                self.note(name, {**properties, POINT: ""})

    def note(self, name: str, properties: dict[str, str]) -> None:
        """Give properties to a namespace; a missing one gets none."""
        with self._catalog.explained(), suppress(NoSuchNamespaceError):
            self._catalog.iceberg.update_namespace_properties(name, updates=properties)

    def remove_space(self, name: str) -> None:
        """Remove a namespace that holds no table; a missing one is fine."""
        self._catalog.drop_namespace(name)

    def tables_in(self, space: str) -> list[LakeName]:
        """Return the names of the tables in a namespace."""
        return list(self._catalog.entries_in(space))

    def show(self, view: LakeName, table: LakeName, *, new: bool) -> None:
        """Make a view what a table is now; of a table that is not there, nothing.

        Args:
            new: whether the view is not there yet.

        Raises:
            PointerMovedError: somebody else changes the view.
        """
        del new  # it is read with the table
        entries = self._catalog.entries([table, view])
        wanted, shown = entries.get(table), entries.get(view)
        if wanted is None or (shown is not None and shown.location == wanted.location):
            return
        metadata = catalog_metadata.load(wanted.location)
        try:
            if shown is None:
                self._catalog.create(view, metadata, wanted.location)
                return
            before = Loaded(view, shown.location, catalog_metadata.load(shown.location))
            self._catalog.swap(view, shown, Move(before, metadata, wanted.location))
        except RefusedError:
            raise moved_by_another(view, self._catalog.lake) from None

    def hide(self, view: LakeName) -> None:
        """Remove a view; a missing one is fine."""
        self._catalog.drop_one(view)

    def location(self, view: LakeName) -> str | None:
        """Return a view's metadata file; None if there is no such view."""
        entry = self._catalog.entries([view]).get(view)
        return None if entry is None else entry.location

    def _properties(self, name: str) -> dict[str, Any]:
        with self._catalog.explained(), suppress(NoSuchNamespaceError):
            return dict(self._catalog.iceberg.load_namespace_properties(name))
        return {}
