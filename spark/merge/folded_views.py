"""Temporary views of folded rows, for the statements that bring them into the lake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from slotlake.spark.merge.rows import view_of_rows
from slotlake.spark.merge.sql import Target, lookup_columns, view_schema
from slotlake.spark.session import is_remote, shares_files


@contextmanager
def folded_views(
    session: SparkSession, directory: Path, target: Target, rows: pa.Table
) -> Iterator[tuple[str, str]]:
    """Make views for the time of the context; yields their names.

    The first has the folded rows, the second at least the columns that the first of two statements looks up
    with.  They are two where slotlake's own process drives a cluster: it sends rows whole to the executors,
    which send back what is broadcast (docs/adr/0072).

    Args:
        session: the session.
        directory: for files.
        target: the table and the fold.
        rows: the folded rows.

    Raises:
        LakeError: a file cannot be written.
    """
    columns = lookup_columns(target)
    sized = not columns  # else the statements say themselves how the rows are joined

    def view_of(part: pa.Table) -> AbstractContextManager[str]:
        schema = view_schema(target, part.column_names)
        return view_of_rows(session, part, schema, directory, "folded", sized=sized)

    with view_of(rows) as view:
        needs_all = sized or len(columns) == rows.num_columns
        if needs_all or shares_files(session) or is_remote(session):
            yield view, view
            return
        with view_of(rows.select(columns)) as lookup_view:
            yield view, lookup_view
