"""Renames columns with a name that readers reserve (`spark.names.READERS_OWN`) and an earlier version gave.

Spark neither reads nor changes a table with such a column, so it is renamed before anything else happens to
the table.  Only metadata is written: files know columns by number.  The mirror and its derived tables change
together, and the point that they stand at is read under the new names; older points keep theirs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from slotlake.spark.catalog.base import Loaded, load_one
from slotlake.spark.catalog.open import Catalog
from slotlake.spark.history.modes import MODES
from slotlake.spark.names import is_readers_own, lake_columns
from slotlake.spark.tables.metadata import Metadata, newest_position, with_properties
from slotlake.spark.tables.schema import STAGED_SCHEMA_PROPERTY, TableSchema, schema_of
from slotlake.spark.tables.settle import STAGED_FIELDS_PROPERTY, with_shape


def rename_reserved_columns(
    catalog: Catalog, mirror: Loaded, derived: Mapping[str, Loaded]
) -> tuple[Loaded, Mapping[str, Loaded]]:
    """Rename reserved columns of a mirror and its derived tables; return the tables.

    Args:
        derived: mode → derived table.

    Raises:
        LakeError: someone else changed one of the tables meanwhile; none was renamed.
    """
    names = _names(schema_of(mirror.metadata, mirror.name))
    if not names:
        return mirror, derived
    shape = _shape(schema_of(mirror.metadata, mirror.name))
    moves = [catalog.prepared(mirror, _renamed(mirror.metadata, names, shape=shape.to_json()))]
    for mode, table in derived.items():
        kind = MODES[mode]
        fields = {kind.field_name(old): kind.field_name(new) for old, new in names.items()}
        moves.append(catalog.prepared(table, _renamed(table.metadata, fields, images=kind.IMAGES)))
    catalog.move(moves)
    return load_one(catalog, mirror.name), {m: load_one(catalog, t.name) for m, t in derived.items()}


def _shape(before: TableSchema) -> TableSchema:
    named = (replace(column, lake_name=lake_columns([column.lake_name])[0]) for column in before.columns)
    columns = tuple(
        new if is_readers_own(old.lake_name) else old for old, new in zip(before.columns, named, strict=True)
    )
    return replace(before, columns=columns)


def _names(shape: TableSchema) -> dict[str, str]:
    """Field as it is called → as it is to be called."""
    return {
        old: new
        for column, renamed in zip(shape.columns, _shape(shape).columns, strict=True)
        for old, new in ((column.lake_name, renamed.lake_name), (column.exact_name, renamed.exact_name))
        if old != new
    }


def _renamed(
    metadata: Metadata, names: Mapping[str, str], *, shape: str | None = None, images: Sequence[str] = ()
) -> Metadata:
    properties: dict[str, str | None] = {
        STAGED_FIELDS_PROPERTY: json.dumps(
            {"names": dict(names), "gone": [], "inside": list(images)}, ensure_ascii=False
        ),
        STAGED_SCHEMA_PROPERTY: shape,
    }
    return with_shape(with_properties(metadata, properties), newest_position(metadata) or 0, ())
