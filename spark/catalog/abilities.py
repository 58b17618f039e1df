"""What a REST server can do, found out by making two small tables there, and what of it a lake needs.

A server's word is not enough: one makes a table of format 2 when it is asked for 3, another answers "200" to
a branch and makes none.  So what was asked for is read back.  The tables are in a namespace of their own, or
in the lake's where this user may make no other; tables, files and namespace are removed again.

It is asked once while a lake is open, by `init`, `replay`, `validate` and a copy of new tables: a batch
pays nothing for it.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from pyiceberg.exceptions import ForbiddenError, NoSuchTableError, RESTError
from pyiceberg.manifest import write_manifest_list
from requests import Response

from slotlake.decoder.errors import LakeError
from slotlake.spark import lake_files
from slotlake.spark.catalog.rest.catalog import RestPointers
from slotlake.spark.catalog.rest.changes import (
    Change,
    creation_of,
    identifier,
    set_ref,
)
from slotlake.spark.catalog.rest.lending import serve_lent
from slotlake.spark.catalog.rest.session import (
    OK_BELOW,
    TOGETHER,
    Answered,
    explained,
    server_of,
    table_path,
)
from slotlake.spark.catalog.rest.views import register
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName
from slotlake.spark.storage import stores
from slotlake.spark.storage.file_io import StoreFileIO
from slotlake.spark.storage.location import Location
from slotlake.spark.tables.metadata import STAGE, Metadata

_PROBE_PROPERTY: Final = "slotlake.probe"
_SNAPSHOT: Final = 1


@dataclass(frozen=True)
class Abilities:
    """What a server did when it was asked.

    Attributes:
        format: the format of a table that was to be of format 3.
        branches: a branch was there when the table was read again.
        together: one request changed two tables, and neither when a requirement of one of them failed.
        creates_together: one request made two tables.
        views: it lists views.
        lends_keys: its answers hold keys for the store.
        signs: it signs requests to the store, instead of lending keys.
        pins: a metadata file got a second name, which went again without the file.
    """

    format: int
    branches: bool
    together: bool
    creates_together: bool
    views: bool
    lends_keys: bool
    signs: bool
    pins: bool

    @property
    def words(self) -> str:
        """In a line, for reports."""
        parts = [f"format {self.format}", "branches" if self.branches else "no branches"]
        parts.append(("" if self.together else "not ") + "several tables at once")
        parts += ["views"] if self.views else []
        parts += ["pinned views"] if self.pins else []
        parts += ["lends keys"] if self.lends_keys else []
        parts += ["signs requests"] if self.signs else []
        return ", ".join(parts)


def require_abilities(lake: LakeSettings) -> Abilities:
    """See what the server of a lake can do, and that this is enough for the lake.

    Raises:
        LakeError: what it cannot, and which key of the pipeline file helps.
    """
    abilities = abilities_of(lake)
    _require_together(lake, abilities)
    wanted = max([lake.table_format, *lake.table_formats.values()])
    if wanted > abilities.format:
        raise LakeError(
            f"this catalog makes tables of format {abilities.format} when it is asked for format {wanted}",
            where=lake.place,
            way_out=f"set lake.format: {abilities.format}, and tables.<name>.format too where it is {wanted}",
        )
    if not abilities.branches and not lake.staging:
        raise LakeError(
            "this catalog makes no branches: it accepts the request, and the branch is not there",
            where=lake.place,
            way_out="set lake.staging: local (or the address of a PostgreSQL database, if the steps run on "
            "different machines): batches are then staged there and published here",
        )
    if lake.views and not abilities.pins:
        raise LakeError(
            "this catalog cannot have pinned views: it does not give a metadata file a second name "
            "(POST …/register), keeps no properties of namespaces, or removes the file with that name",
            where=lake.place,
            way_out="set lake.views to false, and pin each table by the snapshot that the table commits "
            "names (docs/reading.md); or use another catalog",
        )
    return abilities


def _require_together(lake: LakeSettings, abilities: Abilities) -> None:
    if lake.publish == "atomic" and not abilities.together:
        RestPointers(lake).require_together()
        raise LakeError(
            "this catalog does not change several tables at once: a request of which one part must fail "
            "changed the other part",
            where=lake.place,
            way_out="use a catalog that can (SQLite, PostgreSQL, another REST server), or accept with "
            "lake.publish: per_table that tables opened at `latest` can differ in position",
        )


def abilities_of(lake: LakeSettings) -> Abilities:
    """Return what the server of a lake can do; it is asked once while the lake is open.

    Raises:
        LakeError: the server cannot be reached, or lets this user make no tables.
    """
    asked, key = lake.memory.of(_Asked), (lake.warehouse, lake.borrows_keys)
    with asked.lock:
        if key not in asked.abilities:
            lake_files.serve(lake)
            serve_lent(lake)
            with explained(lake), _namespace(lake) as namespace:
                asked.abilities[key] = _Probe(lake, namespace).run()
        return asked.abilities[key]


@dataclass
class _Asked:
    """What the server did, by warehouse and whether it lends the keys."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    abilities: dict[tuple[str, bool], Abilities] = field(default_factory=dict)


@contextmanager
def _namespace(lake: LakeSettings) -> Iterator[str]:
    """A namespace for the tables; it goes again, if it was made."""
    server, name = server_of(lake), f"slotlake_probe_{uuid.uuid4().hex[:12]}"
    try:
        server.create_namespace(name, {_PROBE_PROPERTY: "done"})
    except ForbiddenError:
        if not server.namespace_exists(lake.namespace):
            raise
        yield lake.namespace
        return
    try:
        yield name
    finally:
        with suppress(RESTError):
            server.drop_namespace(name)


class _Probe:
    """Two tables, ``a`` and ``b``, of one server."""

    def __init__(self, lake: LakeSettings, namespace: str) -> None:
        self._lake = lake
        self._server = server_of(lake)
        self._pointers = RestPointers(lake)
        prefix = f"slotlake_probe_{uuid.uuid4().hex[:8]}"
        self._names = [LakeName(namespace, f"{prefix}_{letter}") for letter in "ab"]
        self._second = LakeName(namespace, f"{prefix}_c")
        # Where keys are lent, a location says by its namespace and its table whose keys are needed.
        self._folder = lake.root / namespace if lake.borrows_keys else lake.root / ".slotlake" / prefix

    def run(self) -> Abilities:
        """Make the tables, ask, and remove them."""
        try:
            created = self._create()
            first = self._answered(self._names[0])
            if self._lake.borrows_keys:
                lake_files.probe_place(self._folder / self._names[0].table / "data")
            self._branch(first.metadata)
            config = first.config
            return Abilities(
                format=int(first.metadata["format-version"]),
                branches=STAGE in self._answered(self._names[0]).metadata.get("refs", {}),
                together=self._pointers.together and self._is_atomic(),
                creates_together=created,
                views=self._server.get(f"namespaces/{self._names[0].namespace}/views").status_code < OK_BELOW,
                lends_keys="s3.access-key-id" in config or first.lends,
                signs=config.get("s3.remote-signing-enabled") == "true",
                pins=self._pins(first),
            )
        finally:
            self._remove()

    def _create(self) -> bool:
        """Return whether one request made both, of format 3 if the server accepts that."""
        try:
            return self._created(3)
        except LakeError:
            return self._created(2)

    def _created(self, table_format: int) -> bool:
        """As above; if one request does not make both, they are made by one each."""
        changes = [self._creation(name, table_format) for name in self._names]
        if self._pointers.together and _done(self._server.post(TOGETHER, {"table-changes": changes})):
            return True
        for name, change in zip(self._names, changes, strict=True):
            with suppress(NoSuchTableError):
                self._server.drop_table((name.namespace, name.table))
            self._pointers.commit([change])
        return False

    def _creation(self, name: LakeName, table_format: int) -> Change:
        field = {"id": 1, "name": "id", "required": False, "type": "long"}
        schema = {"type": "struct", "schema-id": 0, "fields": [field]}
        metadata: Metadata = {
            "format-version": table_format,
            "schemas": [schema],
            "current-schema-id": 0,
            "last-column-id": 1,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "default-spec-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "location": self._folder / name.table,
        }
        return creation_of(name, metadata, str(uuid.uuid4()), {}, [])

    def _answered(self, name: LakeName) -> Answered:
        answered = self._pointers.answered(name)
        if answered is None:
            raise LakeError(
                "this catalog accepted a new table, and has none",
                where=f"table {name} in {self._lake.place}",
                way_out="use another catalog; nothing of the lake was changed",
            )
        return answered

    def _branch(self, metadata: Metadata) -> None:
        """Ask for a snapshot that is on the branch ``stage`` only."""
        location = Location(metadata["location"]) / "metadata" / f"snap-{uuid.uuid4().hex}.avro"
        _write_empty_list(location)
        rows = {"first-row-id": 0, "added-rows": 0} if metadata["format-version"] > 2 else {}
        snapshot = {
            "snapshot-id": _SNAPSHOT,
            "sequence-number": 1,
            "timestamp-ms": int(max(time.time() * 1000, metadata["last-updated-ms"])),
            "summary": {"operation": "append"},
            "manifest-list": location,
            "schema-id": metadata["current-schema-id"],
            **rows,
        }
        self._server.post(
            table_path(self._names[0]),
            {
                "requirements": [],
                "updates": [
                    {"action": "add-snapshot", "snapshot": snapshot},
                    set_ref(STAGE, {"snapshot-id": _SNAPSHOT, "type": "branch"}),
                ],
            },
        )

    def _is_atomic(self) -> bool:
        """Return whether neither table changes if one may not, and both if both may."""
        wrong = {"type": "assert-table-uuid", "uuid": str(uuid.uuid4())}
        if _done(self._together("refused", [[], [wrong]])) or self._values() != [None, None]:
            return False
        return _done(self._together("done", [[], []])) and self._values() == ["done", "done"]

    def _together(self, value: str, requirements: list[list[Change]]) -> Response:
        update = {"action": "set-properties", "updates": {_PROBE_PROPERTY: value}}
        changes = [
            {"identifier": identifier(name), "requirements": required, "updates": [update]}
            for name, required in zip(self._names, requirements, strict=True)
        ]
        return self._server.post(TOGETHER, {"table-changes": changes})

    def _values(self) -> list[str | None]:
        return [
            self._answered(name).metadata.get("properties", {}).get(_PROBE_PROPERTY) for name in self._names
        ]

    def _pins(self, table: Answered) -> bool:
        """Return whether the table's metadata file can have a second name, in a namespace that is marked."""
        properties = self._server.load_namespace_properties(self._second.namespace)
        if properties.get(_PROBE_PROPERTY) != "done":
            return False
        if not _done(register(self._server, self._second, table.location)):
            return False
        shown = self._pointers.answered(self._second)
        if shown is None or shown.metadata["table-uuid"] != table.metadata["table-uuid"]:
            return False
        self._server.drop_table((self._second.namespace, self._second.table))
        return lake_files.size(table.location) is not None

    def _remove(self) -> None:
        folders = [self._folder]
        if self._lake.borrows_keys:
            each = [self._folder / name.table for name in self._names]
            folders = [folder for folder in each if stores.is_lent(folder)]
        for name in (self._second, *self._names):
            with suppress(NoSuchTableError, RESTError):
                self._server.drop_table((name.namespace, name.table), purge_requested=not folders)
        for folder in folders:
            lake_files.remove_tree(folder)


def _write_empty_list(location: str) -> None:
    """A manifest list without manifests: a snapshot without rows."""
    try:
        output = StoreFileIO().new_output(location)
        with write_manifest_list(2, output, _SNAPSHOT, None, 1, "deflate") as manifests:
            manifests.add_manifests([])
    except OSError as error:
        raise LakeError(
            f"a file cannot be written where the catalog has made a table: {error.strerror or error}",
            where=location,
            way_out="check lake.warehouse and lake.storage (endpoint, region, keys) and this user's rights",
        ) from error


def _done(answer: Response) -> bool:
    return answer.status_code < OK_BELOW
