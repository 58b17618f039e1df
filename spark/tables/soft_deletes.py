"""Columns of a mirror whose deleted rows stay (`on_delete: mark`), and what tells its live rows.

Invariant: `_is_deleted` is never NULL, and of one key at most one row is live.  A key that is live has no row
that is marked.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.errors import PipelineFileError
from slotlake.spark.names import postgres_name, quote

# Not `_deleted`: Iceberg has a column of that name in every table of Spark's (`spark.names.READERS_OWN`).
DELETED, LSN, COMMITTED_AT = "_is_deleted", "_lsn", "_committed_at"
OWN = {DELETED: "boolean", LSN: "bigint", COMMITTED_AT: "timestamp"}
# In Spark SQL; of rows of the mirror.
LIVE = f"NOT {quote(DELETED)}"


def definitions() -> list[str]:
    """The columns, as in CREATE TABLE."""
    return [f"{quote(name)} {kind}" for name, kind in OWN.items()]


def values(deleted: str, lsn: str, committed_at: str) -> dict[str, str]:
    """Return the columns, quoted, with an expression for each.

    Args:
        deleted, lsn, committed_at: the expressions, in Spark SQL.
    """
    return dict(zip(map(quote, OWN), (deleted, lsn, committed_at), strict=True))


def of_copy(position: int, time: datetime) -> dict[str, str]:
    """Return the columns, quoted, with what rows of a copy have in them.

    Args:
        position: the LSN at which the copy is published.
    """
    return values("false", f"{position}L", _moment(time))


def ended(position: int, time: datetime) -> str:
    """The assignments, in Spark SQL, of rows that a copy at this LSN does not have any more."""
    assigned = values("true", f"{position}L", _moment(time))
    return ", ".join(f"t.{name} = {value}" for name, value in assigned.items())


def live_rows(name: str, *, marked: bool) -> str:
    """Return the live rows of a mirror as a table of a query.

    Args:
        name: the mirror, or a branch of it, as Spark SQL names it.
    """
    return f"(SELECT * FROM {name} WHERE {LIVE})" if marked else name


def require_unused_names(schema: str, table: str, columns: Iterable[str]) -> None:
    """Check that no column of a table has the name of one of these columns.

    Raises:
        PipelineFileError: one has; the error is of that table only.
    """
    taken = [name for name in columns if name.lower() in OWN]
    if taken:
        name = postgres_name(schema, table)
        raise PipelineFileError(
            f"{name} has a column {taken[0]!r}, and `on_delete: mark` needs this name in the lake",
            where=f"tables.{schema}.{table}.on_delete",
            way_out=f"set on_delete: delete for this table, and slotlake backfill --table '{name}' if "
            "the lake has it already; or rename the column at the source",
        ).of(schema, table)


def superseded(branch: str, key: Iterable[str]) -> str:
    """Return the SQL that removes the marked rows whose key is live.

    Args:
        key: the fields of the key, with those of their exact texts.
    """
    fields = [quote(name) for name in key]
    same = " AND ".join(f"t.{name} <=> s.{name}" for name in fields)
    live = f"SELECT DISTINCT {', '.join(fields)} FROM {branch} WHERE {LIVE}"
    condition = f"t.{quote(DELETED)} AND {same}"
    return f"MERGE INTO {branch} AS t USING ({live}) AS s ON {condition} WHEN MATCHED THEN DELETE"


def _moment(time: datetime) -> str:
    return f"TIMESTAMP'{time.isoformat(sep=' ', timespec='microseconds')}'"


def with_state(batch: pa.RecordBatch, deleted: bool) -> pa.RecordBatch:
    """The rows that have the mark, or do not have it, without its column, which is the last."""
    is_deleted = batch.column(batch.num_columns - 1)
    wanted = is_deleted if deleted else pc.invert(is_deleted)
    return batch.select(range(batch.num_columns - 1)).filter(wanted)
