"""Takes rows out of a table that is copied out of sight: those that the source has changed since it was read.

What an earlier attempt copied stays (docs/adr/0020), but for the rows whose keys the stream has told of
since; they are read once more.  So a table is exact at the later snapshot whatever range a row stood in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from slotlake.spark import exchange
from slotlake.spark.catalog.base import Loaded, load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.merge.fields import field_types
from slotlake.spark.merge.representation import in_representation
from slotlake.spark.merge.rows import view_of_rows
from slotlake.spark.merge.run import run
from slotlake.spark.names import quote
from slotlake.spark.tables.schema import LakeColumn, TableSchema


def delete_rows(
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
    with open_catalog(lake) as catalog:
        present = field_types(load_one(catalog, table.name).metadata)
    names = [(c.lake_name, c.exact_name if c.exact_name in present else None) for c in columns]
    directory = exchange.exchange_directory(lake, "copy", table.name.namespace, table.name.table)
    try:
        with key_condition(session, directory, columns, keys, names) as condition:
            run(session, table, f"DELETE FROM {table.name.sql(lake.catalog)} AS t WHERE {condition}")
    finally:
        exchange.remove_directory(directory)


@contextmanager
def key_condition(
    session: SparkSession,
    directory: Path,
    columns: Sequence[LakeColumn],
    keys: pa.Table,
    names: Sequence[tuple[str, str | None]],
) -> Iterator[str]:
    """The condition, in Spark SQL, that a row of ``t`` has one of these keys.

    Args:
        directory: for a file with the keys, which the caller removes.
        keys: as `delete_rows` takes them.
        names: how ``t`` calls the columns, and those with their exact text, if it has them.
    """
    rows = in_representation(columns, keys)
    columns_of_view = rows.column_names
    conditions = [each for i, name in enumerate(names) for each in _same(i, *name, columns_of_view)]
    with view_of_rows(session, rows, _ddl(columns, columns_of_view), directory, "stale") as view:
        yield f"EXISTS (SELECT 1 FROM {quote(view)} AS s WHERE {' AND '.join(conditions)})"


def _same(i: int, name: str, companion: str | None, columns_of_view: Collection[str]) -> list[str]:
    """A key's typed value is null only where its exact text is not."""
    if companion is None:
        return [f"t.{quote(name)} = s.n{i}"]
    exact = f"s.xn{i}" if f"xn{i}" in columns_of_view else "NULL"
    return [f"t.{quote(name)} <=> s.n{i}", f"t.{quote(companion)} <=> {exact}"]


def _ddl(columns: Sequence[LakeColumn], names: Sequence[str]) -> str:
    kinds = {f"n{i}": column.spark_type for i, column in enumerate(columns)}
    return ", ".join(f"{name} {kinds.get(name, 'string')}" for name in names)
