"""What a batch was found to meet: tables that changed, and what is done about each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.infra.schema.rules import Found, Types
from slotlake.infra.source.fingerprints import Mark

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.spark.publish.sidecar import Annex
    from slotlake.spark.tables.schema import TableSchema

Name = tuple[str, str]


@dataclass(frozen=True)
class Findings:
    """What a batch meets.

    Attributes:
        copies: tables that must be copied again, and why.
        numbers: relation version → column name → attribute number.
        marks: table as PostgreSQL writes it → what it agrees with after the batch.
        constants: table → new column's attribute number → what rows from before hold.
        moved: tables whose rows only moved, with what they agree with now; tables that left, noted as such.
        left: tables that are not published any more, and whose last changes the lake cannot take.
        published_anew: of the tables to be copied, those whose place in the publications changed.
        same: of the tables to be copied, those that need not be if no value of theirs changed.
        promoted: table → attribute number → wider type that the column gets with the batch.
    """

    copies: Mapping[SourceTable, str] = field(default_factory=dict)
    numbers: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    moved: Sequence[TableSchema] = ()
    left: frozenset[str] = frozenset()
    published_anew: frozenset[Name] = frozenset()
    same: Mapping[SourceTable, Found] = field(default_factory=dict)
    promoted: Mapping[SourceTable, Types] = field(default_factory=dict)


def annex_of(file: PipelineFile, found: Findings) -> Annex:
    """What belongs to the batch, but the copies."""
    from slotlake.spark.names import postgres_name
    from slotlake.spark.publish.sidecar import Annex

    names = [*found.marks, *(postgres_name(t.schema, t.table) for t in found.copies)]
    drops = frozenset(name for name in names if drops_columns(file, name))
    promoted = {postgres_name(t.schema, t.table): types for t, types in found.promoted.items()}
    return Annex(
        found.numbers,
        found.marks,
        drops=drops,
        left=found.left,
        constants=found.constants,
        promoted=promoted,
    )


def drops_columns(file: PipelineFile, table: str) -> bool:
    """Do columns that are gone leave the lake too? ``table``: as PostgreSQL writes it."""
    from slotlake.spark.names import parse_postgres_name, postgres_name

    own = {postgres_name(*parse_postgres_name(n)): s.on_drop for n, s in file.tables.items()}
    return (own.get(table) or file.on_drop) == "drop"


def explained(schema: TableSchema, why: str) -> TableSchema:
    """A shape that says when and why its table was copied again."""
    mark = Mark.from_json(schema.mark)
    return schema if mark is None else replace(schema, mark=replace(mark, why=why).to_json())
