"""Which fields of a column are floats: nothing that is written says between which ends their values lie.

NaN is greater than all numbers for PostgreSQL, DuckDB and Spark, and is within no bounds of Parquet or
Iceberg; 0 and -0 are equal, and bounds tell them apart.  Readers that skip files and row groups by such
bounds lose rows (docs/adr/0092).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa


def float_fields(name: str, kind: pa.DataType) -> Iterator[str]:
    """Yield the floats of a column as Iceberg names them, those in structs too.

    It keeps no bounds of what is in a list or a map.
    """
    if pa.types.is_floating(kind):
        yield name
    elif pa.types.is_struct(kind):
        for part in kind:
            yield from float_fields(f"{name}.{part.name}", part.type)


def bounded(schema: pa.Schema) -> list[str]:
    """Return the columns of a Parquet file that are no floats, as Arrow's writer names them.

    Only they have statistics, and dictionaries, by which readers skip row groups too.
    """
    leaves = (leaf for field in schema for leaf in _leaves(field.name, field.type))
    return [path for path, kind in leaves if not pa.types.is_floating(kind)]


def _leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    if pa.types.is_struct(kind):
        for part in kind:
            yield from _leaves(f"{path}.{part.name}", part.type)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path, kind
