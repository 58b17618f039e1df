"""Tables as the replication stream describes them.

A *relation version* is the content of a Relation message: two messages that say the same are the
same version, and any difference (a column added, renamed, retyped, the replica identity changed)
makes a new one.  Values are read only with the version in force at their message, never with what
the live catalog says now, which would be an answer from the future.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from slotlake.decoder.types.column_type import ColumnType
from slotlake.decoder.types.table import column_type


@dataclass(frozen=True)
class Column:
    """One published column.

    Attributes:
        name: as in pg_attribute.
        type_oid: type OID.
        typmod: type modifier, -1 for none.
        in_key: part of the replica identity (all columns under REPLICA IDENTITY FULL).
        type_name: name in pg_type; of a user type with its schema, of a domain that of its base type,
            as the Type message gives it; "" when the stream did not name it.
    """

    name: str
    type_oid: int
    typmod: int
    in_key: bool
    type_name: str = ""

    @property
    def type(self) -> ColumnType:
        """The column's row in the table of types."""
        return column_type(self.type_oid, self.typmod)


@dataclass(frozen=True)
class Relation:
    """One version of a table.

    Attributes:
        relation_id: the table's OID at the source.
        schema: its schema ("pg_catalog" written out).
        table: its name.
        replica_identity: d (default), n (nothing), f (full) or i (index).
        columns: the published columns in the order in which tuples carry them.
    """

    relation_id: int
    schema: str
    table: str
    replica_identity: str
    columns: tuple[Column, ...]

    def __hash__(self) -> int:
        """Of what tells tables apart: a table has few versions, and this is asked a few times a chunk."""
        return hash((self.relation_id, self.table))

    @cached_property
    def kinds(self) -> bytes:
        """Each column's type OID and modifier in a row: the same for tables that can be read as one."""
        numbers = [number for column in self.columns for number in (column.type_oid, column.typmod)]
        return np.array(numbers, np.int64).astype(np.uint32).tobytes()

    @property
    def type_numbers(self) -> npt.NDArray[np.uint64]:
        """Each column's type OID and modifier as one number."""
        return np.frombuffer(self.kinds, dtype=np.uint64)


RelationVersion: TypeAlias = Relation
