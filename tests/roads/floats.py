"""No file says between which ends its floats lie (docs/adr/0092)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.roads.lake_files import Entry, Json, LakeFiles, as_map

_UNBOUNDED = {
    "write.metadata.metrics.column.": "none",
    "write.parquet.stats-enabled.column.": "false",
    "write.parquet.dict-encoding-enabled.column.": "false",
}


def bounded_floats(files: LakeFiles, metadata: Json, entry: Entry) -> Iterator[str]:
    """What a data file's manifest or footer says of its floats, by which a reader could skip rows."""
    floats = dict(pair for schema in metadata["schemas"] for pair in _floats(schema))
    for bounds in ("lower_bounds", "upper_bounds"):
        told = as_map(entry.file.get(bounds)).keys() & floats.keys()
        yield from (f"{floats[number]}: a float has {bounds}," for number in told)
    current = next(each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"])
    for name in _paths(current):
        for prefix, value in _UNBOUNDED.items():
            if metadata["properties"].get(prefix + name) != value:
                yield f"{name}: the table lacks the property {prefix}{name},"
    footer = pq.read_metadata(files.path(entry.path))
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            is_in_list = ".list." in chunk.path_in_schema  # no condition leads there
            if chunk.physical_type not in ("FLOAT", "DOUBLE") or is_in_list:
                continue
            if chunk.statistics is not None and chunk.statistics.has_min_max:
                yield f"{chunk.path_in_schema}: a float has statistics,"
            if any("DICTIONARY" in each for each in chunk.encodings):
                yield f"{chunk.path_in_schema}: a float has a dictionary,"


def _paths(struct: Json, inside: str = "") -> Iterator[str]:
    """The names of the floats of a struct, and of the structs in it, as Iceberg's properties have them."""
    for field in struct["fields"]:
        if field["type"] in ("float", "double"):
            yield inside + field["name"]
        elif isinstance(field["type"], dict) and field["type"]["type"] == "struct":
            yield from _paths(field["type"], f"{inside}{field['name']}.")


def _floats(struct: Json) -> Iterator[tuple[int, str]]:
    for field in struct["fields"]:
        if field["type"] in ("float", "double"):
            yield field["id"], field["name"]
        elif isinstance(field["type"], dict) and field["type"]["type"] == "struct":
            yield from _floats(field["type"])


def lost_rows(connection: Any, scan: str, whole: pa.Table, names: Sequence[str]) -> Iterator[str]:
    """What DuckDB does not find of NaN, of zeros, and of all above the largest number of a column.

    Args:
        connection: of DuckDB.
        scan: the table, in its SQL.
        whole: all its rows.
        names: the columns to ask for.
    """
    for name in names:
        if name not in whole.column_names or not pa.types.is_floating(whole[name].type):
            continue
        values = [value for value in whole[name].to_pylist() if value is not None]
        largest = 3.4028234663852886e38
        for condition, expected in (
            (f"\"{name}\" = 'NaN'", sum(value != value for value in values)),  # noqa: PLR0124
            (f'"{name}" > {largest!r}', sum(not value <= largest for value in values)),
            (f'"{name}" = 0', sum(value == 0 for value in values)),
        ):
            ((found,),) = connection.execute(f"SELECT count(*) FROM {scan} WHERE {condition}").fetchall()
            if found != expected:
                yield f"{expected} rows have {condition}, and {found} are found"
