"""Takes rows out of a table that is copied out of sight: those that the source has changed since it was read.

What an earlier attempt copied stays (docs/adr/0020), but for the rows whose keys the stream has told of
since; they are read once more.  So a table is exact at the later snapshot whatever range a row stood in.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection

import pyarrow as pa
from pyspark.sql import SparkSession

from slotlake.spark import lake_files
from slotlake.spark.catalog.base import Loaded, load
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.merge.represented import as_kept
from slotlake.spark.merge.run import field_types, run
from slotlake.spark.names import quote
from slotlake.spark.tables.schema import LakeColumn, TableSchema


def forget(
    session: SparkSession, lake: LakeSettings, table: Loaded, schema: TableSchema, keys: pa.Table
) -> None:
    """Delete the rows with these keys.

    Args:
        keys: of the i-th key column the values ``n<i>`` as the change log has them and, where any is
            needed, the exact texts ``xn<i>``.

    Raises:
        LakeError: Spark failed.
    """
    if not keys.num_rows:
        return
    columns = [schema.column(name) for name in schema.key]
    rows = as_kept(columns, keys)
    with open_catalog(lake) as catalog:
        present = field_types(load(catalog.pointers(), table.name).metadata)
    conditions = [
        condition
        for i, column in enumerate(columns)
        for condition in _same(i, column, present.keys(), rows.column_names)
    ]
    view = f"stale_{uuid.uuid4().hex}"
    directory = lake_files.control_directory(lake, "copy", table.name.namespace, table.name.table)
    path = lake_files.write_parquet(rows, directory / f"{view}.parquet")
    frame = session.read.schema(_ddl(columns, rows.column_names)).parquet(path.as_uri())
    frame.createOrReplaceTempView(view)
    found = f"EXISTS (SELECT 1 FROM {quote(view)} AS s WHERE {' AND '.join(conditions)})"
    try:
        run(session, table, f"DELETE FROM {table.name.sql(lake.catalog)} AS t WHERE {found}")
    finally:
        session.catalog.dropTempView(view)
        lake_files.remove_tree(directory)


def _same(i: int, column: LakeColumn, present: Collection[str], given: list[str]) -> list[str]:
    """A key's typed value is null only where its exact text is not."""
    told = f"xn{i}" in given
    companion = column.exact_name in present
    conditions = [f"t.{quote(column.lake_name)} {'<=>' if companion else '='} s.n{i}"]
    if companion:
        conditions.append(f"t.{quote(column.exact_name)} <=> " + (f"s.xn{i}" if told else "NULL"))
    return conditions


def _ddl(columns: list[LakeColumn], names: list[str]) -> str:
    kinds = {f"n{i}": column.kept.spark for i, column in enumerate(columns)}
    return ", ".join(f"{name} {kinds.get(name, 'string')}" for name in names)
