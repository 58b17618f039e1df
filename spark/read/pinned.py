"""A lake's tables as they were when a cut was taken, each to be read as of its position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from slotlake.decoder.lsn import parse_lsn
from slotlake.spark.catalog import tags as catalog_tags
from slotlake.spark.catalog.listing import Listing
from slotlake.spark.names import LakeName
from slotlake.spark.publish.past import location_at
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import LSN, Metadata
from slotlake.spark.tables.schema import TableSchema, schema_of
from slotlake.spark.tables.settle import schema_id_at, shape_at


@dataclass(frozen=True)
class Pinned:
    """A table as its pointer was when the cut was taken, to be read as of a position."""

    name: LakeName
    pointer: str
    position: int

    @cached_property
    def location(self) -> str:
        """Where the metadata is that has the snapshot: the pointer, or a file of the table's past."""
        return location_at(self.pointer, self.position)

    @cached_property
    def metadata(self) -> Metadata:
        """The table's metadata; read when first asked for."""
        return catalog_metadata.load(self.location)

    @cached_property
    def properties(self) -> dict[str, str]:
        """The table's properties."""
        properties: dict[str, str] = catalog_metadata.load_top(self.location).get("properties", {})
        return properties

    @cached_property
    def snapshot(self) -> Metadata | None:
        """The newest snapshot at or before the position; None if the table is younger.

        A snapshot that says no position, on top of all that do, was made by something else, a compaction
        or a person: other readers see it there, so this one must too, or a check would check what nobody
        reads.  Below one that does, it may be the first half of a batch's work, which nobody ever saw.
        """
        top = catalog_metadata.load_top(self.location)
        reached = catalog_metadata.newest_position(top)
        if reached is not None and reached <= self.position:
            return catalog_metadata.head(top)
        head = catalog_metadata.head(self.metadata)
        is_newest = True
        for snapshot in catalog_metadata.ancestry(self.metadata):
            lsn = catalog_metadata.summary(snapshot).get(LSN)
            if lsn is None:
                continue
            if parse_lsn(lsn) <= self.position:
                return head if is_newest else snapshot
            is_newest = False
        # An expiry breaks the chain: it takes away what lies between the kept points.
        return catalog_metadata.snapshot(self.metadata, catalog_tags.at(self.metadata, self.position))

    @cached_property
    def schema_id(self) -> int:
        """The Iceberg schema that the snapshot is read by."""
        written: int = (self.snapshot or {}).get("schema-id", -1)
        lsn = catalog_metadata.summary(self.snapshot).get(LSN)
        return schema_id_at(self.metadata, written, self.position, lsn)

    @cached_property
    def shape(self) -> TableSchema:
        """The table's shape at the snapshot.

        Raises:
            LakeError: it is not a table of ours.
        """
        top = catalog_metadata.load_top(self.location)
        return shape_at(top, self.position) or schema_of(top, self.name)

    @cached_property
    def field_ids(self) -> dict[str, int]:
        """Lake column → field id, as the table was at the snapshot."""
        schema = next(s for s in self.metadata["schemas"] if s["schema-id"] == self.schema_id)
        return {field["name"]: field["id"] for field in schema["fields"]}


class PinnedTables(Mapping[LakeName, Pinned]):
    """The tables of a listing, each pinned when it is asked for: of thousands, few are."""

    def __init__(self, listing: Listing, position: int) -> None:
        self._pointers, self._position = listing.pointers, position
        self._pinned: dict[LakeName, Pinned] = {}

    def __getitem__(self, name: LakeName) -> Pinned:
        if name not in self._pinned:
            self._pinned[name] = Pinned(name, self._pointers[name], self._position)
        return self._pinned[name]

    def __contains__(self, name: object) -> bool:
        return name in self._pointers

    def __iter__(self) -> Iterator[LakeName]:
        return iter(self._pointers)

    def __len__(self) -> int:
        return len(self._pointers)
