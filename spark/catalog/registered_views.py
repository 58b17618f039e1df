"""Pinned views in a catalog that has no transaction over them: each is made by a request of its own.

What a view is, is as in spark/catalog/views.py: a second name of a metadata file that the table has anyway.
Here views are made after the publication.  A failure then undoes nothing of it: the next sync makes what is
missing (:meth:`RegisteredViews.bring`), or says why it cannot.

Invariants:

- A namespace is marked from its first moment, so its tables are never taken for the lake's.
- It says its point only while all of its views are there.  One that stays and says none is thrown away.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, Protocol

from slotlake.decoder.errors import LakeError
from slotlake.decoder.failpoints import reach
from slotlake.decoder.lsn import format_lsn
from slotlake.spark.catalog.base import VIEWS_SUFFIX, Move, ViewNamespace
from slotlake.spark.catalog.tags import tags
from slotlake.spark.catalog.view_spaces import (
    MADE,
    OWNER,
    POINT,
    by_base,
    point_namespace,
    space_of,
    staying,
    table_among_views,
    tables_where_views_are_to_be,
)
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import COMMITS, LakeName, is_copying
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import MAIN, Metadata

_AT_ONCE: Final = 8


class ViewPlaces(Protocol):
    """What a catalog does for views."""

    def names(self) -> Collection[LakeName]:
        """Return the names of all tables of the lake, without views."""

    def spaces(self) -> Mapping[str, Mapping[str, str]]:
        """Return the namespaces that can be of views by their names, with their properties."""

    def is_of_views(self, space: str) -> bool:
        """Return whether a namespace is one of views, of whichever lake."""

    def make_space(self, name: str, properties: dict[str, str]) -> None:
        """Make a namespace, or give these properties to the one that is there."""

    def note(self, name: str, properties: dict[str, str]) -> None:
        """Give properties to a namespace."""

    def remove_space(self, name: str) -> None:
        """Remove a namespace that holds no table."""

    def tables_in(self, space: str) -> list[LakeName]:
        """Return the names of the tables in a namespace."""

    def show(self, view: LakeName, table: LakeName, *, new: bool) -> None:
        """Make a view what a table is now; of a table that is not there, nothing.

        Args:
            new: whether the view is not there yet.
        """

    def hide(self, view: LakeName) -> None:
        """Remove a view; a missing one is fine."""

    def location(self, view: LakeName) -> str | None:
        """Return a view's metadata file; None if there is no such view."""


class RegisteredViews:
    """The views of one lake.

    Args:
        places: the catalog.
        lake: the lake.
    """

    def __init__(self, places: ViewPlaces, lake: LakeSettings) -> None:
        self._places = places
        self._lake = lake

    def namespaces(self) -> list[ViewNamespace]:
        """Return the namespaces of views of the lake, by name."""
        read = sorted(self._places.spaces().items())
        spaces = (space_of(name, properties, self._lake.namespace) for name, properties in read)
        return [space for space in spaces if space is not None]

    def locations(self, table: LakeName) -> list[str]:
        """Return the metadata files by which views show a table."""
        spaces = [space.name for space in self.namespaces() if space.base == table.namespace]
        read = (self._places.location(LakeName(space, table.table)) for space in spaces)
        return [location for location in read if location is not None]

    def follow(self, moves: Sequence[Move]) -> None:
        """Bring the views to where tables are that were moved; what fails is left to the next sync."""
        seen = {move.rename or move.name: move for move in moves if _is_seen(move)}
        if self._lake.views and seen:
            with suppress(LakeError):
                self._follow(seen)

    def bring(self, commits: Metadata | None) -> None:
        """Make or remove views, where what they show is not what the settings ask for.

        Args:
            commits: the metadata of the table `commits`; None before the initial copy.

        Raises:
            LakeError: a table is where the views are to be, or the catalog refuses.
        """
        if not self._lake.views:
            if self._places.is_of_views(self._lake.namespace + VIEWS_SUFFIX):  # which goes last
                self._forget(sorted(self.namespaces(), key=lambda space: space.follows))
            return
        spaces = self.namespaces()
        position = None if commits is None else catalog_metadata.newest_position(commits)
        if commits is None or position is None:
            return
        following = [space.position for space in spaces if space.follows]
        if not following or any(at != position for at in following) or None in {s.position for s in spaces}:
            self._bring(position, tags(commits).keys(), None, None)

    def forget_tables(self, names: Collection[LakeName]) -> None:
        """Remove the views of tables that leave the catalog, and namespaces that are empty then."""
        names = [name for name in names if not is_copying(name.namespace)]
        for space in self.namespaces() if names else ():
            of_base = [LakeName(space.name, name.table) for name in names if name.namespace == space.base]
            if of_base:
                self._hide(of_base)
                if not self._places.tables_in(space.name):
                    self._places.remove_space(space.name)

    def require_room(self) -> None:
        """Require that no table is where the views are to be.

        Raises:
            LakeError: a table is.
        """
        if self._lake.views:
            spaces = self._places.spaces()
            for base in {*by_base(self._places.names(), self._lake.namespace), self._lake.namespace}:
                self._require_free(base + VIEWS_SUFFIX, spaces)

    def require_outside(self, names: Collection[LakeName]) -> None:
        """Require that new tables do not go into namespaces of views.

        Raises:
            LakeError: one would.
        """
        taken = {space.name for space in self.namespaces()} if names else set()
        for name in names:
            if name.namespace in taken:
                raise table_among_views(name)

    def _follow(self, moves: Mapping[LakeName, Move]) -> None:
        commits = moves.get(LakeName(self._lake.namespace, COMMITS))
        position = None if commits is None else catalog_metadata.newest_position(commits.metadata)
        if commits is None or position is None:
            following = {space.base for space in self.namespaces() if space.follows}
            self._show([name for name in moves if name.namespace in following])
            return
        before = catalog_metadata.newest_position(commits.table.metadata)
        self._bring(position, tags(commits.metadata).keys(), before, moves)

    def _bring(
        self,
        position: int,
        tagged: Collection[int],
        before: int | None,
        changed: Collection[LakeName] | None,
    ) -> None:
        """Bring all views to a point."""
        spaces = {space.name: space for space in self.namespaces()}
        tables = by_base(self._places.names(), self._lake.namespace)
        for base, names in tables.items():
            following = spaces.get(base + VIEWS_SUFFIX)
            if following is None:
                self._make(base + VIEWS_SUFFIX, names, position)
                continue
            is_whole = following.position is not None and following.position in (before, position)
            known = changed is not None and is_whole
            self._show([name for name in names if not known or name in (changed or ())])
            self._places.note(following.name, {POINT: format_lsn(position)})
        reach("publish.between_views")
        self._stay(tables, spaces, tagged, position)

    def _stay(
        self,
        tables: Mapping[str, list[LakeName]],
        spaces: Mapping[str, ViewNamespace],
        tagged: Collection[int],
        position: int,
    ) -> None:
        """Make the namespaces that stay at this point, and remove those of points that are kept no more."""
        staying_ones = [space for space in spaces.values() if not space.follows]
        self._forget([space for space in staying_ones if space.position is None])
        stays, remaining = staying(spaces.values(), tagged, position, time.time(), self._lake.keep.count)
        # That of the lake's own namespace last: whoever finds it finds the others.
        for base in sorted(tables, key=lambda each: each == self._lake.namespace) if stays else ():
            name = point_namespace(base, position)
            if (present := spaces.get(name)) is not None and present.position is not None:
                self._forget([present])
            self._make(name, tables[base], position)
            self._forget_dropped(base, tables[base])
        self._forget([s for s in staying_ones if s.position is not None and s.position not in remaining])

    def _make(self, space: str, tables: Sequence[LakeName], position: int) -> None:
        """Make a namespace of views, and a view of each table; it says its point when they are there."""
        self._require_free(space, self._places.spaces())
        self._places.make_space(space, {OWNER: self._lake.namespace, MADE: repr(time.time())})
        self._show_all([(LakeName(space, table.table), table) for table in tables], new=True)
        self._places.note(space, {POINT: format_lsn(position)})

    def _show(self, tables: Sequence[LakeName]) -> None:
        """Make the views that follow these tables what the tables are."""
        views = [(LakeName(table.namespace + VIEWS_SUFFIX, table.table), table) for table in tables]
        self._show_all(views, new=False)

    def _show_all(self, views: Sequence[tuple[LakeName, LakeName]], *, new: bool) -> None:
        def show(each: tuple[LakeName, LakeName]) -> None:
            reach("publish.mid_views")
            self._places.show(*each, new=new)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(show, views))

    def _forget_dropped(self, base: str, tables: Sequence[LakeName]) -> None:
        """Remove the views that follow tables which somebody has dropped."""
        present = {table.table for table in tables}
        views = self._places.tables_in(base + VIEWS_SUFFIX)
        self._hide([view for view in views if view.table not in present])

    def _forget(self, spaces: Sequence[ViewNamespace]) -> None:
        for space in spaces:
            self._places.note(space.name, {POINT: ""})  # so that a run killed here is noticed
            self._hide(self._places.tables_in(space.name))
            self._places.remove_space(space.name)

    def _hide(self, views: Sequence[LakeName]) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self._places.hide, views))

    def _require_free(self, space: str, spaces: Mapping[str, Mapping[str, str]]) -> None:
        if OWNER not in spaces.get(space, {OWNER: ""}) and self._places.tables_in(space):
            raise tables_where_views_are_to_be(space, self._lake.place)


def _is_seen(move: Move) -> bool:
    """Whether readers of the table see another content, or other columns, after a move."""
    if is_copying((move.rename or move.name).namespace):
        return False
    before, after = move.table.metadata, move.metadata
    return (
        move.rename is not None
        or catalog_metadata.ref(before, MAIN) != catalog_metadata.ref(after, MAIN)
        or before["current-schema-id"] != after["current-schema-id"]
    )
