"""Pinned views on a REST server: `POST …/register` gives a metadata file a second name.

A view that follows its table is changed by a commit of its own, so that it is there at every moment.  Where
the server does not accept that (the table was taken back, or is another one by now), it is registered anew,
and is missing for the moment between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from urllib.parse import quote

from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchNamespaceError, NoSuchTableError
from requests import Response

from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog.rest.changes import COPYING
from slotlake.spark.catalog.rest.published import shown_change
from slotlake.spark.catalog.rest.session import (
    CONFLICT,
    OK_BELOW,
    SERVERS_FAULT,
    Answered,
    RestServer,
    error_type,
    explained,
    table_path,
)
from slotlake.spark.catalog.view_spaces import OWNER, POINT, is_following, may_be
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName, belongs
from slotlake.spark.tables import metadata as catalog_metadata


class _Known(dict[str, dict[str, str]]):
    """By name, the properties of namespaces that stay, which change no more once they say their point."""


class RestViews:
    """The views of one lake on its server.

    Args:
        lake: the lake.
        server: the session.
        answered: gives a table as the server has it, None if it is not there.
        names: gives the names of all tables of the lake.
    """

    def __init__(
        self,
        lake: LakeSettings,
        server: RestServer,
        answered: Callable[[LakeName], Answered | None],
        names: Callable[[], Collection[LakeName]],
    ) -> None:
        self._lake = lake
        self._known = lake.memory.of(_Known)
        self._server = server
        self._answered = answered
        self.names = names

    def spaces(self) -> Mapping[str, Mapping[str, str]]:
        """Return the namespaces that can be of views by their names, with their properties."""
        with explained(self._lake):
            listed = [space[0] for space in self._server.list_namespaces() if len(space) == 1]
        names = [name for name in listed if may_be(name) and belongs(name, self._lake.namespace)]
        return {name: self._properties(name) for name in names}

    def is_of_views(self, space: str) -> bool:
        """Return whether a namespace is one of views, of whichever lake."""
        return may_be(space) and OWNER in self._properties(space)

    def make_space(self, name: str, properties: dict[str, str]) -> None:
        """Make a namespace, or give these properties to the one that is there."""
        with explained(self._lake):
            try:
                self._server.create_namespace(name, properties)
            except NamespaceAlreadyExistsError:
                self.note(name, {**properties, POINT: ""})

    def note(self, name: str, properties: dict[str, str]) -> None:
        """Give properties to a namespace; a missing one gets none."""
        self._known.pop(name, None)
        with explained(self._lake), suppress(NoSuchNamespaceError):
            self._server.update_namespace_properties(name, updates=properties)

    def remove_space(self, name: str) -> None:
        """Remove a namespace that holds no table; a missing one is fine."""
        self._known.pop(name, None)
        with explained(self._lake), suppress(NoSuchNamespaceError):
            self._server.drop_namespace(name)

    def tables_in(self, space: str) -> list[LakeName]:
        """Return the names of the tables in a namespace; none of one that is not there."""
        with explained(self._lake), suppress(NoSuchNamespaceError):
            return [LakeName(*name) for name in self._server.list_tables(space)]
        return []

    def show(self, view: LakeName, table: LakeName, *, new: bool) -> None:
        """Make a view what a table is now; of a table that is not there, nothing.

        Args:
            new: whether the view is not there yet.

        Raises:
            LakeError: the server refuses.
        """
        wanted = self._answered(table)
        if wanted is None or COPYING in wanted.metadata.get("properties", {}):
            return
        shown = None if new else self._answered(view)
        if shown is not None:
            change = shown_change(view, shown.metadata, wanted.metadata)
            if not change["updates"] or self._is_done(view, change):
                return
            self.hide(view)
        with explained(self._lake):
            answer = register(self._server, view, wanted.location)
        if answer.status_code == CONFLICT and new:  # a run that was killed has left it
            self.show(view, table, new=False)
        elif answer.status_code >= OK_BELOW:
            raise _not_registered(answer, view, self._lake)

    def hide(self, view: LakeName) -> None:
        """Remove a view; a missing one is fine."""
        with explained(self._lake), suppress(NoSuchTableError, NoSuchNamespaceError):
            self._server.drop_table((view.namespace, view.table))

    def location(self, view: LakeName) -> str | None:
        """Return a view's metadata file; None if there is no such view."""
        shown = self._answered(view)
        if shown is None:
            return None
        catalog_metadata.remember(shown.location, shown.metadata, shown.size)
        return shown.location

    def _is_done(self, view: LakeName, change: dict[str, object]) -> bool:
        with explained(self._lake):
            return self._server.post(table_path(view), change).status_code < OK_BELOW

    def _properties(self, name: str) -> dict[str, str]:
        if name in self._known:
            return self._known[name]
        with explained(self._lake), suppress(NoSuchNamespaceError):
            read = dict(self._server.load_namespace_properties(name))
            if read.get(POINT) and OWNER in read and not is_following(name):
                self._known[name] = read
            return read
        return {}


def register(server: RestServer, name: LakeName, location: str) -> Response:
    """Ask a server to give a metadata file a name, and return its answer."""
    path = f"namespaces/{quote(name.namespace, safe='')}/register"
    return server.post(path, {"name": name.table, "metadata-location": location})


def _not_registered(answer: Response, view: LakeName, lake: LakeSettings) -> LakeError:
    return LakeError(
        f"the catalog made no pinned view: {answer.status_code} {error_type(answer)}".rstrip(),
        where=f"table {view} in {lake.place}",
        way_out="run `slotlake sync` again: it makes what is missing"
        if answer.status_code >= SERVERS_FAULT
        else "let this user make namespaces and register tables there, or set lake.views to false",
    )
