"""A REST catalog: tables loaded one by one, many changed by one request.

The server writes metadata files itself; it is told, per table, what must still be so and what becomes
of it (spark/catalog/rest_changes.py).  Several tables go in one request, `POST …/transactions/commit` of
the Iceberg REST catalog specification: all of it happens, or nothing.  A server that lacks this is refused,
unless the pipeline file accepts that tables are published one after another (``lake.publish: per_table``);
`commits` is then the last, so that a reader who begins with it still finds every table at its point.

New tables: the specification lets the same request create them (``assert-create``), but not every server
does.  Where it is refused, they are made first, empty and marked (:data:`COPYING`), which for everything
here means that they are not there, and the one request gives all of them their content and takes the
marks away.

Nothing secret is told in any error: neither addresses' passwords nor what a server answers to a login.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from functools import cached_property, partial
from typing import Any
from urllib.parse import quote

from pyiceberg.catalog.rest import DEFAULT_ENDPOINTS, VIEW_ENDPOINTS, RestCatalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    ValidationError,
)
from requests import RequestException, Response, Session, Timeout

from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog.base import Catalog, Loaded, Move, UnansweredError, moved_by_another, require_own
from slotlake.spark.catalog.rest_changes import COPYING, table_change, table_content, table_creation
from slotlake.spark.lake import ANSWER_SECONDS, LakeSettings
from slotlake.spark.limits import CONNECT_SECONDS
from slotlake.spark.names import LakeName, belongs, visible
from slotlake.spark.storage import stores
from slotlake.spark.storage.file_io import FILE_IO
from slotlake.spark.storage.location import Location
from slotlake.spark.storage.settings import StorageSettings
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import Metadata
from slotlake.spark.tables.schema import PIPELINE_PROPERTY

_TOGETHER = "transactions/commit"
_CONFLICT, _MISSING = 409, 404
# What an answer says of a table's storage, by Iceberg's names; more is not followed.
_STORAGE_KEYS = frozenset(
    {
        *("s3.endpoint", "s3.region", "client.region", "s3.path-style-access"),
        *("s3.access-key-id", "s3.secret-access-key", "s3.session-token"),
    }
)
_LACKING = frozenset({404, 405, 501})
_DENIED = frozenset({401, 403, 419})
_OK_BELOW, _SERVERS_FAULT = 300, 500
# A table asked for is a request that mostly waits; pyiceberg's session keeps ten connections.
_AT_ONCE = 8


class _LimitedCatalog(RestCatalog):
    """pyiceberg's, whose requests would wait for ever for a server that says nothing."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        # requests asks for a limit with each request, and pyiceberg gives none.
        limited = partial(session.request, timeout=(CONNECT_SECONDS, ANSWER_SECONDS))
        session.request = limited  # type: ignore[method-assign]
        return session


class RestPointers(Catalog):
    """One session with a REST catalog."""

    def __init__(self, lake: LakeSettings) -> None:
        self.lake = lake
        with _explained(lake):
            self._rest = _LimitedCatalog(lake.catalog, **{**lake.rest, **FILE_IO, "uri": lake.uri})
        self.iceberg = self._rest

    def close(self) -> None:
        """Close the connections."""
        self._rest.close()

    def pointers(self) -> Mapping[LakeName, str]:
        """The lake's tables, each loaded when it is asked for, and then kept."""
        return _Pointers(self)

    def prepared(self, table: Loaded, metadata: Metadata, rename: LakeName | None = None) -> Move:
        """Return the move; the server writes the metadata itself.

        Args:
            table: the table as it was read.
            metadata: its next metadata.
            rename: its new name; None: it keeps its name.
        """
        return Move(table, metadata, "", rename)

    def forget(self, moves: Sequence[Move]) -> None:
        """Nothing was written."""

    def move(self, moves: Sequence[Move]) -> None:
        """Make all moves by one request; by one each, in the order given, where the user accepts that."""
        new_tables = [move for move in moves if move.rename is not None]
        if new_tables:
            self._make_tables(moves, new_tables)
            return
        self._commit([table_change(move.table, move.metadata) for move in moves])

    @cached_property
    def together(self) -> bool:
        """Whether the server can change several tables with one request.

        The server's list of endpoints says so; a server without a list gets a request that changes nothing.
        """
        listed = self._rest._supported_endpoints  # noqa: SLF001 - pyiceberg asks, but does not tell
        if listed >= DEFAULT_ENDPOINTS and listed <= DEFAULT_ENDPOINTS | VIEW_ENDPOINTS:
            return not _lacks(self._post(_TOGETHER, {"table-changes": []}))
        return any(e.http_method.value == "POST" and e.path.endswith(_TOGETHER) for e in listed)

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
        ordered = sorted(names, key=lambda name: (name.table != "commits", name))
        with _explained(self.lake):
            for name in ordered:
                with suppress(NoSuchTableError):
                    self._rest.drop_table((name.namespace, name.table))

    def discard(self, name: LakeName, pipeline: str) -> None:
        """Drop a table that is marked as being filled."""
        with _explained(self.lake), suppress(NoSuchTableError, NoSuchNamespaceError):
            properties = self._rest.load_table((name.namespace, name.table)).metadata.properties
            if COPYING in properties:
                require_own(name, properties, pipeline)
                self._rest.drop_table((name.namespace, name.table))

    def drop_namespace(self, namespace: str) -> None:
        """Forget a namespace that holds no table."""
        with _explained(self.lake), suppress(NoSuchNamespaceError):
            self._rest.drop_namespace(namespace)

    def make_namespace(self, namespace: str) -> None:
        """Make a namespace if missing."""
        with _explained(self.lake), suppress(NamespaceAlreadyExistsError):
            if not self._rest.namespace_exists(namespace):
                self._rest.create_namespace(namespace)

    def names(self) -> frozenset[LakeName]:
        """Every table of this lake, those being filled among them."""
        with _explained(self.lake):
            spaces = [space[0] for space in self._rest.list_namespaces() if len(space) == 1]
            namespaces = [space for space in spaces if belongs(visible(space), self.lake.namespace)]
            tables: list[LakeName] = []
            for space in namespaces:
                with suppress(NoSuchNamespaceError):
                    tables += [LakeName(*name) for name in self._rest.list_tables(space)]
        return frozenset(tables)

    def location(self, name: LakeName) -> str | None:
        """Where a table's metadata is; None if there is no such table, or it is not one yet.

        The metadata in the answer is used: it is not fetched again.  So are the storage's address and the
        keys that the server lends for the table's files.
        """
        with _explained(self.lake):
            session = self._rest._session  # noqa: SLF001 - pyiceberg gives no raw metadata
            answer: Response = session.get(self._rest.url(_table_path(name), prefixed=True))
        if answer.status_code == _MISSING:
            return None
        self._require_done(answer, [name])
        content = answer.json()
        metadata, location = content["metadata"], str(content["metadata-location"])
        if COPYING in metadata.get("properties", {}):
            return None
        self._register(metadata["location"], content)
        catalog_metadata.remember(location, metadata, len(answer.content))
        return location

    def _register(self, location: str, content: Mapping[str, Any]) -> None:
        """Take over what the server says about the storage of a table, and the keys that it lends."""
        if not Location(location).is_in_bucket:
            return
        config = {name: text for name, text in (content.get("config") or {}).items() if name in _STORAGE_KEYS}
        if config:
            stores.register(location, self._storage(config))
        for lent in content.get("storage-credentials") or ():
            stores.register(lent["prefix"], self._storage({**config, **lent["config"]}))

    def _storage(self, config: Mapping[str, str]) -> StorageSettings:
        """What the server says, on top of what the pipeline file says."""
        said = StorageSettings.of_iceberg_properties(config)
        given = {each.name: getattr(said, each.name) for each in fields(said)}
        return replace(
            self.lake.storage, **{name: value for name, value in given.items() if value is not None}
        )

    # -- changes ----------------------------------------------------------------------------------------

    def _make_tables(self, moves: Sequence[Move], new_tables: Sequence[Move]) -> None:
        self.require_together()
        if self.together and self._make_together(moves):
            self._drop_hidden(new_tables)
            return
        uuids = {id(move): str(uuid.uuid4()) for move in new_tables}
        for move in new_tables:
            self._discard(move)
            self._one(table_creation(move, uuids[id(move)], content=False))
        self._commit(
            [
                table_content(move, uuids[id(move)])
                if move.rename
                else table_change(move.table, move.metadata)
                for move in moves
            ]
        )
        self._drop_hidden(new_tables)

    def _make_together(self, moves: Sequence[Move]) -> bool:
        """Return whether the server made all new tables, with content, by one request."""
        for move in moves:
            if move.rename:
                self._discard(move)
        answer = self._post(
            _TOGETHER,
            {
                "table-changes": [
                    table_creation(move, str(uuid.uuid4()), content=True)
                    if move.rename
                    else table_change(move.table, move.metadata)
                    for move in moves
                ]
            },
        )
        if answer.status_code in _DENIED or answer.status_code == _CONFLICT:
            self._require_done(answer, [move.name for move in moves])
        return bool(answer.status_code < _OK_BELOW)

    def _discard(self, move: Move) -> None:
        self.discard(move.rename or move.name, move.metadata.get("properties", {}).get(PIPELINE_PROPERTY, ""))

    def _drop_hidden(self, new_tables: Sequence[Move]) -> None:
        self.drop([move.name for move in new_tables])

    def _commit(self, changes: list[dict[str, Any]]) -> None:
        if len(changes) > 1:
            self.require_together()
        if len(changes) > 1 and self.together:
            answer = self._post(_TOGETHER, {"table-changes": changes})
            self._require_done(answer, [_name(each) for each in changes])
            return
        for each in changes:
            self._one(each)

    def _one(self, each: dict[str, Any]) -> None:
        name = _name(each)
        self._require_done(self._post(_table_path(name), each), [name])

    def _post(self, path: str, body: dict[str, Any]) -> Response:
        with _explained(self.lake):
            # pyiceberg has no call of its own for this request.
            session = self._rest._session  # noqa: SLF001
            answer: Response = session.post(self._rest.url(path, prefixed=True), json=body)
            return answer

    def _require_done(self, answer: Response, names: Sequence[LakeName]) -> None:
        status = answer.status_code
        if status < _OK_BELOW:
            return
        if status == _CONFLICT or _error_type(answer).startswith("NoSuch"):
            raise moved_by_another(names[0], self.lake)
        kind = UnansweredError if status >= _SERVERS_FAULT else LakeError
        raise kind(
            f"the catalog did not accept the change: {status} {_error_type(answer)}".rstrip(),
            where=f"{len(names)} tables, {names[0]} first, in {self.lake.place}",
            way_out="run again: it completes what is missing"
            if status >= _SERVERS_FAULT
            else "check that this user may change these tables there",
        )


class _Pointers(Mapping[LakeName, str]):
    """Pointers, each read once, when it is asked for."""

    def __init__(self, catalog: RestPointers) -> None:
        self._catalog = catalog
        self._read: dict[LakeName, str | None] = {}

    def __getitem__(self, name: LakeName) -> str:
        if name not in self._read:
            self._read[name] = self._catalog.location(name)
        location = self._read[name]
        if location is None:
            raise KeyError(str(name))
        return location

    def __iter__(self) -> Iterator[LakeName]:
        names = sorted(self._catalog.names())
        unread = [name for name in names if name not in self._read]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            self._read.update(zip(unread, pool.map(self._catalog.location, unread), strict=True))
        return (name for name in names if self._read[name] is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@contextmanager
def _explained(lake: LakeSettings) -> Iterator[None]:
    try:
        yield
    except (NoSuchTableError, NoSuchNamespaceError, NamespaceAlreadyExistsError):
        raise
    except Timeout:
        raise UnansweredError(
            f"the REST catalog has not answered for {ANSWER_SECONDS} s",
            where=lake.place,
            way_out="check the server, then run again: it completes what is missing",
        ) from None
    except RequestException as error:
        raise LakeError(
            f"the catalog cannot be reached: {type(error).__name__}",
            where=lake.place,
            way_out="check that lake.uri is right and that the server runs",
        ) from None
    except (RESTError, ValidationError, NotImplementedError, ValueError) as error:
        raise LakeError(
            f"the catalog refused: {type(error).__name__}",
            where=lake.place,
            way_out="check that lake.rest has what this server requires (token, credential, warehouse …), "
            "and that this user may read and write there",
        ) from None


def _table_path(name: LakeName) -> str:
    return f"namespaces/{quote(name.namespace, safe='')}/tables/{quote(name.table, safe='')}"


def _name(of: dict[str, Any]) -> LakeName:
    identifier = of["identifier"]
    return LakeName(identifier["namespace"][0], identifier["name"])


def _error_type(answer: Response) -> str:
    """The server's name of the error; its words may hold anything."""
    try:
        return str(answer.json()["error"]["type"])[:80]
    except (ValueError, KeyError, TypeError):
        return ""


def _lacks(answer: Response) -> bool:
    """Return whether the server has no such request; a missing table is something else."""
    return answer.status_code in _LACKING and not _error_type(answer).startswith("NoSuch")
