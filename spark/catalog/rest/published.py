"""What a REST server is told about a table whose whole metadata is ours (spark/catalog/rest/staged.py).

The server's table has the newest rows and the present columns, and a property that says where the whole
metadata is.  Its snapshots have no parent, and it has no tags: such a server keeps one snapshot at a time.

Functions are pure.
"""

from __future__ import annotations

from typing import Any, Final

from slotlake.spark.catalog.base import Move
from slotlake.spark.catalog.rest.changes import (
    COPYING,
    Change,
    creation_of,
    identifier,
    layout_changes,
    property_updates,
    require_ref,
    set_ref,
)
from slotlake.spark.names import LakeName
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import MAIN, Metadata
from slotlake.spark.tables.schema import STAGED_SCHEMA_PROPERTY
from slotlake.spark.tables.settle import STAGED_FIELDS_PROPERTY

METADATA_PROPERTY: Final = "slotlake.metadata"
STAGED_PROPERTIES: Final = (STAGED_SCHEMA_PROPERTY, STAGED_FIELDS_PROPERTY)
_OURS = ("slotlake.", "write.")


def published_change(name: LakeName, server: Metadata, after: Metadata, location: str) -> Change:
    """What makes the server's table show a table as it is to be.

    Args:
        server: its metadata as the server has it; the change fails if its main is elsewhere by then.
    """
    main = catalog_metadata.ref(server, MAIN)
    moves_main = catalog_metadata.ref(after, MAIN) != main
    before = {key: text for key, text in server.get("properties", {}).items() if key.startswith(_OURS)}
    return {
        "identifier": identifier(name),
        "requirements": [
            {"type": "assert-table-uuid", "uuid": server["table-uuid"]},
            require_ref(MAIN, main),
        ],
        "updates": [
            *_format(server, after),
            *_schema(server, after),
            *layout_changes(server, after),
            *(_snapshot(after, server) if moves_main else ()),
            *property_updates(before, _properties(after, location, server)),
        ],
    }


def published_creation(move: Move, *, content: bool = True) -> Change:
    """What makes the server's table of a new one.

    Args:
        content: with its rows; else empty, and marked as not there yet.
    """
    metadata, name = move.metadata, move.rename or move.name
    properties = _properties(metadata, move.new, {})
    if not content:
        properties[COPYING] = "true"
    return creation_of(
        name, metadata, str(metadata["table-uuid"]), properties, _snapshot(metadata) if content else []
    )


def published_content(move: Move) -> Change:
    """What gives a table made empty its rows, and makes it one that is there.

    Args:
        move: as for :func:`published_creation`.
    """
    return {
        "identifier": identifier(move.rename or move.name),
        "requirements": [
            {"type": "assert-table-uuid", "uuid": move.metadata["table-uuid"]},
            require_ref(MAIN, None),
        ],
        "updates": [*_snapshot(move.metadata), {"action": "remove-properties", "removals": [COPYING]}],
    }


def shown_change(name: LakeName, shown: Metadata, table: Metadata) -> Change:
    """What makes a view that follows a table show what the table is now; no updates: it does.

    Args:
        shown: the view's metadata; the change fails if its main is elsewhere by then.
    """
    main, wanted = catalog_metadata.ref(shown, MAIN), catalog_metadata.ref(table, MAIN)
    ours, theirs = (
        {key: text for key, text in each.get("properties", {}).items() if key.startswith(_OURS)}
        for each in (table, shown)
    )
    outdated = [each["snapshot-id"] for each in shown.get("snapshots", ())]
    return {
        "identifier": identifier(name),
        "requirements": [
            {"type": "assert-table-uuid", "uuid": table["table-uuid"]},
            require_ref(MAIN, main),
        ],
        "updates": [
            *_format(shown, table),
            *_schema(shown, table),
            *layout_changes(shown, table),
            *(_snapshot(table, shown) if wanted != main else ()),
            *(_only_main(shown) if wanted != main else ()),
            *(
                {"action": "remove-snapshots", "snapshot-ids": [number]}
                for number in outdated
                if wanted != main and number not in (main, wanted)
            ),
            *property_updates(theirs, ours),
        ],
    }


def _only_main(metadata: Metadata) -> list[Change]:
    """What takes all other references away."""
    return [
        {"action": "remove-snapshot-ref", "ref-name": name}
        for name in metadata.get("refs", {})
        if name != MAIN
    ]


def _properties(metadata: Metadata, location: str, server: Metadata) -> dict[str, str]:
    """Ours, but for what is staged and where the past is; others only if the server has none of that name."""
    properties = dict(metadata.get("properties", {}))
    present = server.get("properties", {})
    chosen = {
        key: text
        for key, text in properties.items()
        if key not in STAGED_PROPERTIES and (key.startswith(_OURS) or key not in present)
    }
    return {**chosen, METADATA_PROPERTY: location}


def _snapshot(metadata: Metadata, server: Metadata | None = None) -> list[Change]:
    """Main's snapshot, without its parent, which the server may not have; its schema by the server's number.

    Args:
        server: its metadata as the server has it; None for a table that is new there.
    """
    head = catalog_metadata.head(metadata)
    if head is None:
        return []
    if server is not None and catalog_metadata.snapshot(server, head["snapshot-id"]) is not None:
        return [set_ref(MAIN, {"snapshot-id": head["snapshot-id"], "type": "branch"})]
    snapshot = {key: value for key, value in head.items() if key not in ("parent-snapshot-id", "schema-id")}
    # A reader takes a snapshot without a number by the columns of now, so a column that was dropped and made
    # again is NULL in the past.
    if (number := _schema_number(metadata, head, server)) is not None:
        snapshot["schema-id"] = number
    if "first-row-id" in snapshot:
        # A server adds `added-rows` to its own next row number; it has not seen the snapshots before.
        first = (server or {}).get("next-row-id", 0)
        snapshot |= {"first-row-id": first, "added-rows": metadata["next-row-id"] - first}
    ref = {"snapshot-id": head["snapshot-id"], "type": "branch"}
    return [{"action": "add-snapshot", "snapshot": snapshot}, set_ref(MAIN, ref)]


def _format(server: Metadata, after: Metadata) -> list[Change]:
    version = after["format-version"]
    if server["format-version"] == version:
        return []
    return [{"action": "upgrade-format-version", "format-version": version}]


def _schema(server: Metadata, after: Metadata) -> list[Change]:
    """The columns that the table is to have; the server numbers its schemas itself."""
    wanted = _current(after)
    if _fields(_current(server)) == _fields(wanted):
        return []
    for schema in server["schemas"]:
        if _fields(schema) == _fields(wanted):
            return [{"action": "set-current-schema", "schema-id": schema["schema-id"]}]
    last = max(int(after["last-column-id"]), int(server["last-column-id"]))
    return [
        {"action": "add-schema", "schema": {**wanted, "schema-id": _next(server)}, "last-column-id": last},
        {"action": "set-current-schema", "schema-id": -1},
    ]


def _next(server: Metadata) -> int:
    """The number that a server gives to a schema that it has not yet, as Iceberg itself does."""
    return 1 + max(int(schema["schema-id"]) for schema in server["schemas"])


def _schema_number(after: Metadata, head: dict[str, Any], server: Metadata | None) -> int | None:
    """The server's number of the schema of main's snapshot; None if the server does not have that schema."""
    if server is None:
        return 0  # that of the one schema with which the table is made
    number = head.get("schema-id", after["current-schema-id"])
    own = next((each for each in after["schemas"] if each["schema-id"] == number), _current(after))
    added = {**_current(after), "schema-id": _next(server)}
    known = [*server["schemas"], added]
    return next((int(each["schema-id"]) for each in known if _fields(each) == _fields(own)), None)


def _current(metadata: Metadata) -> dict[str, Any]:
    schema: dict[str, Any] = next(
        schema for schema in metadata["schemas"] if schema["schema-id"] == metadata["current-schema-id"]
    )
    return schema


def _fields(schema: dict[str, Any]) -> Any:
    """What makes two schemas the same, whatever their numbers."""
    return schema["fields"], sorted(schema.get("identifier-field-ids", ()))
