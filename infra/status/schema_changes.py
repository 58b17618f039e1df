"""Changes of the tables' columns: past ones with their LSN, and those that the next sync will meet.

Past changes come from the shapes that the lake keeps with each table (docs/schema.md), back to the oldest
kept point.  Pending changes are the differences between the source's catalog and the lake.  Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.infra.copy.tables import published_tables
from slotlake.infra.reports import Report
from slotlake.infra.source.fingerprints import CatalogFingerprint, fingerprints_at
from slotlake.spark.names import postgres_name
from slotlake.spark.tables.settle import past_shapes

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.spark.read.point import ReadPoint
    from slotlake.spark.tables.schema import TableSchema


@dataclass(frozen=True)
class SchemaChange(Report):
    """One change of one table; ``lsn``: the lake has the change from there on, None while it is pending."""

    table: str
    lsn: str | None
    change: str


@dataclass(frozen=True)
class SchemaReport(Report):
    """Pending changes, then past ones, the newest first."""

    pipeline: str
    pending: list[SchemaChange] = field(default_factory=list)
    past: list[SchemaChange] = field(default_factory=list)


class _Column(NamedTuple):
    """A column in a comparison of two shapes; ``identity``: its number, or its name if that is unknown."""

    identity: int | str
    name: str
    type: tuple[int, int]
    type_name: str


def schema_changes(pipeline: OpenPipeline) -> SchemaReport:
    """Compare lake and source, and read the lake's past shapes.

    Raises:
        LakeError: the pipeline has no lake yet.
        SourceError: the source cannot be reached.
    """
    from slotlake.spark.read.point import ReadPoint

    pipeline.position()  # raises a clear error if there is no lake yet
    point = ReadPoint.latest(pipeline.lake)
    past = [change for table in point.tables() for change in _past(point, table)]
    return SchemaReport(pipeline.name, _pending(pipeline, point), past[::-1])


def _past(point: ReadPoint, table: TableSchema) -> Iterable[SchemaChange]:
    shapes = past_shapes(point.pinned[point.find(table.source_name)].metadata)
    for (_, before), (lsn, after) in pairwise(shapes):
        for change in _differences(_lake_columns(before), _lake_columns(after)):
            yield SchemaChange(table.source_name, lsn, change)


def _pending(pipeline: OpenPipeline, point: ReadPoint) -> list[SchemaChange]:
    published = {(table.schema, table.table): table for table in published_tables(pipeline, to_read=False)}
    followed = {(table.schema, table.table): table for table in point.followed()}
    fingerprints = fingerprints_at(pipeline.source, [table.relation_id for table in published.values()], None)
    changes = []
    for name, table in followed.items():
        now = published.get(name)
        fingerprint = None if now is None else fingerprints.get(now.relation_id)
        numbers = {} if fingerprint is None else fingerprint.numbers
        texts = _table_changes(table, now, numbers)
        changes += [SchemaChange(table.source_name, None, text) for text in texts]
    changes += [
        SchemaChange(each.source_name, None, f"is set aside: {each.what}") for each in point.aside.values()
    ]
    new_tables = [postgres_name(*name) for name in sorted(published.keys() - followed.keys())]
    return changes + [
        SchemaChange(name, None, f"is published: {text}") for name, text in _joining(pipeline, new_tables)
    ]


def _joining(pipeline: OpenPipeline, new_tables: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each published table that the lake does not have, and what the syncs do with it."""
    from slotlake.infra.sync.joining_tables import JoiningTables

    copied_ranges = JoiningTables(pipeline).progress_by_table()
    for name in new_tables:
        if pipeline.file.new_tables != "copy":
            yield name, "the lake does not take it (new_tables)"
        elif name in copied_ranges:
            yield name, f"{copied_ranges[name]} are copied, the next syncs copy the rest"
        else:
            yield name, "the next sync copies it; a large table takes several syncs"


def _table_changes(table: TableSchema, now: SourceTable | None, numbers: dict[str, int]) -> list[str]:
    """Compare a table of the lake with the source.

    Args:
        now: the source's; None if it is not published.
        numbers: the numbers of the source's columns by name; empty if unknown.
    """
    if now is None:
        return ["is not published any more: the lake's table stays as it is"]
    fingerprint = CatalogFingerprint.from_json(table.fingerprint)
    if fingerprint is not None and fingerprint.relation_id != now.relation_id:
        return ["was dropped and created again: the next sync copies it again"]
    has_numbers = all(column.number for column in table.columns)
    columns = [
        _Column(
            numbers.get(column.name, column.name) if has_numbers else column.name,
            column.name,
            (column.type_oid, column.typmod),
            column.type_name,
        )
        for column in now.columns
    ]
    return _differences(_lake_columns(table), columns)


def _lake_columns(table: TableSchema) -> list[_Column]:
    has_numbers = all(column.number for column in table.columns)
    return [
        _Column(c.number if has_numbers else c.name, c.name, (c.type_oid, c.typmod), c.type_name)
        for c in table.columns
        if not c.dropped
    ]


def _differences(before: Sequence[_Column], after: Sequence[_Column]) -> list[str]:
    old = {column.identity: column for column in before}
    new = {column.identity: column for column in after}
    changes = [f"column {old[identity].name} was dropped" for identity in old.keys() - new.keys()]
    for identity, column in new.items():
        changes += _column_changes(old.get(identity), column)
    return changes


def _column_changes(before: _Column | None, after: _Column) -> list[str]:
    if before is None:
        return [f"column {after.name} ({after.type_name}) was added"]
    changes = []
    if before.name != after.name:
        changes.append(f"column {before.name} was renamed to {after.name}")
    if before.type != after.type:
        types = f"from {before.type_name} to {after.type_name}"
        types = "in length or precision" if before.type[0] == after.type[0] else types
        changes.append(f"column {after.name} changed its type {types}")
    return changes
