"""Tables of the lake whose Iceberg format is not the one that the pipeline file asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotlake.spark.names import LakeName
    from slotlake.spark.read.point import ReadPoint


def other_formats(point: ReadPoint) -> dict[LakeName, tuple[int, int]]:
    """Return the tables, derived ones included, with their format and the one that the file asks for."""
    from slotlake.spark.tables import metadata

    others = {}
    for table in point.tables():
        source_name = table.source_name
        wanted = point.lake.format_of(source_name)
        for name in (point.find(source_name), *point.derived_tables(source_name).values()):
            present = int(metadata.load_top(point.pinned[name].pointer)["format-version"])
            if present != wanted:
                others[name] = present, wanted
    return others
