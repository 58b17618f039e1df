"""Temporary views of folded rows, for the two statements that replace rows in the lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from slotlake.spark.merge.replacement import Replacement
from slotlake.spark.merge.rows import view_of_rows
from slotlake.spark.merge.sql import view_schema
from slotlake.spark.session import is_remote, shares_files


@contextmanager
def views_to_replace_with(
    session: SparkSession, directory: Path, replacement: Replacement, rows: pa.Table
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Make views for the time of the context.

    Where they are two, the rows are handed to Spark while the first statement is at work: it needs the keys.

    Yields:
        The name of the view for the first statement; and what returns that for the second, once it is there.

    Raises:
        LakeError: a file cannot be written.
    """
    schema = view_schema(replacement.target, rows.column_names)

    def view_of(part: pa.Table, schema: str) -> AbstractContextManager[str]:
        return view_of_rows(session, part, schema, directory, "folded", sized=False)

    with ExitStack() as views:
        if _are_columns(session, replacement.lookup, rows):
            view = views.enter_context(view_of(rows, schema))
            yield view, lambda: view
            return
        lookup_view = views.enter_context(view_of(replacement.lookup, replacement.schema))
        if not replacement.appends:
            yield lookup_view, lambda: lookup_view  # nobody asks
            return
        with ThreadPoolExecutor(1) as beside:
            made = beside.submit(views.enter_context, view_of(rows, schema))
            yield lookup_view, made.result


def _are_columns(session: SparkSession, lookup: pa.Table, rows: pa.Table) -> bool:
    """Return whether both statements read one view.

    They do where all of it is looked up with, and where Spark reads some columns of a file, or of what it
    has.  Where slotlake's own process drives a cluster, it sends rows whole to the executors, which send back
    what is broadcast (docs/adr/0072).
    """
    if not set(lookup.column_names) <= set(rows.column_names):
        return False
    return lookup.num_columns == rows.num_columns or shares_files(session) or is_remote(session)
