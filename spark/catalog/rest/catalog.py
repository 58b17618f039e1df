"""A REST catalog: tables loaded one by one, many changed by one request.

The server writes metadata files itself; it is told, per table, what must still be so and what becomes
of it (spark/catalog/rest/changes.py).  Several tables go in one request, `POST …/transactions/commit` of
the Iceberg REST catalog specification: all of it happens, or nothing.  A server that lacks this is refused,
unless the pipeline file accepts that tables are published one after another (``lake.publish: per_table``);
`commits` is then the last, so that a reader who begins with it still finds every table at its point.

New tables: the specification lets the same request create them (``assert-create``), but not every server
does.  Where it is refused, they are made first, empty and marked (:data:`COPYING`), which for everything
here means that they are not there, and the one request gives all of them their content and takes the
marks away.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any

from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchNamespaceError, NoSuchTableError
from requests import Response

from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog.base import (
    Catalog,
    Loaded,
    Move,
    UnansweredError,
    ViewNamespace,
    moved_by_another,
    require_own,
)
from slotlake.spark.catalog.fence import require_lock
from slotlake.spark.catalog.looks import Looks, is_sparing
from slotlake.spark.catalog.registered_views import RegisteredViews
from slotlake.spark.catalog.rest.changes import COPYING, Change, table_change, table_content, table_creation
from slotlake.spark.catalog.rest.pointers import Pointers, SparingPointers
from slotlake.spark.catalog.rest.session import (
    CONFLICT,
    DENIED,
    MISSING,
    OK_BELOW,
    SERVERS_FAULT,
    TOGETHER,
    Answered,
    denied,
    error_type,
    explained,
    server_of,
    table_path,
)
from slotlake.spark.catalog.rest.storage import TableStorage
from slotlake.spark.catalog.rest.views import RestViews
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import COMMITS, LakeName, belongs, visible
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.manifests import with_snapshot_on_top
from slotlake.spark.tables.metadata import MAIN, Metadata
from slotlake.spark.tables.schema import PIPELINE_PROPERTY

# A proxy's words for a server that may have done it all the same; others say that the server cannot.
_UNANSWERED = (502, 503, 504)


class RestPointers(Catalog):
    """One session with a REST catalog."""

    def __init__(self, lake: LakeSettings) -> None:
        self.lake = lake
        self._rest = server_of(lake)
        self._looks = lake.memory.of(Looks)
        self.iceberg = self._rest
        self.storage = TableStorage(lake, self.answered)
        self._places = RestViews(lake, self._rest, self.answered, self.names)
        self.views = RegisteredViews(self._places, lake)

    def close(self) -> None:
        """The lake's memory keeps the connections: logging in anew costs two requests."""

    def pointers(self) -> Mapping[LakeName, str]:
        """The lake's tables, each loaded when it is asked for, and then kept."""
        if is_sparing():
            return SparingPointers(self.lake, self.names, self.location)
        return Pointers(self.names, self.location)

    def pointers_of(self, names: Collection[LakeName]) -> Mapping[LakeName, str]:
        """Those of these tables, several loaded at a time; no other table is asked for."""
        return Pointers(self.names, self.location).of(names)

    def prepared(self, table: Loaded, metadata: Metadata, rename: LakeName | None = None) -> Move:
        """Return the move; the server writes the metadata itself.

        A server keeps the number of the schema with which a snapshot came.  So fields that publishing settles
        come with a snapshot of their own, by which every reader finds them at that point.
        """
        known = _number_of_head(table.metadata, metadata)
        if rename is None and known not in (None, _number_of_head(metadata, metadata)):
            metadata = with_snapshot_on_top(metadata)
        return Move(table, metadata, "", rename)

    def in_present(self, metadata: Metadata) -> Metadata:
        return metadata  # the server writes it, by its own clock

    def forget(self, moves: Sequence[Move]) -> None:
        """Nothing: an answer may have been lost, and the next one says that the table has moved.

        What was written, `maintain` finds as files that nothing leads to.
        """

    def move(self, moves: Sequence[Move]) -> None:
        """Make all moves by one request; by one each, in the order given, where the user accepts that."""
        new_tables = [move for move in moves if move.rename is not None]
        if new_tables:
            self.views.require_outside([move.rename or move.name for move in new_tables])
            self._looks.forget_all()
            self._make_tables(moves, new_tables)
        else:
            commits = LakeName(self.lake.namespace, COMMITS)
            heads = [catalog_metadata.ref(move.metadata, MAIN) for move in moves if move.name == commits]
            self._looks.forget([move.name for move in moves], next(iter(heads), None))
            self._commit([table_change(move.table, move.metadata) for move in moves])
        self.views.follow(moves)

    def commit(self, changes: list[Change]) -> None:
        """Make changes of tables by one request; by one each, in the order given, where that is accepted.

        Raises:
            PointerMovedError: a table is no longer what a change requires; nothing was changed.
            LakeError: the server refuses.
        """
        if changes:
            self._commit(changes)

    @property
    def together(self) -> bool:
        """Whether the server can change several tables with one request."""
        with explained(self.lake):
            return self._rest.changes_together

    def require_together(self) -> None:
        """See that the server can publish all tables at once, or that the user does without.

        Raises:
            LakeError: it cannot.
        """
        if not self.together and self.lake.publish == "atomic":
            raise LakeError(
                "this catalog cannot publish several tables at once: it lacks POST …/transactions/commit",
                where=self.lake.place,
                way_out="use a catalog that can (SQLite, PostgreSQL, a REST server with that request), or "
                "accept with lake.publish: per_table that tables opened at `latest` can differ in position",
            )

    def drop(self, names: Sequence[LakeName]) -> None:
        """Forget tables, one after another; `commits`, without which nothing is read, first."""
        self._looks.forget_all()
        ordered = sorted(names, key=lambda name: (name.table != "commits", name))
        self.views.forget_tables(ordered)
        with explained(self.lake):
            for name in ordered:
                with suppress(NoSuchTableError):
                    self._rest.drop_table((name.namespace, name.table))

    def bring(self, name: LakeName) -> None:
        """Note that Spark has changed a table's main."""
        self._looks.forget([name])

    def discard(self, name: LakeName, pipeline: str) -> None:
        """Drop a table that is marked as being filled."""
        with explained(self.lake), suppress(NoSuchTableError, NoSuchNamespaceError):
            properties = self._rest.load_table((name.namespace, name.table)).metadata.properties
            if COPYING in properties:
                require_own(name, properties, pipeline)
                self._rest.drop_table((name.namespace, name.table))

    def drop_namespace(self, namespace: str) -> None:
        """Forget a namespace that holds no table."""
        with explained(self.lake), suppress(NoSuchNamespaceError):
            self._rest.drop_namespace(namespace)

    def make_namespace(self, namespace: str) -> None:
        """Make a namespace if missing."""
        with explained(self.lake), suppress(NamespaceAlreadyExistsError):
            if not self._rest.namespace_exists(namespace):
                self._rest.create_namespace(namespace)

    def view_namespaces(self) -> Sequence[ViewNamespace]:
        """The namespaces of pinned views, by name."""
        return self.views.namespaces()

    def view_locations(self, name: LakeName) -> Collection[str]:
        """The metadata files by which pinned views show a table."""
        return self.views.locations(name)

    def bring_views(self) -> None:
        """Make, complete or remove the pinned views."""
        location = self.location(LakeName(self.lake.namespace, COMMITS)) if self.lake.views else None
        self.views.bring(None if location is None else catalog_metadata.load(location))

    def require_room_for_views(self) -> None:
        """See that no table is where the views are to be."""
        self.views.require_room()

    def names(self) -> frozenset[LakeName]:
        """Every table of this lake, those being filled among them."""
        with explained(self.lake):
            spaces = [space[0] for space in self._rest.list_namespaces() if len(space) == 1]
            own = [space for space in spaces if belongs(visible(space), self.lake.namespace)]
            namespaces = [space for space in own if not self._places.is_of_views(space)]
            tables: list[LakeName] = []
            for space in namespaces:
                with suppress(NoSuchNamespaceError):
                    tables += [LakeName(*name) for name in self._rest.list_tables(space)]
        return frozenset(tables)

    def own_names(self, head: int | None) -> AbstractSet[LakeName]:
        """The tables of the last look, while looks are spared: a list of thousands is a long answer.

        Args:
            head: the snapshot of `commits` now; a look at another one is not used.
        """
        seen = self._looks.names(head)
        return frozenset(self.names()) if seen is None else seen

    def location(self, name: LakeName) -> str | None:
        """Where a table's metadata is; None if there is no such table, or it is not one yet."""
        answered = self.answered(name)
        if answered is None or COPYING in answered.metadata.get("properties", {}):
            return None
        catalog_metadata.remember(answered.location, answered.metadata, answered.size)
        catalog_metadata.load_top(answered.location)  # of very many tables the whole is not remembered
        return answered.location

    def answered(self, name: LakeName) -> Answered | None:
        """A table as the server has it; None if there is no such table.

        The metadata in the answer is used: it is not fetched again.  So are the storage's address and the
        keys that the server lends for the table's files.
        """
        with explained(self.lake):
            answer = self._rest.get(table_path(name))
        if answer.status_code == MISSING:
            return None
        require_done(answer, [name], self.lake)
        content = answer.json()
        metadata = content["metadata"]
        self.storage.register(name, metadata["location"], content)
        config, lent = content.get("config") or {}, content.get("storage-credentials")
        return Answered(
            str(content["metadata-location"]), metadata, len(answer.content), config, lends=bool(lent)
        )

    # -- changes ----------------------------------------------------------------------------------------

    def _make_tables(self, moves: Sequence[Move], new_tables: Sequence[Move]) -> None:
        self.require_together()
        for move in new_tables:
            self.discard_for(move)
        uuids = {id(move): str(uuid.uuid4()) for move in new_tables}
        others = {id(move): table_change(move.table, move.metadata) for move in moves if not move.rename}
        whole = {id(m): table_creation(m, uuids[id(m)], content=True) for m in new_tables}
        content = {id(m): table_content(m, uuids[id(m)]) for m in new_tables}
        self.make(
            [(others | whole)[id(move)] for move in moves],
            [table_creation(move, uuids[id(move)], content=False) for move in new_tables],
            [(others | content)[id(move)] for move in moves],
        )
        self.drop([move.name for move in new_tables])

    def make(self, whole: list[Change], empty: list[Change], content: list[Change]) -> None:
        """Make new tables by one request; where the server makes none so, empty and marked ones come first.

        Args:
            whole: all changes, which make the new tables with their content.
            empty: what makes each new table, empty and marked (:data:`COPYING`).
            content: all changes, which give the new tables their content and take the marks away.

        Raises:
            PointerMovedError: a table is there already, or no longer what a change requires.
            LakeError: the server refuses.
        """
        if self.together:
            answer = self._post(TOGETHER, {"table-changes": whole})
            if answer.status_code in DENIED or answer.status_code in (CONFLICT, *_UNANSWERED):
                require_done(answer, [_name(each) for each in whole], self.lake)
            if answer.status_code < OK_BELOW:
                return
        for each in empty:
            self._one(each)
        self._commit(content)

    def discard_for(self, move: Move) -> None:
        """Drop a table that a crashed attempt of the same pipeline has made, empty and marked."""
        owner = move.metadata.get("properties", {}).get(PIPELINE_PROPERTY, "")
        self.discard(move.rename or move.name, owner)

    def _commit(self, changes: list[Change]) -> None:
        require_lock(self.lake)
        if len(changes) > 1:
            self.require_together()
        if len(changes) > 1 and self.together:
            answer = self._post(TOGETHER, {"table-changes": changes})
            require_done(answer, [_name(each) for each in changes], self.lake)
            return
        for each in changes:
            self._one(each)

    def _one(self, each: Change) -> None:
        name = _name(each)
        require_done(self._post(table_path(name), each), [name], self.lake)

    def _post(self, path: str, body: dict[str, Any]) -> Response:
        with explained(self.lake):
            return self._rest.post(path, body)


def _name(of: Change) -> LakeName:
    identifier = of["identifier"]
    return LakeName(identifier["namespace"][0], identifier["name"])


def _number_of_head(metadata: Metadata, after: Metadata) -> int | None:
    """The schema by which a table has the snapshot that is main's after a move; None if that is new to it."""
    head = catalog_metadata.snapshot(metadata, catalog_metadata.ref(after, MAIN) or 0)
    return None if head is None else head.get("schema-id")


def require_done(answer: Response, names: Sequence[LakeName], lake: LakeSettings) -> None:
    """See that the server has done what it was asked for.

    Raises:
        PointerMovedError: a table is no longer what a change requires.
        LakeError: the server refuses.
    """
    status = answer.status_code
    if status < OK_BELOW:
        return
    if status == CONFLICT or error_type(answer).startswith("NoSuch"):
        raise moved_by_another(names[0], lake)
    if status in DENIED:
        raise denied(lake, status)
    kind = UnansweredError if status >= SERVERS_FAULT else LakeError
    raise kind(
        f"the catalog did not accept the change: {status} {error_type(answer)}".rstrip(),
        where=f"{len(names)} tables, {names[0]} first, in {lake.place}",
        way_out="run again: it completes what is missing"
        if status >= SERVERS_FAULT
        else "check that this user may change these tables there",
    )
