"""Tables of the lake whose Iceberg format is not the one that the pipeline file asks for.

A new table gets the format of the file. A table that the lake has keeps its own, and all of slotlake goes by
that, until `slotlake format` changes it: an edit of the file alone changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.spark.names import LakeName
    from slotlake.spark.read.point import ReadPoint

_NAMED_MAX = 3
_NOTED: WeakKeyDictionary[OpenPipeline, list[str]] = WeakKeyDictionary()
FORMAT_WAY_OUT = "they keep theirs until you run slotlake format"


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


def format_differences(point: ReadPoint) -> str:
    """Return in words which tables have another format; empty if none has."""
    others = other_formats(point)
    if not others:
        return ""
    named = [
        f"{name} has {present}, the file says {wanted}" for name, (present, wanted) in sorted(others.items())
    ]
    more = f"; and {len(named) - _NAMED_MAX} more" if len(named) > _NAMED_MAX else ""
    listed = "; ".join(named[:_NAMED_MAX])
    return f"tables have another Iceberg format than the pipeline file asks for ({listed}{more})"


def format_warnings(point: ReadPoint) -> list[str]:
    """Return a warning about tables that have another format, if there are some."""
    differences = format_differences(point)
    return [f"{differences}: {FORMAT_WAY_OUT}"] if differences else []


def note_formats(pipeline: OpenPipeline, point: ReadPoint) -> None:
    """Note what is to be warned of at a point that a sync has read anyway: it reads all tables for that."""
    _NOTED[pipeline] = format_warnings(point)


def noted_warnings(pipeline: OpenPipeline) -> list[str]:
    """Return the warnings of the last point that was noted."""
    return _NOTED.get(pipeline, [])
