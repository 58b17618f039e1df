"""From two states of a table's metadata to the requests of the REST catalog specification between them.

Only what publishing does is told: references, properties, a new schema, snapshots that come and leave; and
for a new table all that it has.  Each change says what must still be so: the table's identity, and where the
references that it moves stand.

Functions are pure but for the time that a new table's snapshots get: that of their publication.
"""

from __future__ import annotations

import time
from typing import Any

from slotlake.spark.catalog.base import Loaded, Move
from slotlake.spark.names import LakeName
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import MAIN, STAGE, Metadata

COPYING = "slotlake.copying"
Change = dict[str, Any]


def table_change(table: Loaded, after: Metadata) -> Change:
    """What makes ``after`` of a table as it was read."""
    before = table.metadata
    refs, next_refs = before.get("refs", {}), after.get("refs", {})
    moved = [name for name in next_refs if refs.get(name) != next_refs[name]]
    dropped = [name for name in refs if name not in next_refs]
    guarded = dict.fromkeys([MAIN, STAGE, *moved, *dropped])
    return {
        "identifier": identifier(table.name),
        "requirements": [
            {"type": "assert-table-uuid", "uuid": before["table-uuid"]},
            {"type": "assert-current-schema-id", "current-schema-id": before["current-schema-id"]},
            *(require_ref(name, catalog_metadata.ref(before, name)) for name in guarded),
        ],
        "updates": [
            *_format(before, after),
            *_schemas(before, after),
            *layout_changes(before, after),
            *_added_snapshots(before, after),
            *(set_ref(name, next_refs[name]) for name in sorted(moved, key=lambda name: name != MAIN)),
            *({"action": "remove-snapshot-ref", "ref-name": name} for name in dropped),
            *property_updates(before.get("properties", {}), after.get("properties", {})),
            *_removed_snapshots(before, after),
        ],
    }


def table_creation(move: Move, table_uuid: str, *, content: bool) -> Change:
    """What makes a new table like the one that was filled out of sight.

    Args:
        content: with its snapshots; else empty, and marked as not there yet.
    """
    name, properties = move.rename or move.name, dict(move.metadata.get("properties", {}))
    if not content:
        return creation_of(name, move.metadata, table_uuid, {**properties, COPYING: "true"}, [])
    return creation_of(name, move.metadata, table_uuid, properties, _content(move.metadata))


def creation_of(
    name: LakeName, metadata: Metadata, table_uuid: str, properties: dict[str, str], content: list[Change]
) -> Change:
    """What makes a new table."""
    schema = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
    order = next(o for o in metadata["sort-orders"] if o["order-id"] == metadata["default-sort-order-id"])
    # All specs, oldest first, so that each gets the number that the table's manifests have.
    specs = sorted(metadata["partition-specs"], key=lambda spec: int(spec["spec-id"]))
    return {
        "identifier": identifier(name),
        "requirements": [{"type": "assert-create"}],
        "updates": [
            {"action": "assign-uuid", "uuid": table_uuid},
            {"action": "upgrade-format-version", "format-version": metadata["format-version"]},
            {"action": "add-schema", "schema": schema, "last-column-id": metadata["last-column-id"]},
            {"action": "set-current-schema", "schema-id": -1},
            *({"action": "add-spec", "spec": spec} for spec in specs),
            {"action": "set-default-spec", "spec-id": metadata["default-spec-id"]},
            {"action": "add-sort-order", "sort-order": order},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "set-location", "location": metadata["location"]},
            *([{"action": "set-properties", "updates": properties}] if properties else []),
            *content,
        ],
    }


def table_content(move: Move, table_uuid: str) -> Change:
    """What gives a table made empty its content, and makes it one that is there."""
    return {
        "identifier": identifier(move.rename or move.name),
        "requirements": [{"type": "assert-table-uuid", "uuid": table_uuid}, require_ref(MAIN, None)],
        "updates": [
            *_content(move.metadata),
            {"action": "remove-properties", "removals": [COPYING]},
        ],
    }


def identifier(name: LakeName) -> dict[str, Any]:
    return {"namespace": [name.namespace], "name": name.table}


def require_ref(name: str, snapshot_id: int | None) -> Change:
    return {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": snapshot_id}


def set_ref(name: str, ref: Metadata) -> Change:
    return {"action": "set-snapshot-ref", "ref-name": name, **ref}


def property_updates(before: dict[str, str], after: dict[str, str]) -> list[Change]:
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    removed = [key for key in before if key not in after]
    return [
        *([{"action": "set-properties", "updates": changed}] if changed else []),
        *([{"action": "remove-properties", "removals": removed}] if removed else []),
    ]


def _format(before: Metadata, after: Metadata) -> list[Change]:
    version = after["format-version"]
    changed = before["format-version"] != version
    return [{"action": "upgrade-format-version", "format-version": version}] if changed else []


def _schemas(before: Metadata, after: Metadata) -> list[Change]:
    """The schema that the table is to have; the server gives it a number."""
    known_ids = {schema["schema-id"] for schema in before["schemas"]}
    added = [schema for schema in after["schemas"] if schema["schema-id"] not in known_ids]
    if not added and before["current-schema-id"] == after["current-schema-id"]:
        return []
    if not added:
        return [{"action": "set-current-schema", "schema-id": after["current-schema-id"]}]
    (schema,) = added
    return [
        {"action": "add-schema", "schema": schema, "last-column-id": after["last-column-id"]},
        {"action": "set-current-schema", "schema-id": -1},
    ]


def layout_changes(before: Metadata, after: Metadata) -> list[Change]:
    """The partition spec and the sort order that the table is to have; numbers are the server's."""
    changes: list[Change] = []
    for key, of, one in (
        ("partition-specs", "spec-id", "spec"),
        ("sort-orders", "order-id", "sort-order"),
    ):
        default = "default-spec-id" if one == "spec" else "default-sort-order-id"
        known_ids = {each[of] for each in before.get(key, ())}
        added = [each for each in after.get(key, ()) if each[of] not in known_ids]
        changes += [{"action": f"add-{one}", one: each} for each in added]
        if before.get(default) != after.get(default):
            number = -1 if added else after[default]
            changes.append({"action": f"set-default-{one}", f"{one}-id": number})
    return changes


def _added_snapshots(before: Metadata, after: Metadata) -> list[Change]:
    known_ids = {snapshot["snapshot-id"] for snapshot in before.get("snapshots", ())}
    return [
        {"action": "add-snapshot", "snapshot": snapshot}
        for snapshot in after.get("snapshots", ())
        if snapshot["snapshot-id"] not in known_ids
    ]


def _removed_snapshots(before: Metadata, after: Metadata) -> list[Change]:
    """One update for each snapshot that leaves: older servers take no more in one."""
    remaining_ids = {snapshot["snapshot-id"] for snapshot in after.get("snapshots", ())}
    return [
        {"action": "remove-snapshots", "snapshot-ids": [snapshot["snapshot-id"]]}
        for snapshot in before.get("snapshots", ())
        if snapshot["snapshot-id"] not in remaining_ids
    ]


def _content(metadata: Metadata) -> list[Change]:
    """Snapshots, oldest first, and the references; the new table has one schema, so its number is 0."""
    now = int(time.time() * 1000)
    added = [
        {"action": "add-snapshot", "snapshot": {**snapshot, "schema-id": 0, "timestamp-ms": now}}
        for snapshot in reversed(catalog_metadata.ancestry(metadata))
    ]
    refs = metadata.get("refs", {})
    return [*added, *(set_ref(name, refs[name]) for name in sorted(refs, key=lambda name: name != MAIN))]
