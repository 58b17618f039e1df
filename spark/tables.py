"""A lake table's shape: which source column became which, kept in the table property `slotlake.schema`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LakeColumn:
    """A source column and its lake column. ``exact``: the lake has a companion for its exact text."""

    name: str
    lake_name: str
    type_oid: int
    typmod: int
    type_name: str
    exact: bool = False


@dataclass(frozen=True)
class TableSchema:
    """A source table as the lake keeps it."""

    relation_id: int
    schema: str
    table: str
    replica_identity: str
    key: tuple[str, ...]
    columns: tuple[LakeColumn, ...]

    @property
    def source_name(self) -> str:
        """As PostgreSQL writes it: ``public.orders``, ``public."Odd Name"``."""
        raise NotImplementedError

    @classmethod
    def of(cls, relation: object) -> TableSchema:
        """From a relation of a batch's manifest, or a :class:`decoder.copy.SourceTable`."""
        raise NotImplementedError
