"""The columns of a lake table as files have them, and their values as PostgreSQL prints them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from slotlake.decoder.errors import DamagedError

if TYPE_CHECKING:
    from slotlake.spark.tables.schema import LakeColumn

MENDED = "restore the file, or read the table again: slotlake backfill with the table's name"


@dataclass(frozen=True)
class ScanColumn:
    """A column to read: its Iceberg field id, and the Arrow field it becomes."""

    field_id: int
    field: pa.Field


def scan_columns_of(
    ids: Mapping[str, int], columns: Sequence[LakeColumn]
) -> tuple[list[tuple[LakeColumn, bool]], list[ScanColumn]]:
    """Return columns, whether each has a companion, and what is to be read for them."""
    chosen = [(column, column.exact and column.exact_name in ids) for column in columns]
    scan_columns = []
    for column, exact in chosen:
        scan_columns.append(
            ScanColumn(ids[column.lake_name], pa.field(column.name, column.representation.arrow))
        )
        if exact:
            scan_columns.append(
                ScanColumn(ids[column.exact_name], pa.field(f"{column.name}__exact", pa.string()))
            )
    return chosen, scan_columns


def text_of(column: LakeColumn, values: pa.Array, exact: pa.Array | None) -> pa.Array:
    """Return the texts of a column as PostgreSQL prints them.

    Args:
        exact: the exact texts; None for a column without them.

    Raises:
        DamagedError: it has a value that nothing of slotlake has written.
    """
    try:
        return column.representation.text(values, exact)
    except (ValueError, pa.ArrowException):  # what they say may have the value
        raise DamagedError(
            "the lake has a value that its type does not allow: a data file is damaged",
            where=f"column {column.name}",
            way_out=MENDED,
        ) from None


def as_text(batch: pa.RecordBatch, chosen: Sequence[tuple[LakeColumn, bool]]) -> pa.RecordBatch:
    """Return a batch of typed columns, some of them followed by their exact texts, as a batch of texts.

    Args:
        batch: the columns, in the order of ``chosen``.
        chosen: each column, and whether its exact texts follow.

    Raises:
        DamagedError: as `text_of`.
    """
    remaining = iter(batch.columns)
    arrays = []
    for column, exact in chosen:
        values = next(remaining)
        arrays.append(text_of(column, values, next(remaining) if exact else None))
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column, _ in chosen])
