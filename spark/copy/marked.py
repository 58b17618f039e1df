"""Copies of mirrors whose deleted rows stay (`on_delete: mark`): the SQL, and what becomes of marked rows.

A copy knows no rows that are gone.  So the marked rows stay, and rows that the copy does not have any more
are marked, at the copy's LSN.  If the table's key is another one by now, old and new rows cannot be paired:
then only rows that were marked before stay.  If a column of the key has another type, or is new, marked rows
have no key any more, and leave.

Copied files lack the mirror's own columns, and what these hold is known only when the copy is published (a
reader who asks for `_lsn > x` must not miss the copy).  So Spark writes such rows once more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from slotlake.spark.merge.fields import key_fields
from slotlake.spark.merge.run import Work
from slotlake.spark.names import quote
from slotlake.spark.publish.derived_tables import Source
from slotlake.spark.tables import soft_deletes
from slotlake.spark.tables.schema import TableSchema, schema_of


def rewrite_with_own_columns(source: Source) -> str:
    """Return the SQL that fills the mirror's own columns in all rows of a table.

    Args:
        source: the table, which is written too; with the LSN and the time of the copy.
    """
    copied = sorted(source.fields - soft_deletes.OWN.keys())
    own = soft_deletes.of_copy(source.position, source.time)
    names = ", ".join([*map(quote, copied), *own])
    selected = ", ".join([*map(quote, copied), *own.values()])
    return f"INSERT OVERWRITE {source.name} ({names}) SELECT {selected} FROM {source.name}"


def statements(
    work: Work,
    schema: TableSchema,
    companions: Collection[str],
    new_rows: Source,
    inserted: tuple[Sequence[str], Sequence[str]],
) -> list[str]:
    """Return the SQL that replaces the live rows of a mirror by copied ones, in its branch ``stage``.

    Args:
        companions: lake names of the exact-text columns that the table has.
        new_rows: the copied rows, with fields named as in the lake; at this LSN and time.
        inserted: the fields of the rows, and the expressions for them.
    """
    branch = f"{work.table.name.sql(work.lake.catalog)}.branch_stage"
    key = key_fields(schema, companions)
    own = soft_deletes.of_copy(new_rows.position, new_rows.time)
    names, values = inserted
    insert = (
        f"INSERT INTO {branch} ({', '.join([*map(quote, names), *own])}) "
        f"SELECT {', '.join([*values, *own.values()])} FROM {new_rows.name} AS s"
    )
    before = schema_of(work.table.metadata, work.table.name)
    if not {column.lake_name for column in before.columns}.issuperset(_typed_key(schema)):
        return [f"DELETE FROM {branch}", insert]
    if key != key_fields(before, companions):
        return [
            f"DELETE FROM {branch} WHERE {soft_deletes.LIVE}",
            insert,
            soft_deletes.superseded(branch, key),
        ]
    by_name = dict(zip(names, values, strict=True))
    keys = ", ".join(f"{by_name[name]} AS {quote(name)}" for name in key)
    same = " AND ".join(f"t.{quote(name)} <=> k.{quote(name)}" for name in key)
    replaced = (
        f"MERGE INTO {branch} AS t USING (SELECT {keys} FROM {new_rows.name} AS s) AS k ON {same} "
        "WHEN MATCHED THEN DELETE "
        f"WHEN NOT MATCHED BY SOURCE AND NOT t.{quote(soft_deletes.DELETED)} "
        f"THEN UPDATE SET {soft_deletes.ended(new_rows.position, new_rows.time)}"
    )
    return [replaced, insert]


def _typed_key(schema: TableSchema) -> list[str]:
    return [schema.column(name).lake_name for name in schema.key]
