"""What the lake asks of a table and of a batch, in one place.

A table is described by a relation of a batch's manifest (:class:`decoder.changelog.batches.BatchRelation`) or
by what was found in the source's catalog (:class:`decoder.copy.table.SourceTable`); both have these
attributes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa


class ColumnShape(Protocol):
    """A column of a relation version, or of a source table."""

    @property
    def name(self) -> str: ...
    @property
    def type_oid(self) -> int: ...
    @property
    def typmod(self) -> int: ...
    @property
    def type_name(self) -> str: ...


class TableShape(Protocol):
    """A relation version of a batch's manifest, or a table found in the source."""

    @property
    def relation_id(self) -> int: ...
    @property
    def schema(self) -> str: ...
    @property
    def table(self) -> str: ...
    @property
    def replica_identity(self) -> str: ...
    @property
    def key(self) -> Sequence[str]: ...
    @property
    def columns(self) -> Sequence[ColumnShape]: ...


class BatchColumn(ColumnShape, Protocol):
    """A column in a batch's manifest."""

    @property
    def in_key(self) -> bool: ...


class BatchRelation(TableShape, Protocol):
    """A relation version in a batch's manifest; ``rows`` is how many changes the batch has of it."""

    @property
    def ordinal(self) -> int: ...
    @property
    def columns(self) -> Sequence[BatchColumn]: ...
    @property
    def rows(self) -> int: ...


class ChangeBatch(Protocol):
    """A batch of the change log, as :class:`decoder.changelog.batches.Batch` has it."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def start_lsn(self) -> int: ...
    @property
    def end_lsn(self) -> int: ...
    @property
    def manifest(self) -> Mapping[str, Any]: ...
    @property
    def relations(self) -> Sequence[BatchRelation]: ...
    def relation_table(self, relation: Any, /) -> pa.Table: ...
    def transaction_table(self) -> pa.Table: ...
