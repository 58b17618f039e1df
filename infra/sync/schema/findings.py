"""What a batch meets: tables that changed, and what is done about each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.infra.config.table_names import by_source_name
from slotlake.infra.source.fingerprints import CatalogFingerprint
from slotlake.infra.sync.schema.rules import Types, Verdict

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.spark.publish.sidecar import BatchSidecar
    from slotlake.spark.tables.schema import TableSchema

Name = tuple[str, str]


@dataclass(frozen=True)
class Findings:
    """What a batch meets.

    Attributes:
        copies: tables that must be copied again, and why.
        numbers: relation version → column name → attribute number.
        fingerprints: table as PostgreSQL writes it → what it agrees with after the batch.
        constants: table → new column's attribute number → what rows from before hold.
        new_shapes: shapes to write to the lake at once, of tables whose rows only moved, with the catalog's
            fingerprint of now, and of tables that left the publications.
        unpublished: tables that are not published any more, and whose last changes the lake cannot take.
        republished: of the tables to be copied, those whose place in the publications changed.
        alternatives: of the tables to be copied, those that need not be if no value of theirs changed.
        promotions: table → attribute number → wider type that the column gets with the batch.
    """

    copies: Mapping[SourceTable, str] = field(default_factory=dict)
    numbers: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    new_shapes: Sequence[TableSchema] = ()
    unpublished: frozenset[str] = frozenset()
    republished: frozenset[Name] = frozenset()
    alternatives: Mapping[SourceTable, Verdict] = field(default_factory=dict)
    promotions: Mapping[SourceTable, Types] = field(default_factory=dict)


def sidecar_of(file: PipelineFile, findings: Findings) -> BatchSidecar:
    """The contents of a batch's sidecar, without the copies."""
    from slotlake.spark.names import postgres_name
    from slotlake.spark.publish.sidecar import BatchSidecar

    names = [*findings.fingerprints, *(postgres_name(t.schema, t.table) for t in findings.copies)]
    drops = frozenset(name for name in names if drops_columns(file, name))
    promoted = {postgres_name(t.schema, t.table): types for t, types in findings.promotions.items()}
    return BatchSidecar(
        findings.numbers,
        findings.fingerprints,
        drops=drops,
        passed_over=findings.unpublished,
        constants=findings.constants,
        promoted=promoted,
    )


def drops_columns(file: PipelineFile, table: str) -> bool:
    """Return whether columns that were dropped at the source leave the lake, too.

    Args:
        file: the pipeline file (`on_drop`).
        table: as PostgreSQL writes it.
    """
    own = by_source_name({name: section.on_drop for name, section in file.tables.items()})
    return (own.get(table) or file.on_drop) == "drop"


def with_copy_reason(schema: TableSchema, reason: str) -> TableSchema:
    """The shape of a table, with when and why it was copied again."""
    fingerprint = CatalogFingerprint.from_json(schema.fingerprint)
    return (
        schema
        if fingerprint is None
        else replace(schema, fingerprint=replace(fingerprint, why=reason).to_json())
    )
