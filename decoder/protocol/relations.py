"""Tables as the replication stream describes them.

A *relation version* is the content of a Relation message: two messages with the same content are the
same version, and any difference (a column added, renamed, retyped, the replica identity changed)
makes a new one.  Values are read only with the version that is valid at their message, never with the live
catalog, which may be newer than the message.
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
        type_name: name in pg_type; for a user type with its schema; for a domain the name of its base type,
            as in the Type message; "" if the stream did not name it.
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
        columns: the published columns, in the order of the values in tuples.
    """

    relation_id: int
    schema: str
    table: str
    replica_identity: str
    columns: tuple[Column, ...]

    def __hash__(self) -> int:
        """Hash id and name only: a table has few versions, and each chunk computes this a few times."""
        return hash((self.relation_id, self.table))

    @cached_property
    def kinds(self) -> bytes:
        """All columns' type OIDs and modifiers: tables that can be read together have the same bytes."""
        numbers = [number for column in self.columns for number in (column.type_oid, column.typmod)]
        return np.array(numbers, np.int64).astype(np.uint32).tobytes()

    @property
    def type_numbers(self) -> npt.NDArray[np.uint64]:
        """Each column's type OID and modifier as one number."""
        return np.frombuffer(self.kinds, dtype=np.uint64)


RelationVersion: TypeAlias = Relation
