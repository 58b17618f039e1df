"""Applies a batch: folds each touched table and merges it into the table's branch ``stage``.

The first step sets ``stage`` back to ``main`` for every touched table, so whatever an earlier attempt
left is gone.  A table's last statement, and only that, puts the batch's name into the snapshot it
makes: publishing accepts a table by that name, so half a table is never published.

Small tables are taken several at a time, large ones one after the other (spark/apply/together.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from slotlake.decoder.errors import ApplyError, concerning
from slotlake.decoder.failpoints import reach
from slotlake.spark import exchange
from slotlake.spark.apply import together as apply_together
from slotlake.spark.apply.changes import TableChanges, table_changes
from slotlake.spark.apply.together import Engine, Job, Opened
from slotlake.spark.catalog.base import load_all
from slotlake.spark.catalog.open import Catalog, open_catalog
from slotlake.spark.copy.replace import stage_copy
from slotlake.spark.direct.change_log import stage_changes_directly
from slotlake.spark.direct.history import stage_versions_directly
from slotlake.spark.direct.stage import stage_directly, stage_slices_directly
from slotlake.spark.fold.conflicts import Choices, Conflicts, OnConflict
from slotlake.spark.history.marked import stage_marked
from slotlake.spark.history.modes import MirrorChanges, stage_derived_changes
from slotlake.spark.history.reserved_columns import rename_reserved_columns
from slotlake.spark.java import JavaEndedError
from slotlake.spark.lake import LakeSettings
from slotlake.spark.maintenance.unreadable import damage_behind
from slotlake.spark.merge.failures import explained
from slotlake.spark.merge.run import Work, stage_shape
from slotlake.spark.merge.schema_changes import Constant, constants
from slotlake.spark.merge.slices import stage_slices
from slotlake.spark.merge.stage import Staged, stage
from slotlake.spark.names import LakeName, postgres_name
from slotlake.spark.publish.absent import refuse_absent
from slotlake.spark.publish.commits import Point, pins_in
from slotlake.spark.publish.derived_tables import load_derived_tables, with_derived_names
from slotlake.spark.publish.publication import (
    folded_rows_parts,
    is_pending,
    point_of,
    remove_folded_rows,
    touched_tables,
)
from slotlake.spark.publish.sidecar import NOTHING, BatchSidecar, TableCopy
from slotlake.spark.publish.swap import Loaded, load, require_owner, reset_stage, tables_behind
from slotlake.spark.session_errors import StageConflictError
from slotlake.spark.storage.base import PassingStoreError
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.schema import TableSchema, schema_of, unbounded
from slotlake.spark.tables.settle import settle
from slotlake.spark.tables.shapes import BatchRelation, ChangeBatch

# A killed run may have left a statement in a Spark server that is still at work on the same branch.
_ATTEMPTS = 3
_APPLY_ALL = Choices()


@dataclass(frozen=True)
class TableApplied:
    """What applying did to one lake table. All counts are rows.

    Attributes:
        changes: row changes of this table in the batch.
        folded: keys touched (rows inserted, for a table without a key).
        conflicts: changes that met a row that should not, or lacked one that should, be there.
        derived: the names of its derived tables, which took in the same.
    """

    source_table: str
    changes: int
    folded: int
    conflicts: Conflicts = field(default_factory=Conflicts)
    derived: tuple[str, ...] = ()


@dataclass(frozen=True)
class Applied:
    """A batch staged in the lake, or found published.

    Attributes:
        tables: lake table ("namespace.table") → what was done to it.
        skipped: source tables with changes that the lake does not have: a copy of one of them is made
            at a later position, and holds these changes.
    """

    batch: str
    already_published: bool
    tables: Mapping[str, TableApplied] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()


def apply_batch(
    engine: Engine,
    lake: LakeSettings,
    batch: ChangeBatch,
    pipeline: str,
    choices: Choices = _APPLY_ALL,
    sidecar: BatchSidecar = NOTHING,
    *,
    together: bool = True,
) -> Applied:
    """Stage a change log batch; readers see nothing of it until it is published.

    Idempotent: staging again starts from ``main`` and gives the same; a published batch is left alone.

    Args:
        engine: Spark, which is opened only if a table needs it.
        batch: a :class:`decoder.changelog.batches.Batch`.
        choices: what to do with changes that meet what they should not.
        together: several small tables may be staged at the same time.

    Raises:
        JavaEndedError: the Java of this process has ended; with the table that was staged.
        ApplyError: the batch does not start at the lake's position, or holds a change that the lake
            cannot take (a column renamed or retyped, …) or may not (``on_conflict: fail``), named with
            the way out.
        LakeError: catalog or warehouse cannot be reached.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return _apply_once(engine, lake, batch, pipeline, choices, sidecar, together)
        except (StageConflictError, PassingStoreError):
            continue
    return _apply_once(engine, lake, batch, pipeline, choices, sidecar, together)


def _apply_once(
    engine: Engine,
    lake: LakeSettings,
    batch: ChangeBatch,
    pipeline: str,
    choices: Choices,
    sidecar: BatchSidecar,
    together: bool,
) -> Applied:
    point = point_of(batch, pipeline)
    changed = touched_tables(lake, batch, sidecar)
    with open_catalog(lake) as catalog:
        if not is_pending(catalog, point, batch.start_lsn):
            return Applied(batch.name, already_published=True)
        tables = _targets(catalog, changed, pipeline, point, batch.start_lsn)
        behind = [each for table in tables for each in table.behind]
        reset_stage(catalog, behind)
    remove_folded_rows(lake, point)
    jobs: dict[str, Job[TableApplied]] = {}
    for number, table in enumerate(tables):
        directory = exchange.exchange_directory(lake, *folded_rows_parts(point), str(number))
        work = Work(engine.session, lake, point, table.mirror, directory)
        jobs[str(table.name)] = _job(
            work, table, (batch, changed[table.name], choices, sidecar), first=not number
        )
    if not together:
        jobs = {name: replace(job, small=False) for name, job in jobs.items()}
    try:
        applied = apply_together.run_jobs(engine, lake, jobs)
    except ApplyError:
        _clear_stage(lake, [table.name for table in behind])
        raise
    skipped = [relations[-1] for name, relations in changed.items() if relations and str(name) not in applied]
    return Applied(batch.name, False, applied, tuple(postgres_name(r.schema, r.table) for r in skipped))


JobInputs = tuple[ChangeBatch, Sequence[BatchRelation], Choices, BatchSidecar]


def _job(work: Work, table: _Target, inputs: JobInputs, *, first: bool) -> Job[TableApplied]:
    batch, relations, _, sidecar = inputs
    copy = next((c for c in sidecar.copies if c.schema.lake_name(work.lake.namespace) == table.name), None)

    def run(opened: Opened) -> TableApplied:
        if not first:
            reach("apply.between_tables")
        own = replace(work, opened=opened)
        schema = schema_of(table.mirror.metadata, table.name)
        source = schema.schema, schema.table
        try:
            with _java_ended_at(schema), explained(table.mirror), concerning(*source):
                done = _apply_table(own, table, *inputs) if copy is None else _apply_copy(own, table, copy)
        except Exception as error:
            damaged = damage_behind(error, [table.mirror, *table.derived.values()], source)
            if damaged is None:
                raise
            raise damaged from error
        return replace(done, derived=tuple(str(each.name) for each in table.derived.values()))

    small = copy is None and apply_together.is_small(batch, relations)
    return Job(run, small, alone=_may_have_floats(table.mirror, relations))


def _may_have_floats(mirror: Loaded, relations: Iterable[BatchRelation]) -> bool:
    """Return whether a table has floats, or the batch brings columns that may be some."""
    schema = schema_of(mirror.metadata, mirror.name)
    known = {(column.name, column.type_oid) for column in schema.columns}
    return bool(unbounded(schema.columns)) or any(
        (column.name, column.type_oid) not in known for each in relations for column in each.columns
    )


@contextmanager
def _java_ended_at(schema: TableSchema) -> Iterator[None]:
    try:
        yield
    except JavaEndedError as error:
        error.of(schema.schema, schema.table)
        raise


@dataclass(frozen=True)
class _Target:
    """A mirror, and what is kept beside it; ``behind``: those of them that the batch has not reached."""

    mirror: Loaded
    derived: Mapping[str, Loaded]
    behind: Sequence[Loaded]

    @property
    def name(self) -> LakeName:
        return self.mirror.name


def _targets(
    catalog: Catalog, names: Collection[LakeName], pipeline: str, point: Point, start: int
) -> list[_Target]:
    """The tables that a batch has something for."""
    pointers = catalog.pointers_of(with_derived_names(names))
    refuse_absent(catalog, names, pointers)
    catalog_metadata.read_ahead(pointers.values(), whole=True)
    targets = []
    for name in sorted(names):
        if name not in pointers:
            continue
        mirror = load(pointers, name)
        derived: Mapping[str, Loaded] = load_derived_tables(pointers, name)
        for table in (mirror, *derived.values()):
            require_owner(table, pipeline)
        mirror, derived = rename_reserved_columns(catalog, mirror, derived)
        _require_no_gap(catalog, mirror, derived.values())
        behind = tables_behind((mirror, *derived.values()), point, start)
        targets += [_Target(mirror, derived, behind)] if behind else []
    return targets


def _require_no_gap(catalog: Catalog, mirror: Loaded, derived: Iterable[Loaded]) -> None:
    """Require that derived tables were there at every point that changed their mirror.

    One that was dropped, and registered again by somebody, lacks what was published meanwhile.  The newest
    point names every table that was there, so it does not name such a one.

    Raises:
        ApplyError: one lacks points; the error is the mirror's.
    """
    reached = catalog_metadata.newest_position(mirror.metadata) or 0
    behind = [table for table in derived if (catalog_metadata.newest_position(table.metadata) or 0) < reached]
    if not behind:
        return
    pins = pins_in(catalog)
    for table in behind:
        if mirror.name in pins and table.name not in pins:
            schema = schema_of(mirror.metadata, mirror.name)
            raise ApplyError(
                "a derived table that was dropped is in the catalog again, without the changes of meanwhile",
                where=f"table {table.name}",
                way_out="the next sync, or `slotlake resume`, copies its mirror again, and the table goes on "
                "with that copy; or drop it and remove its files: then it begins again",
            ).of(schema.schema, schema.table)


def _clear_stage(lake: LakeSettings, names: Sequence[LakeName]) -> None:
    """Leave nothing of a refused batch staged."""
    with open_catalog(lake) as catalog:
        reset_stage(catalog, load_all(catalog, names).values())


def _apply_copy(work: Work, target: _Target, copy: TableCopy) -> TableApplied:
    """What a copy at the batch's end holds has the batch's changes already."""
    behind = {mode: table for mode, table in target.derived.items() if table in target.behind}
    schema = stage_copy(work, copy, behind)
    return TableApplied(source_table=schema.source_name, changes=copy.rows, folded=copy.rows)


def _apply_table(
    work: Work,
    target: _Target,
    batch: ChangeBatch,
    relations: Sequence[BatchRelation],
    choices: Choices,
    sidecar: BatchSidecar,
) -> TableApplied:
    schema = schema_of(work.table.metadata, work.table.name)
    changes = table_changes(batch, relations, schema, sidecar, work.lake.slice_bytes)
    schema = changes.schema
    choice = choices.of(schema.schema, schema.table)
    staged = Staged(0, Conflicts())
    if target.mirror in target.behind and not relations:
        stage_shape(work, schema)
    elif target.mirror in target.behind:
        staged = _stage_changes(work, changes, choice, constants(schema, sidecar))
    for mode, table in target.derived.items():
        if table in target.behind:
            reach("apply.between_modes")
            names = settle(schema, schema_of(work.table.metadata, work.table.name)).names
            mirror = MirrorChanges(schema, names, changes.slices, changes.sliced)
            _stage_derived(replace(work, table=table), mode, mirror, choice)
    return TableApplied(
        source_table=schema.source_name,
        changes=sum(relation.rows for relation in relations),
        folded=staged.folded,
        conflicts=staged.conflicts,
    )


def _stage_derived(work: Work, mode: str, changes: MirrorChanges, choice: OnConflict) -> None:
    if mode == "append":
        staged = stage_changes_directly(work, changes)
    else:
        staged = stage_versions_directly(work, changes, choice)
    if not staged:
        stage_derived_changes(work, mode, changes, choice)


def _stage_changes(
    work: Work,
    changes: TableChanges,
    choice: OnConflict,
    constants: Sequence[Constant],
) -> Staged:
    schema, filled = changes.schema, bool(constants)
    if schema.soft_deletes:
        return stage_marked(work, changes, choice, constants)
    if changes.sliced:
        folds = changes.folds()
        staged = stage_slices_directly(work, schema, folds, choice, filled=filled)
        return staged or stage_slices(work, schema, changes.folds(), choice, constants)
    parts = list(changes.folds())
    if len(parts) > 1:
        staged = stage_slices_directly(work, schema, parts, choice, filled=filled)
    else:
        staged = stage_directly(work, schema, parts[0], choice, filled=filled)
    return staged or stage(work, schema, parts, choice, constants)
