"""Finds the tables that hold the same rows in lake and source, in one pass over either side."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from slotlake.decoder.errors import ChangedMeanwhileError, LockedError
from slotlake.expectations.lake_side import LakeTable
from slotlake.expectations.shapes import Compared, LakeReadPoint, SourceTableShape
from slotlake.expectations.source_side import SourceTable, hashes_escaped, reading, snapshot_session
from slotlake.spark.names import postgres_name

Shape = TypeVar("Shape", bound=SourceTableShape)


def equal_tables(dsn: str, snapshot: str, tables: Sequence[Shape], read_point: LakeReadPoint) -> list[Shape]:
    """Those of the tables, all of which the lake has, that hold the same rows on both sides.

    One that is locked at the source, or was renamed or dropped there, is not among them.

    Args:
        snapshot: an exported snapshot that shows exactly what ``read_point`` is to hold.

    Raises:
        SourceError: the server cannot be reached, or may not be read in full.
        LakeError: the lake cannot be read.
    """
    lake_tables = {(table.schema, table.table): table for table in read_point.tables()}
    equal = []
    with snapshot_session(dsn, snapshot) as connection, ThreadPoolExecutor(1) as other:
        for table in tables:
            name, lake = postgres_name(table.schema, table.table), lake_tables[table.schema, table.table]
            compared = Compared.of(name, table, lake, escaped=hashes_escaped(connection))
            lake_sums = other.submit(LakeTable(read_point, compared).sums)
            source_sums = None
            with suppress(LockedError, ChangedMeanwhileError), reading(connection, compared):
                source_sums = SourceTable(connection, compared).sums()
            if lake_sums.result() == source_sums and not compared.absent:
                equal.append(table)
    return equal
