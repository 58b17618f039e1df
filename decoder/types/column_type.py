"""The Arrow and Iceberg types of one column, from the table of types."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class ColumnType:
    """How the change log and the lake store one column's values.

    Attributes:
        oid: PostgreSQL's type OID.
        typmod: PostgreSQL's type modifier, -1 for none.
        arrow: type of the Arrow column.
        spark: type in Spark and Iceberg DDL.
        inexact: some values of the type do not fit; their exact text goes to a second column.
    """

    oid: int
    typmod: int
    arrow: pa.DataType
    spark: str
    inexact: bool
