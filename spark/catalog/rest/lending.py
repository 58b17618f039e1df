"""Keys that a REST server lends for a table's files, where the pipeline file has none.

A location of the lake is `<warehouse>/<namespace>/<table>/…`, so it says whose keys are needed.  The server
lends them with its answer about the table.  For a table that is not there (yet, or any more) one of its name
is begun as the REST specification has it (``stage-create``): the server makes nothing, and lends keys for the
place.  A namespace that is missing is made for that moment.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    RESTError,
)

from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog.rest.catalog import RestPointers, require_done
from slotlake.spark.catalog.rest.session import MISSING, explained, server_of, table_path
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName
from slotlake.spark.storage import stores
from slotlake.spark.storage.location import Location

_FIELD: Final = {"id": 1, "name": "id", "required": False, "type": "long"}


def serve_lent(lake: LakeSettings) -> None:
    """Make the server lend keys for what lies in the warehouse, if the file leaves it to the server."""
    if lake.is_in_bucket:
        stores.lend(lake.root, _Lender(lake).lend if lake.borrows_keys else None)


class _Lender:
    def __init__(self, lake: LakeSettings) -> None:
        self._lake = lake

    def lend(self, location: Location) -> None:
        """Register keys for the table that a location belongs to.

        Raises:
            LakeError: the location belongs to no table, or the server lends no keys for it.
        """
        parts = location.removeprefix(f"{self._lake.root}/").split("/")
        if len(parts) < 2:
            raise self._refused(location, "it belongs to no table")
        name, pointers = LakeName(parts[0], parts[1]), RestPointers(self._lake)
        place = self._lake.root / name.namespace / name.table
        answered = pointers.answered(name)
        if answered is None:
            config = self._begin(pointers, name, place)
        elif stores.canonical(answered.metadata["location"]) == place:
            config = answered.config
        else:  # a table that had the name before, or will have it
            other = LakeName(name.namespace, f"slotlake_{uuid.uuid4().hex}")
            config = self._begin(pointers, other, place)
        if not stores.is_lent(location):
            raise self._refused(location, _reason(config))

    def _begin(self, pointers: RestPointers, name: LakeName, place: Location) -> Mapping[str, str]:
        """Begin a table, and register the keys for it; return what the server says of its storage."""
        body = {
            "name": name.table,
            "location": place,
            "schema": {"type": "struct", "schema-id": 0, "fields": [_FIELD]},
            "stage-create": True,
        }
        path = table_path(name).rpartition("/")[0]
        with explained(self._lake):
            answer = server_of(self._lake).post(path, body)
            if answer.status_code == MISSING:
                with self._namespace(name.namespace):
                    answer = server_of(self._lake).post(path, body)
        require_done(answer, [name], self._lake)
        content: dict[str, Any] = answer.json()
        stands = content["metadata"]["location"].rstrip("/")
        if stands != place:
            raise self._refused(place, f"the server would put the table at {stands}")
        pointers.storage.register(name, place, content)
        return content.get("config") or {}

    @contextmanager
    def _namespace(self, name: str) -> Iterator[None]:
        """A namespace for a moment; one that is there by now, or is used meanwhile, stays."""
        server = server_of(self._lake)
        try:
            server.create_namespace(name)
        except NamespaceAlreadyExistsError:
            yield
            return
        try:
            yield
        finally:
            with suppress(RESTError, NamespaceNotEmptyError, NoSuchNamespaceError):
                server.drop_namespace(name)

    def _refused(self, location: Location, why: str) -> LakeError:
        return LakeError(
            f"the REST catalog lends no keys for a place in the warehouse: {why}",
            where=f"{location}, {self._lake.place}",
            way_out="let the server lend keys (vended credentials) for this warehouse to this user, or give "
            "keys in lake.storage",
        )


def _reason(config: Mapping[str, str]) -> str:
    if config.get("s3.remote-signing-enabled", "").lower() == "true":
        return "it signs requests instead (remote signing)"
    return "its answer about the table has none"
