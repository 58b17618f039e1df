"""Which tables DuckDB would read wrongly by the day or month of a moment: those with moments before 1970.

DuckDB 1.5.5 rounds such days and months up, Iceberg rounds them down, so a condition on the column leaves
out files that have such rows.  The summaries of a manifest list say whether a table has them; no manifest is
read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.manifest import read_manifest_list

from slotlake.spark.storage.file_io import StoreFileIO

if TYPE_CHECKING:
    from slotlake.spark.read.pinned import Pinned
    from slotlake.spark.tables.metadata import Metadata

_MISREAD = frozenset({"day", "month"})
_MOMENTS = frozenset({"timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})


def has_early_moments(pinned: Pinned) -> bool:
    """Return whether some partition is the day or month of moments before 1970."""
    places = _misread_places(pinned.metadata)
    snapshot = pinned.snapshot
    if not places or snapshot is None:
        return False
    listed = StoreFileIO().new_input(snapshot["manifest-list"])
    return any(
        _is_early(manifest.partitions[place].lower_bound)
        for manifest in read_manifest_list(listed)
        for place in places.get(manifest.partition_spec_id, ())
        if manifest.partitions
    )


def _misread_places(metadata: Metadata) -> dict[int, list[int]]:
    """Spec → which of its fields are days or months of moments."""
    types = {field["id"]: field["type"] for schema in metadata["schemas"] for field in schema["fields"]}
    places = {
        spec["spec-id"]: [
            place
            for place, field in enumerate(spec["fields"])
            if field["transform"] in _MISREAD and types.get(field["source-id"]) in _MOMENTS
        ]
        for spec in metadata["partition-specs"]
    }
    return {spec: misread for spec, misread in places.items() if misread}


def _is_early(lower_bound: bytes | None) -> bool:
    """Whether a bound, an integer of days or months since 1970 with its lowest byte first, is negative."""
    return lower_bound is not None and int.from_bytes(lower_bound, "little", signed=True) < 0
