"""Does a table of the lake hold what the source holds? Answered in one pass over either side."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from slotlake.decoder.errors import LockedError
from slotlake.expectations.lake_side import LakeTable
from slotlake.expectations.shapes import Compared, LakeCut, SourceTableShape
from slotlake.expectations.source_side import SourceTable, hashes_escaped, snapshot_session, while_there
from slotlake.spark.names import postgres_name

Shape = TypeVar("Shape", bound=SourceTableShape)


def equal_tables(dsn: str, snapshot: str, tables: Sequence[Shape], cut: LakeCut) -> list[Shape]:
    """Those of the tables, all of which the lake has, that hold the same rows on both sides.

    One that is locked at the source is not among them.

    Args:
        snapshot: an exported snapshot that shows exactly what ``cut`` is to hold.

    Raises:
        SourceError: the server cannot be reached, or may not be read in full.
        VanishedError: a table is gone at the source.
        LakeError: the lake cannot be read.
    """
    held = {(table.schema, table.table): table for table in cut.tables()}
    found = []
    with snapshot_session(dsn, snapshot) as connection, ThreadPoolExecutor(1) as other:
        for table in tables:
            name, lake = postgres_name(table.schema, table.table), held[table.schema, table.table]
            compared = Compared.of(name, table, lake, escaped=hashes_escaped(connection))
            ours = other.submit(LakeTable(cut, compared).sums)
            theirs = None
            with suppress(LockedError), while_there(connection, compared):
                theirs = SourceTable(connection, compared).sums()
            if ours.result() == theirs and not compared.absent:
                found.append(table)
    return found
