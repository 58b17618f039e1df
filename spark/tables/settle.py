"""What publishing does to a table's fields: those staged under names of their own take over others.

While a batch is staged, readers still look at the table's fields, so nothing but adding an empty one, or
widening one, may happen to them.  What else is to happen waits in the property ``slotlake.fields.stage`` and
is done in the swap that publishes the rows: fields get other names, or leave.  Also in it: the shape that the
table had before stays readable, by position, for those who stand at an older point.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.spark.names import exact_name, lake_columns
from slotlake.spark.tables.layout import without_missing_fields
from slotlake.spark.tables.metadata import Metadata, ref, with_properties
from slotlake.spark.tables.schema import (
    SCHEMA_PROPERTY,
    STAGED_SCHEMA_PROPERTY,
    LakeColumn,
    TableSchema,
    unbounded_fields,
)

STAGED_FIELDS_PROPERTY = "slotlake.fields.stage"
HISTORY_PROPERTY = "slotlake.schema.history"


@dataclass(frozen=True)
class Settled:
    """A table as it will be once published.

    Attributes:
        names: field as staged → field as published, of those whose name changes.
        gone: fields that leave.
    """

    schema: TableSchema
    names: dict[str, str]
    gone: tuple[str, ...]

    @property
    def plan(self) -> str | None:
        """For the table property; None if no field changes."""
        if not self.names and not self.gone:
            return None
        return json.dumps({"names": self.names, "gone": list(self.gone)}, ensure_ascii=False)


def settle(schema: TableSchema, before: TableSchema) -> Settled:
    """What a staged shape becomes; ``before``: the published one."""
    stable = [column for column in schema.live if not column.renamed]
    moving = [column for column in schema.live if column.renamed]
    own = lake_columns([column.name for column in [*stable, *moving]])[len(stable) :]
    live = {column.name: column for column in stable}
    live |= {
        column.name: replace(column, lake_name=name, renamed=False)
        for column, name in zip(moving, own, strict=True)
    }
    columns = [live[column.name] for column in schema.live]
    past = [] if schema.drop else _past(columns, [c for c in schema.columns if c.dropped])
    final = replace(schema, columns=(*columns, *past), drop=False)
    staying = [c for c in schema.columns if not (schema.drop and c.dropped)]
    names = {
        old: new
        for staged, column in zip(
            [*schema.live, *(c for c in staying if c.dropped)], final.columns, strict=True
        )
        for old, new in zip(_fields([staged]), _fields([column]), strict=True)
        if old != new
    }
    removed = set(_fields(before.columns)) - set(_fields(staying))
    return Settled(
        final, names, tuple(sorted(removed | set(_fields(schema.columns)) - set(_fields(staying))))
    )


def _past(live: Iterable[LakeColumn], dropped: Iterable[LakeColumn]) -> list[LakeColumn]:
    """Columns that are gone, under names that those present leave them."""
    used_names = {name.lower() for name in _fields(live)}
    past = []
    for column in dropped:
        name, number = column.lake_name, 1
        while {name.lower(), exact_name(name).lower()} & used_names:
            name, number = f"{column.lake_name}__dropped{'' if number == 1 else number}", number + 1
        used_names |= {name.lower(), exact_name(name).lower()}
        past.append(replace(column, lake_name=name, renamed=False))
    return past


def _fields(columns: Iterable[LakeColumn]) -> list[str]:
    return [name for column in columns for name in (column.lake_name, column.exact_name)]


def with_settled_fields(metadata: Metadata, snapshot_id: int | None) -> Metadata:
    """The table with its fields as they are to be; the snapshot that comes with them is read by them."""
    plan = metadata.get("properties", {}).get(STAGED_FIELDS_PROPERTY)
    if plan is None:
        return metadata
    staged_plan = json.loads(plan)
    current = _current(metadata)
    needed = _partition_and_sort_fields(metadata)
    remaining = [f for f in current["fields"] if f["name"] not in staged_plan["gone"] or f["id"] in needed]
    names = {**staged_plan["names"], **_names_of_the_gone(remaining, staged_plan)}
    fields = _renamed(remaining, names, staged_plan.get("inside", ()))
    # Fields that are as they once were have that schema's number: a REST server adds no schema twice.
    alike = [s["schema-id"] for s in metadata["schemas"] if {**current, **s, "fields": fields} == s]
    number = alike[0] if alike else 1 + max(schema["schema-id"] for schema in metadata["schemas"])
    added = [] if alike else [{**current, "schema-id": number, "fields": fields}]
    return {
        **metadata,
        "schemas": [*metadata["schemas"], *added],
        "current-schema-id": number,
        "snapshots": [
            {**s, "schema-id": number} if s["snapshot-id"] == snapshot_id else s
            for s in metadata["snapshots"]
        ],
    }


def _names_of_the_gone(remaining: Iterable[Any], plan: Mapping[str, Any]) -> dict[str, str]:
    """Names for fields that would leave, and stay because files are partitioned or sorted by them.

    A column that comes with such a name later is another one, and begins empty.
    """
    used_names = {field["name"].lower() for field in remaining} | {
        name.lower() for name in plan["names"].values()
    }
    names: dict[str, str] = {}
    for field in remaining:
        if field["name"] in plan["gone"]:
            candidates = (f"{field['name']}__dropped{number or ''}" for number in itertools.count())
            names[field["name"]] = next(name for name in candidates if name.lower() not in used_names)
            used_names.add(names[field["name"]].lower())
    return names


def _renamed(fields: Iterable[Any], names: Mapping[str, str], inside: Collection[str]) -> list[Any]:
    """Fields under other names; with ``inside``, those within these structs instead."""
    if not inside:
        return [{**field, "name": names.get(field["name"], field["name"])} for field in fields]
    return [
        {**field, "type": {**field["type"], "fields": _renamed(field["type"]["fields"], names, ())}}
        if field["name"] in inside
        else field
        for field in fields
    ]


def _current(metadata: Metadata) -> dict[str, Any]:
    return next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])


def _partition_and_sort_fields(metadata: Metadata) -> set[int]:
    """Fields that the table is partitioned or sorted by: Iceberg reads no table that lacks one."""
    specs = [*metadata.get("partition-specs", ()), *metadata.get("sort-orders", ())]
    return {int(field["source-id"]) for spec in specs for field in spec["fields"]}


def with_shape(metadata: Metadata, position: int, keep_positions: Collection[int]) -> Metadata:
    """The table with its staged shape published, and the shapes of the points that are kept.

    Args:
        keep_positions: the positions of the points that are kept.
    """
    properties = metadata.get("properties", {})
    shape = properties.get(STAGED_SCHEMA_PROPERTY)
    settled_metadata = with_settled_fields(metadata, ref(metadata, "main"))
    changes = {
        STAGED_SCHEMA_PROPERTY: None,
        STAGED_FIELDS_PROPERTY: None,
        **_metrics(metadata, settled_metadata),
    }
    history, before = _history(metadata), properties.get(SCHEMA_PROPERTY)
    if before is not None and shape is not None:
        changed, history = _columns(before) != _columns(shape), history or [_entry(0, None, before)]
    else:  # a table beside a mirror has no shape of its own
        changed = STAGED_FIELDS_PROPERTY in properties and shape is None
    if changed:
        history = [entry for entry in history if parse_lsn(entry["lsn"]) < position]
        history.append(_entry(position, settled_metadata["current-schema-id"], shape))
        changes[HISTORY_PROPERTY] = json.dumps(_needed(history, keep_positions), ensure_ascii=False)
    return with_properties(
        settled_metadata, changes if shape is None else {**changes, SCHEMA_PROPERTY: shape}
    )


def _metrics(metadata: Metadata, settled: Metadata) -> dict[str, str | None]:
    """The properties by which Iceberg keeps no bounds of floats; those of fields that are gone leave.

    A table of an earlier version has none, and renamed fields have other names: Iceberg refuses to alter a
    table of which such a property names a field that is not there.
    """
    before, after = (unbounded_fields(_floats(_current(each))) for each in (metadata, settled))
    gone = before.keys() & metadata.get("properties", {}).keys() - after.keys()
    return {**dict.fromkeys(gone), **after}


def _floats(struct: Mapping[str, Any], inside: str = "") -> Iterator[str]:
    """Names of the floats of a struct, and of the structs in it."""
    for field in struct["fields"]:
        if field["type"] in ("float", "double"):
            yield inside + field["name"]
        elif isinstance(field["type"], dict) and field["type"]["type"] == "struct":
            yield from _floats(field["type"], f"{inside}{field['name']}.")


def _entry(position: int, schema_id: int | None, shape: str | None) -> dict[str, Any]:
    return {"lsn": format_lsn(position), "schema-id": schema_id, "schema": shape}


def _columns(shape: str) -> Any:
    fields = json.loads(shape)
    return fields["columns"], fields["key"]


def _needed(history: list[dict[str, Any]], keep_positions: Collection[int]) -> list[dict[str, Any]]:
    """Without the shapes that had been followed by another one at the oldest point that is kept."""
    oldest = min(keep_positions, default=0)
    first = max((i for i, entry in enumerate(history) if parse_lsn(entry["lsn"]) <= oldest), default=0)
    return history[first:]


def _history(metadata: Metadata) -> list[dict[str, Any]]:
    history: list[dict[str, Any]] = json.loads(metadata.get("properties", {}).get(HISTORY_PROPERTY, "[]"))
    return history


def past_shapes(metadata: Metadata) -> list[tuple[str, TableSchema]]:
    """The shapes that a table had, each with the LSN from which on, the oldest and the present one included.

    Only a table whose columns changed has any, as far back as points are kept.
    """
    return [(entry["lsn"], TableSchema.from_json(entry["schema"])) for entry in _history(metadata)]


def shape_at(metadata: Metadata, position: int) -> TableSchema | None:
    """The shape that a table had at a position; None if that is the one it has now."""
    entry = _entry_at(metadata, position)
    # What was noted of the present shape since stands in the table's own property only.
    return (
        None if entry is None or entry == _history(metadata)[-1] else TableSchema.from_json(entry["schema"])
    )


def schema_id_at(metadata: Metadata, schema_id: int, position: int, lsn: str | None) -> int:
    """By which Iceberg schema a snapshot is to be read that says ``schema_id``.

    A REST server keeps the number that the snapshot was written by, before its fields were settled.

    Args:
        position: that is looked at; ``lsn``: that the snapshot says, if it says one.
    """
    entry = _entry_at(metadata, position)
    settled_id = entry["schema-id"] if entry is not None and entry["lsn"] == lsn else None
    known_ids = {schema["schema-id"] for schema in metadata["schemas"]}
    number = schema_id if settled_id is None else int(settled_id)
    return number if number in known_ids else int(metadata["current-schema-id"])


def _entry_at(metadata: Metadata, position: int) -> dict[str, Any] | None:
    past = [entry for entry in _history(metadata) if parse_lsn(entry["lsn"]) <= position]
    return past[-1] if past else None


def with_past_shape(metadata: Metadata, snapshot_id: int, position: int) -> Metadata | None:
    """The table in the shape that it had at a position, for good; None if that shape is not kept."""
    history = _history(metadata)
    below = [entry for entry in history if parse_lsn(entry["lsn"]) <= position]
    if len(below) == len(history):
        return metadata  # it has had no other since
    if not below:
        return None
    number = below[-1]["schema-id"]
    if number is None:
        written = next(s for s in metadata["snapshots"] if s["snapshot-id"] == snapshot_id)
        number = written.get("schema-id", metadata["current-schema-id"])
    shaped = without_missing_fields({**metadata, "current-schema-id": number})
    changes = {HISTORY_PROPERTY: json.dumps(below, ensure_ascii=False), **_metrics(metadata, shaped)}
    if below[-1]["schema"] is not None:
        changes[SCHEMA_PROPERTY] = below[-1]["schema"]
    return with_properties(shaped, changes)
