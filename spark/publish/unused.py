"""Snapshots of a table that nobody can name any more."""

from __future__ import annotations

import time
from collections.abc import Iterator

from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import MAIN, Metadata


def without_unused_snapshots(metadata: Metadata, unused_seconds: float) -> Metadata:
    """A table without the snapshots that nobody can name any more."""
    oldest = time.time() * 1000 - unused_seconds * 1000
    until = _last_current(metadata)
    recent = {s["snapshot-id"] for s in metadata.get("snapshots", ()) if until[s["snapshot-id"]] >= oldest}
    return catalog_metadata.without_unreferenced(metadata, recent | set(_down_to_a_point(metadata)))


def _last_current(metadata: Metadata) -> dict[int, float]:
    """Snapshot id → until when it was main's, in ms since 1970; when it was made, if it never was."""
    log = metadata.get("snapshot-log", [])
    ends = [*(entry["timestamp-ms"] for entry in log[1:]), time.time() * 1000]
    made_ms = {s["snapshot-id"]: float(s["timestamp-ms"]) for s in metadata.get("snapshots", ())}
    return made_ms | {entry["snapshot-id"]: float(end) for entry, end in zip(log, ends, strict=True)}


def _down_to_a_point(metadata: Metadata) -> Iterator[int]:
    """Main's newest snapshots, down to the one of a point."""
    for snapshot in catalog_metadata.ancestry(metadata, MAIN):
        yield snapshot["snapshot-id"]
        if catalog_metadata.LSN in catalog_metadata.summary(snapshot):
            return
