"""A table's partition spec and sort order in Iceberg's metadata: what they are, and how they become others.

A spec that a table had stays in its metadata, because files were written by it (Iceberg table specification,
"Partition Evolution"); a term that it shares with the next one keeps its number.

A partition field needs a name, and Iceberg refuses a table of which a column has it, whenever that column
came.  So the names are such that no column of a lake table can have them: a source name has no character 0,
and what looks like its escape is escaped itself (`spark.names`).
"""

from __future__ import annotations

import itertools
from typing import Any

from slotlake.decoder.errors import LakeError
from slotlake.spark.layout import IDENTITY, Layout, SortTerm, Term
from slotlake.spark.tables.metadata import Metadata, with_properties

_NOT_IN_A_NAME = "_x0_"
_FIRST_FIELD = 1000
# Of a table that somebody asked a layout for: so nobody need read the whole metadata of the others.
LAYOUT_PROPERTY = "slotlake.layout"
_DISTRIBUTIONS = tuple(f"write.{of}distribution-mode" for of in ("", "merge.", "update."))
# Rows of one partition are brought together, so that a statement writes one file of each partition; where
# there are none, they arrive folded, and shuffling them once more only costs.
_TOGETHER, _AS_THEY_COME = "hash", "none"
# Rows come sorted by partition, so one file is open at a time: with the default a batch that touched a
# thousand partitions had as many open, and Spark ran out of memory.  And no values of partitions in the names
# of folders: these may be longer than a file system allows, and values of rows belong to no log.
_PARTITIONED = {
    "write.spark.fanout.enabled": "false",
    "write.object-storage.enabled": "true",
    "write.object-storage.partitioned-paths": "false",
}


def with_layout(metadata: Metadata, layout: Layout, own: int = 0) -> Metadata:
    """The table with a layout for the files that are written from now on; the same if it has that layout.

    Args:
        own: so many of its first terms the table has whatever the pipeline file says.

    Raises:
        LakeError: the table has no such field.
    """
    if layout_of(metadata) == layout:
        return metadata
    ids = {field["name"]: int(field["id"]) for field in _current(metadata)["fields"]}
    for name in layout.columns:
        if name not in ids:
            raise LakeError(
                f"the table has no column {name}",
                where=metadata["location"],
                way_out="correct partition_by and sort_by of the table in the pipeline file",
            )
    is_partitioned = len(layout.partition) > own
    mode = _TOGETHER if is_partitioned else _AS_THEY_COME
    changed = _with_order(_with_spec(metadata, layout, ids), layout, ids)
    properties: dict[str, str | None] = dict.fromkeys(_DISTRIBUTIONS, mode)
    properties |= {key: value if is_partitioned else None for key, value in _PARTITIONED.items()}
    properties[LAYOUT_PROPERTY] = "yes" if is_partitioned or layout.sort else None
    return with_properties(changed, properties)


def layout_of(metadata: Metadata) -> Layout:
    """The layout by which files are written now, with the names of the table's own fields."""
    names = {int(field["id"]): str(field["name"]) for field in _current(metadata)["fields"]}
    spec, order = default_spec(metadata), _default_order(metadata)
    partition = [
        Term(names.get(int(f["source-id"]), ""), f["transform"])
        for f in spec["fields"]
        if f["transform"] != "void"
    ]
    sort = [
        SortTerm(
            names.get(int(f["source-id"]), ""),
            f["transform"],
            f["direction"] == "desc",
            f["null-order"] == "nulls-last",
        )
        for f in order["fields"]
    ]
    return Layout(tuple(partition), tuple(sort))


def default_spec(metadata: Metadata) -> dict[str, Any]:
    """The spec that files are written by now."""
    return next(s for s in metadata["partition-specs"] if s["spec-id"] == metadata["default-spec-id"])


def sort_order_id(metadata: Metadata) -> int:
    """The number of the order that files are sorted by now; 0 for none."""
    return int(metadata.get("default-sort-order-id", 0))


def is_laid_out(metadata: Metadata) -> bool:
    """Return whether files are partitioned or sorted."""
    return bool(default_spec(metadata)["fields"] or _default_order(metadata)["fields"])


def without_missing_fields(metadata: Metadata) -> Metadata:
    """A table in a shape of the past, without specs and orders of fields that it does not have.

    Iceberg reads no table whose specs name a field that it lacks.  Files of that time have none of these.
    """
    present = {int(field["id"]) for field in _current(metadata)["fields"]}

    def possible(each: dict[str, Any]) -> bool:
        return all(int(field["source-id"]) in present for field in each["fields"])

    specs = [spec for spec in metadata["partition-specs"] if possible(spec)]
    orders = [order for order in metadata.get("sort-orders", ()) if possible(order)]
    spec, order = metadata["default-spec-id"], sort_order_id(metadata)
    if all(each["spec-id"] != spec for each in specs):
        spec = (
            max(each["spec-id"] for each in specs)
            if specs
            else 1 + max(each["spec-id"] for each in metadata["partition-specs"])
        )
        specs = specs or [{"spec-id": spec, "fields": []}]
    if all(each["order-id"] != order for each in orders):
        order, orders = 0, [*(each for each in orders if each["order-id"]), {"order-id": 0, "fields": []}]
    return {
        **metadata,
        "partition-specs": specs,
        "default-spec-id": spec,
        "sort-orders": orders,
        "default-sort-order-id": order,
    }


def _with_spec(metadata: Metadata, layout: Layout, ids: dict[str, int]) -> Metadata:
    specs = metadata["partition-specs"]
    wanted = [(ids[term.column], term.transform) for term in layout.partition]
    alike = [s["spec-id"] for s in specs if [(f["source-id"], f["transform"]) for f in s["fields"]] == wanted]
    if alike:
        return {**metadata, "default-spec-id": alike[-1]}
    known = {(f["source-id"], f["transform"]): f for spec in specs for f in spec["fields"]}
    last = max(metadata.get("last-partition-id", 0), _FIRST_FIELD - 1)
    numbers = itertools.count(last + 1)
    used_names = {str(field["name"]) for field in known.values()}
    fields = []
    for term, of in zip(layout.partition, wanted, strict=True):
        if of not in known:
            number = next(numbers)
            name = _name(term) if _name(term) not in used_names else f"{_name(term)}_{number}"
            used_names.add(name)
            known[of] = {"source-id": of[0], "field-id": number, "name": name, "transform": of[1]}
        fields.append(known[of])
    number = 1 + max(spec["spec-id"] for spec in specs)
    return {
        **metadata,
        "partition-specs": [*specs, {"spec-id": number, "fields": fields}],
        "default-spec-id": number,
        "last-partition-id": max(last, *(field["field-id"] for field in fields), 0),
    }


def _name(term: Term) -> str:
    """The field's name, in ASCII: DuckDB ends the process at an Avro file with other letters in a name."""
    column = "".join(c if c.isascii() else f"_x{ord(c):X}_" for c in term.column)
    kind = "" if term.transform == IDENTITY else term.kind
    return f"{'_' if column[0].isdigit() else ''}{column}{_NOT_IN_A_NAME}{kind}" + (
        f"_{term.number}" if term.number else ""
    )


def _with_order(metadata: Metadata, layout: Layout, ids: dict[str, int]) -> Metadata:
    fields = [
        {
            "transform": term.transform,
            "source-id": ids[term.column],
            "direction": "desc" if term.descending else "asc",
            "null-order": "nulls-last" if term.nulls_last else "nulls-first",
        }
        for term in layout.sort
    ]
    orders = metadata["sort-orders"]
    alike = [order["order-id"] for order in orders if order["fields"] == fields]
    if alike:
        return {**metadata, "default-sort-order-id": alike[-1]}
    number = 0 if not fields else 1 + max((order["order-id"] for order in orders), default=0)
    return {
        **metadata,
        "sort-orders": [*orders, {"order-id": number, "fields": fields}],
        "default-sort-order-id": number,
    }


def _current(metadata: Metadata) -> dict[str, Any]:
    return next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])


def _default_order(metadata: Metadata) -> dict[str, Any]:
    number = sort_order_id(metadata)
    return next(
        (order for order in metadata.get("sort-orders", ()) if order["order-id"] == number), {"fields": []}
    )
