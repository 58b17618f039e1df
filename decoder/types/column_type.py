"""How one column's values are kept: the type's row of the table, for that column."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class ColumnType:
    """How one column's values are kept.

    Attributes:
        oid: PostgreSQL's type OID.
        typmod: PostgreSQL's type modifier, -1 for none.
        arrow: type of the Arrow column.
        spark: type in Spark and Iceberg DDL.
        inexact: some values of the type do not fit; their exact text goes beside the typed column.
    """

    oid: int
    typmod: int
    arrow: pa.DataType
    spark: str
    inexact: bool
