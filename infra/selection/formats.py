"""Tables of the lake whose Iceberg format is not the one that the pipeline file asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from slotlake.spark.names import LakeName
    from slotlake.spark.read.point import ReadPoint


def other_formats(
    point: ReadPoint, only: Collection[LakeName] | None = None
) -> dict[LakeName, tuple[int, int]]:
    """Return the tables, derived ones included, with their format and the one that the file asks for.

    Args:
        only: look only at these mirrors and what is derived from them.
    """
    from slotlake.spark.tables import metadata

    others = {}
    mirrors = point.mirrors()
    for mirror in mirrors if only is None else only:
        table = mirrors[mirror]
        wanted = point.lake.format_of(table.source_name)
        for name in (mirror, *point.derived_tables_of(mirror).values()):
            present = int(metadata.load_top(point.pinned[name].pointer)["format-version"])
            if present != wanted:
                others[name] = present, wanted
    return others
