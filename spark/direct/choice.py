"""Which batches of which tables are staged without Spark, and why another is not.

What needs more than a look at the keys of a table is left to Spark's MERGE: another format, marked rows,
changes of the shape, very large tables.
"""

from __future__ import annotations

import os
from typing import Final

from slotlake.decoder.errors import LakeError
from slotlake.spark.direct.live import FILES_MAX
from slotlake.spark.direct.snapshot import CODEC, can_compress
from slotlake.spark.direct.unsuitable import UnsuitableError
from slotlake.spark.history.modes import MirrorChanges, missing_fields
from slotlake.spark.merge.fields import field_changes
from slotlake.spark.merge.run import Work
from slotlake.spark.tables.layout import default_spec
from slotlake.spark.tables.manifests import FORMATS
from slotlake.spark.tables.metadata import Metadata, head, summary
from slotlake.spark.tables.schema import TableSchema, schema_of
from slotlake.spark.tables.settle import settle

# A switch of the tests: each batch through the MERGE, those that suit directly, or an error for the others.
SWITCH: Final = "SLOTLAKE_DIRECT"
NEVER, USUALLY, ALWAYS = "never", "usually", "always"
_DEFAULT: Final = USUALLY
# Properties by which a user may have files written in a way that only Iceberg's own writers know.
_UNKNOWN: Final = ("write.data.path", "write.metadata.path", "encryption.", "write.location-provider")
_USUAL: Final = {
    "write.format.default": "parquet",
    "write.merge.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
}


def require_suitable(work: Work, schema: TableSchema, *, filled: bool) -> None:
    """Require that a batch of a table can be staged without Spark, as far as no file says.

    Args:
        filled: columns get a constant in all rows first.

    Raises:
        UnsuitableError: it cannot.
    """
    metadata = work.table.metadata
    require_usual(metadata)
    _require_none(
        (schema.soft_deletes, "rows that the source deleted stay"),
        (filled, "columns get a constant in all rows"),
        (_files(metadata) > FILES_MAX, "the table has many files"),
        (_changes_fields(work, schema), "the table gets other fields"),
    )


def require_usual(metadata: Metadata) -> None:
    """Require that files can be added to a table without Spark.

    Raises:
        UnsuitableError: they cannot.
    """
    _require_none(
        (mode() == NEVER, "it is switched off"),
        (metadata["format-version"] != FORMATS[-1], "the table is of format 2"),
        (is_unusual(metadata), "the table's files are written in an unusual way"),
    )


def require_suitable_derived(work: Work, kind: str, changes: MirrorChanges) -> None:
    """Require that a batch of a derived table can be staged without Spark, as far as no file says.

    Args:
        kind: ``append`` or ``history``.

    Raises:
        UnsuitableError: it cannot.
    """
    metadata = work.table.metadata
    missing = missing_fields(work.table, kind, changes.schema, changes.names)
    require_usual(metadata)
    _require_none(
        (kind == "history" and _files(metadata) > FILES_MAX, "the table has many files"),
        (bool(missing), "the table gets other fields"),
    )


def _require_none(*reasons: tuple[bool, str]) -> None:
    for applies, why in reasons:
        if applies:
            raise UnsuitableError(why)


def mode() -> str:
    """Return what the switch says."""
    return os.environ.get(SWITCH, _DEFAULT)


def require_not_asked_for(work: Work, why: UnsuitableError) -> None:
    """Require that the switch does not ask for all batches to be staged directly.

    Raises:
        LakeError: it does.
    """
    if mode() == ALWAYS:
        raise LakeError(
            f"the batch was not staged directly: {why}",
            where=f"table {work.table.name}",
            way_out=f"unset {SWITCH}, which only tests set",
        ) from why


def _files(metadata: Metadata) -> int:
    return int(summary(head(metadata)).get("total-data-files", 0))


def is_unusual(metadata: Metadata) -> bool:
    """Return whether a table's files are written in a way that only Iceberg's own writers know."""
    properties = metadata.get("properties", {})
    return (
        any(name.startswith(_UNKNOWN) for name in properties)
        or any(properties.get(name, usual) != usual for name, usual in _USUAL.items())
        or not can_compress(properties.get(CODEC, "zstd"))
        or any(field["transform"] == "void" for field in default_spec(metadata)["fields"])
    )


def _changes_fields(work: Work, schema: TableSchema) -> bool:
    """Return whether fields come, or change, or there are fields that no column has."""
    metadata = work.table.metadata
    published = schema_of(metadata, work.table.name)
    if field_changes(work.table, work.lake.catalog, schema) or settle(schema, published).plan is not None:
        return True
    own = {name for column in schema.columns for name in (column.lake_name, column.exact_name)}
    current = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
    return any(field["name"] not in own for field in current["fields"])
