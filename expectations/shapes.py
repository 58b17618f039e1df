"""What a reconciliation needs to know of a table, and the names it takes from both sides.

Invariant: both sides hash the same columns in the same order: first the key, then the rest of what
the source publishes, as far as the lake has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa


class SourceColumnShape(Protocol):
    """A published column."""

    @property
    def name(self) -> str: ...
    @property
    def type_oid(self) -> int: ...


class SourceTableShape(Protocol):
    """A published table: its published columns, its key, and which rows are published."""

    @property
    def schema(self) -> str: ...
    @property
    def table(self) -> str: ...
    @property
    def columns(self) -> Sequence[SourceColumnShape]: ...
    @property
    def key(self) -> Sequence[str]: ...
    @property
    def row_filter(self) -> str | None: ...
    @property
    def kind(self) -> str: ...


class LakeColumnShape(Protocol):
    """A lake column, by its source name."""

    @property
    def name(self) -> str: ...
    @property
    def dropped(self) -> bool: ...


class LakeTableShape(Protocol):
    """A lake table, by its source name."""

    @property
    def schema(self) -> str: ...
    @property
    def table(self) -> str: ...
    @property
    def columns(self) -> Sequence[LakeColumnShape]: ...


class LakeReadPoint(Protocol):
    """All lake tables at one position (`spark.read.Cut`)."""

    def tables(self) -> Sequence[LakeTableShape]:
        """The tables there are."""

    def text_batches(self, table: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """A table's rows: string columns of PostgreSQL's text, named by source columns."""


Reading = Callable[[str, Sequence[str]], Iterator[pa.RecordBatch] | None]


def _nothing(table: str, columns: Sequence[str]) -> None:
    """The lake has no such rows of any table."""


@dataclass(frozen=True)
class OtherRows:
    """What the lake has of tables besides the rows that are compared; as `LakeReadPoint.text_batches`.

    Attributes:
        history: the versions that hold; None for a table without a history.
        marked: the rows that the source deleted and the mirror still has; None for one that keeps none.
    """

    history: Reading = _nothing
    marked: Reading = _nothing


@dataclass(frozen=True)
class Compared:
    """A table that both sides have.

    Attributes:
        name: as PostgreSQL writes it, quoted.
        key: names and type OIDs of the key columns; empty for a table without a key.
        values: of the other columns; of a table without a key, all.
        absent: published columns that the lake lacks.
        row_filter: an SQL condition, or None.
        partitioned: published through its root, with the rows of its partitions.
        escaped: both sides hash the escaped bytes in UTF-8 (`expectations.hashing`).
        relation_id: its OID at the source; 0 if that is not known.
    """

    name: str
    key: tuple[tuple[str, int], ...]
    values: tuple[tuple[str, int], ...]
    absent: tuple[str, ...]
    row_filter: str | None
    partitioned: bool = False
    escaped: bool = False
    relation_id: int = 0

    @classmethod
    def of(
        cls, name: str, source: SourceTableShape, lake: LakeTableShape, *, escaped: bool = False
    ) -> Compared:
        """Pair the columns by name.

        Args:
            escaped: both sides hash the escaped bytes in UTF-8.
        """
        lake_columns = {column.name for column in lake.columns if not column.dropped}
        oids = {column.name: column.type_oid for column in source.columns}
        key = tuple(source.key) if (lake_columns & oids.keys()).issuperset(source.key) else ()
        values = tuple((n, oid) for n, oid in oids.items() if n in lake_columns and n not in key)
        absent = tuple(n for n in oids if n not in lake_columns)
        named = tuple((n, oids[n]) for n in key)
        oid = int(getattr(source, "relation_id", 0))
        return cls(name, named, values, absent, source.row_filter, source.kind == "p", escaped, oid)

    @property
    def named(self) -> tuple[tuple[str, int], ...]:
        """The columns by which a differing row is named in the report."""
        return self.key or self.values

    @property
    def column_names(self) -> list[str]:
        """All compared columns."""
        return [name for name, _ in (*self.key, *self.values)]
