"""What became of the tables' columns: past changes, at which LSN, and those that the next sync will meet.

The past is what the lake keeps with each table (the shapes it had, docs/schema.md), as far back as points are
kept.  Pending is what the source's catalog says now and the lake does not yet.  Changes nothing.
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
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.spark.read.point import ReadPoint
    from slotlake.spark.tables.schema import TableSchema


@dataclass(frozen=True)
class SchemaChange(Report):
    """One change of one table; ``lsn``: the lake has it from there on, None while it is pending."""

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
    """A column as two shapes are compared by: its number, or its name where that is not known."""

    identity: int | str
    name: str
    type: tuple[int, int]
    type_name: str


def schema_changes(pipeline: OpenPipeline) -> SchemaReport:
    """Ask lake and source.

    Raises:
        LakeError: the pipeline has no lake yet.
        SourceError: the source cannot be asked.
    """
    from slotlake.spark.read.point import ReadPoint

    pipeline.position()  # says so if there is none
    cut = ReadPoint.latest(pipeline.lake)
    past = [change for table in cut.tables() for change in _past(cut, table)]
    return SchemaReport(pipeline.name, _pending(pipeline, cut), past[::-1])


def _past(cut: ReadPoint, table: TableSchema) -> Iterable[SchemaChange]:
    shapes = past_shapes(cut.pinned[cut.find(table.source_name)].metadata)
    for (_, before), (lsn, after) in pairwise(shapes):
        for change in _differences(_of_lake(before), _of_lake(after)):
            yield SchemaChange(table.source_name, lsn, change)


def _pending(pipeline: OpenPipeline, cut: ReadPoint) -> list[SchemaChange]:
    found_now = published_tables(pipeline, to_read=False)
    published = {(table.schema, table.table): table for table in found_now}
    held = {(table.schema, table.table): table for table in cut.followed()}
    marks = fingerprints_at(pipeline, [table.relation_id for table in published.values()], None)
    found = []
    for name, table in held.items():
        now = published.get(name)
        if now is None:
            changes = ["is not published any more: the lake's table stays as it is"]
        else:
            mark = marks.get(now.relation_id)
            changes = _of_one(table, now, {} if mark is None else mark.numbers)
        found += [SchemaChange(table.source_name, None, change) for change in changes]
    found += [
        SchemaChange(each.source_name, None, f"is set aside: {each.what}") for each in cut.aside.values()
    ]
    fresh = [postgres_name(*name) for name in sorted(published.keys() - held.keys())]
    found += [SchemaChange(name, None, f"is published: {how}") for name, how in _joining(pipeline, fresh)]
    return found


def _joining(pipeline: OpenPipeline, fresh: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What becomes of tables that the lake does not have."""
    from slotlake.infra.joining.joining_tables import progress_by_table

    half = progress_by_table(pipeline)
    for name in fresh:
        if pipeline.file.new_tables != "copy":
            yield name, "is left out (new_tables)"
        elif name in half:
            yield name, f"{half[name]} are copied, further syncs copy the rest"
        else:
            yield name, "is copied from the next sync on; a large table takes several"


def _of_one(table: TableSchema, now: SourceTable, numbers: dict[str, int]) -> list[str]:
    mark = CatalogFingerprint.from_json(table.fingerprint)
    if mark is not None and mark.relation_id != now.relation_id:
        return ["was dropped and made again: it is copied again by the next sync"]
    known = all(column.number for column in table.columns)
    columns = [
        _Column(numbers.get(c.name, c.name) if known else c.name, c.name, (c.type_oid, c.typmod), c.type_name)
        for c in now.columns
    ]
    return _differences(_of_lake(table), columns)


def _of_lake(table: TableSchema) -> list[_Column]:
    known = all(column.number for column in table.columns)
    return [
        _Column(c.number if known else c.name, c.name, (c.type_oid, c.typmod), c.type_name)
        for c in table.columns
        if not c.dropped
    ]


def _differences(before: Sequence[_Column], after: Sequence[_Column]) -> list[str]:
    old = {column.identity: column for column in before}
    new = {column.identity: column for column in after}
    changes = [f"column {old[each].name} was dropped" for each in old.keys() - new.keys()]
    for identity, column in new.items():
        known = old.get(identity)
        if known is None:
            changes.append(f"column {column.name} ({column.type_name}) was added")
            continue
        if known.name != column.name:
            changes.append(f"column {known.name} was renamed to {column.name}")
        if known.type != column.type:
            types = f"from {known.type_name} to {column.type_name}"
            types = "in length or precision" if known.type[0] == column.type[0] else types
            changes.append(f"column {column.name} changed its type {types}")
    return changes
