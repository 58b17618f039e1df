"""Make a new slot, and bring to the lake what differs from the source there, as one batch like any other.

The order is: note that it was begun, drop the old slot, make the new one with its snapshot, compare, write
the batch (and copies in its sidecar), apply, publish, remove the note.  Invariant: the lake is changed by the
publication alone, all tables at once; what is before it can be done again from the beginning.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slotlake.decoder.assembly.prepared import forget_from
from slotlake.decoder.catalog.membership import Name, memberships
from slotlake.decoder.catalog.publications import create_publication, missing_publications
from slotlake.decoder.changelog.batches import Batch, batch_name, batch_positions, batch_starting_at, batches
from slotlake.decoder.changelog.difference import write_difference
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.failpoints import reach
from slotlake.decoder.server.source import identify, source_session
from slotlake.decoder.slots.slot import ExportedSnapshot, create_slot, drop_slot
from slotlake.decoder.stream.preflight import identity_of
from slotlake.expectations.source_side import snapshot_session
from slotlake.infra.config.identity import note_identity
from slotlake.infra.copy.described import Described
from slotlake.infra.copy.tables import copy_all, published_tables, source_clock
from slotlake.infra.recover.compare import NEW, ROWS, WHOLE, Comparison, TableRepair, compare
from slotlake.infra.schema.evolution import with_schema_changes, write_copies
from slotlake.infra.selection.aside import set_aside
from slotlake.infra.source.fingerprints import CatalogFingerprint
from slotlake.infra.source.history import follow_history
from slotlake.infra.state.notes import DROPPED, MADE
from slotlake.infra.sync.batch_steps import apply_named, confirm_position, publish_named
from slotlake.infra.sync.findings import note_recovery_begun, note_recovery_ended, recovery_note
from slotlake.infra.sync.recopying import give_up_all
from slotlake.spark.names import parse_postgres_name

if TYPE_CHECKING:
    from datetime import datetime

    import psycopg

    from slotlake.decoder.catalog.publications import SourceTable
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.names import LakeName
    from slotlake.spark.tables.schema import TableSchema

SLOT_WAIT_SECONDS = 60.0
_PARTITIONS_OF = """
SELECT c::bigint FROM unnest(%s::oid[]) c
WHERE EXISTS (
    SELECT FROM pg_partition_ancestors(c) above WHERE above.relid <> c AND above.relid = ANY (%s::oid[]))
"""


def renew(
    pipeline: OpenPipeline, broken: Collection[LakeName], *, salvage: bool, progress: Progressing
) -> list[TableRepair]:
    """Bring the lake to a new slot of the same name.

    Args:
        broken: lake tables that cannot be compared.
        salvage: batches that wait in the change log are the source's, and are applied first.

    Returns:
        What each table got.

    Raises:
        SlotError: open transactions delay the new slot; they are named, and the lake is as it was.
    """
    pipeline.session  # noqa: B018  start Spark before the slot: no slot is made if it cannot start
    if salvage and not recovery_note(pipeline.file).exists():
        follow_history(pipeline, pipeline.position())  # what only a failed primary had is not the source's
        _apply_what_waits(pipeline, progress)
    _make_missing_publications(pipeline)
    for table in give_up_all(pipeline):  # positions up to which its changes are noted may come again
        progress(f"copy {table}: given up, the pipeline is recovered", 0)
    with _noted_as_begun(pipeline.file):
        drop_slot(pipeline.source)
        note_identity(
            pipeline.file, pipeline.lake
        )  # before the slot is made: a run that is killed after it must know it
        reach("recover.slot_dropped")
        progress("waiting for a snapshot of the source", 0)
        with create_slot(pipeline.source, wait_seconds=SLOT_WAIT_SECONDS) as snapshot:
            reach("recover.slot_made")
            comparisons = _bring_to_snapshot(pipeline, snapshot, broken, progress)
    confirm_position(pipeline)
    return [each.repair for each in comparisons]


def _bring_to_snapshot(
    pipeline: OpenPipeline, snapshot: ExportedSnapshot, broken: Collection[LakeName], progress: Progressing
) -> list[Comparison]:
    """Bring the lake to the new slot's snapshot."""
    # At once: what commits while the tables are compared comes behind the recovery by time too.
    snapshot_time = source_clock(pipeline.source.dsn)
    start = _position_below(pipeline, snapshot.lsn)
    _forget_what_waits(pipeline.file, start)
    note_recovery_begun(pipeline.file, batch_name(start, snapshot.lsn))
    batch, comparisons = _difference(pipeline, (start, snapshot_time), snapshot, broken, progress)
    reach("recover.batch_written")
    write_copies(pipeline, batch, snapshot, _whole_copies(comparisons), progress)
    _reshape(pipeline, snapshot, comparisons)
    progress("apply", 0)
    apply_named(pipeline, batch.name, judged=True)
    progress("publish", 0)
    publish_named(pipeline, batch.name)
    reach("recover.published")
    recovery_note(pipeline.file).remove()
    DROPPED.of(pipeline.file.state_dir).remove()  # whoever recovers what was dropped wants it to go on
    _copy_new_tables(pipeline, comparisons, snapshot, progress)
    return comparisons


def _whole_copies(comparisons: Sequence[Comparison]) -> dict[SourceTable, str]:
    """The tables that are copied whole, and why."""
    return {
        each.source: each.repair.why
        for each in comparisons
        if each.source is not None and each.repair.how == WHOLE
    }


def _copy_new_tables(
    pipeline: OpenPipeline,
    comparisons: Sequence[Comparison],
    snapshot: ExportedSnapshot,
    progress: Progressing,
) -> None:
    """Copy tables that the lake lacks, if the pipeline file wants them."""
    tables = [each.source for each in comparisons if each.source is not None and each.repair.how == NEW]
    if tables and pipeline.file.new_tables == "copy":
        for error in copy_all(pipeline, tables, snapshot, progress).errors.values():
            set_aside(pipeline, error)


@contextmanager
def _noted_as_begun(file: PipelineFile) -> Iterator[None]:
    """Note, until the end of the block, that this process has begun a recovery."""
    note_recovery_begun(file, None)
    try:
        yield
    finally:
        note_recovery_ended(file)


def _position_below(pipeline: OpenPipeline, lsn: int) -> int:
    """The lake's position, rewound below the new slot's if the source counts from lower LSNs again."""
    from slotlake.spark.publish.rewind import rewind_position

    position = pipeline.position()
    if position < lsn:
        return position
    rewind_position(pipeline.lake, pipeline.name, lsn - 1)
    reach("recover.lowered")
    return lsn - 1


def _apply_what_waits(pipeline: OpenPipeline, progress: Progressing) -> None:
    """Apply batches that were pulled before the slot was lost; stop at one that cannot be used."""
    while True:
        try:
            batch = batch_starting_at(pipeline.file.changelog_dir, pipeline.position())
            if batch is None or batch.end_lsn <= batch.start_lsn:
                return
            batch.verify()
            with_schema_changes(pipeline, batch, None, progress)
        except SlotlakeError:
            return
        apply_named(pipeline, batch.name)
        publish_named(pipeline, batch.name)


def _forget_what_waits(file: PipelineFile, position: int) -> None:
    """Remove batches of the old slot beyond the lake's position, and transactions that it left prepared."""
    from slotlake.spark.publish import sidecar

    for path in batches(file.changelog_dir):
        ends = batch_positions(path.name)
        if ends is not None and ends[1] > position:
            shutil.rmtree(sidecar.place(path), ignore_errors=True)
            shutil.rmtree(path, ignore_errors=True)
    forget_from(file.changelog_dir, 0)


def _make_missing_publications(pipeline: OpenPipeline) -> None:
    """Make publications that are missing, and note them as made by us, so that `drop` removes them."""
    source, note = pipeline.source, MADE.of(pipeline.file.state_dir)
    with source_session(source.dsn, "making the publication") as connection:
        missing = missing_publications(connection, source.publications)
        tables = _tables_to_publish(pipeline, connection) if missing else []
        for name in missing:
            create_publication(
                connection, name, tables, through_root=pipeline.file.source.partitions == "root"
            )
    if missing:
        content = note.mapping() or {"slot": source.slot, "publications": []}
        note.write({**content, "publications": sorted({*content["publications"], *missing})})


def _tables_to_publish(pipeline: OpenPipeline, connection: psycopg.Connection[Any]) -> list[Name]:
    """Return the tables that the file names, and those that the lake follows and nothing else publishes.

    If the file names none, return none: the publication may have had all tables, or columns of its own.
    """
    named = [parse_postgres_name(name) for name in pipeline.file.tables]
    if not named:
        return []
    at_source = memberships(connection, pipeline.source.publications, {*named, *_followed(pipeline.lake)})
    followed = {
        name: each.relation_id
        for name, each in at_source.items()
        if name not in named and not each.obstacle and not each.is_published
    }
    above = [each.relation_id for name, each in at_source.items() if name in named]
    rows = connection.execute(_PARTITIONS_OF, (list(followed.values()), [*above, *followed.values()]))
    below = {int(oid) for (oid,) in rows.fetchall()}
    return [*named, *(name for name, oid in followed.items() if oid not in below)]


def _followed(lake: LakeSettings) -> set[Name]:
    """Return the tables that have not left the publications; those that are set aside too."""
    from slotlake.spark.read.point import ReadPoint

    point = ReadPoint.latest(lake)
    fingerprints = {(t.schema, t.table): CatalogFingerprint.from_json(t.fingerprint) for t in point.tables()}
    left = {name for name, each in fingerprints.items() if each is not None and each.has_left}
    return {*fingerprints, *point.aside} - left


def _difference(
    pipeline: OpenPipeline,
    start: tuple[int, datetime],
    snapshot: ExportedSnapshot,
    broken: Collection[LakeName],
    progress: Progressing,
) -> tuple[Batch, list[Comparison]]:
    """Compare under the slot's snapshot, and write what is to be changed by rows.

    Args:
        position: the position that the batch starts from, and when the snapshot was made.
    """
    from slotlake.spark.read.point import ReadPoint

    source, point = pipeline.source, pipeline.for_comparing(ReadPoint.latest(pipeline.lake))
    position, snapshot_time = start
    server = identify(source.dsn)
    with snapshot_session(source.dsn, snapshot.snapshot) as connection:
        comparisons = compare(connection, point, published_tables(pipeline), broken, progress)
        rows = [
            (each.source, each.changes(connection, point))
            for each in comparisons
            if each.source is not None and each.repair.how == ROWS
        ]
        batch = write_difference(
            pipeline.file.changelog_dir,
            identity_of(server, pipeline.name, source),
            (position, snapshot.lsn),
            snapshot_time,
            rows,
        )
    return batch, comparisons


def _reshape(pipeline: OpenPipeline, snapshot: ExportedSnapshot, comparisons: Sequence[Comparison]) -> None:
    """Write the catalog fingerprint at the snapshot to compared tables, which are exact there."""
    from slotlake.spark.publish.shape import write_schemas

    mirrors = {
        each.source: each.mirror
        for each in comparisons
        if each.source is not None and each.mirror is not None and each.repair.how != WHOLE
    }
    schemas = Described.at(pipeline, snapshot, list(mirrors)).schemas  # the next sync meets the others
    shapes = {table: _shape_of_compared(mirrors[table], schema) for table, schema in schemas.items()}
    changed = [shape for table, shape in shapes.items() if shape != mirrors[table]]
    if changed:
        write_schemas(pipeline.lake, changed)


def _shape_of_compared(mirror: TableSchema, schema: TableSchema) -> TableSchema:
    """The shape of a mirror that equals its source table.

    Args:
        mirror: the table as the lake has it.
        schema: the lake table that a copy would make.
    """
    numbers = {column.name: column.number for column in schema.columns}
    columns = tuple(
        c if c.dropped else replace(c, number=numbers[c.name], unfilled=False, lost=False)
        for c in mirror.columns
    )
    before, after = (
        CatalogFingerprint.from_json(mirror.fingerprint),
        CatalogFingerprint.from_json(schema.fingerprint),
    )
    fingerprint = schema.fingerprint
    if before is not None and after is not None:
        fingerprint = replace(after, why=before.why).to_json()
    return replace(
        mirror,
        relation_id=schema.relation_id,
        replica_identity=schema.replica_identity,
        columns=columns,
        partitions=schema.partitions,
        fingerprint=fingerprint,
    )
