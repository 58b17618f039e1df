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
from slotlake.infra.copy.tables import TableCopies, published_tables, source_clock
from slotlake.infra.recover.compare import NEW, ROWS, WHOLE, Comparison, TableRepair, compare
from slotlake.infra.selection.aside import SettingAside
from slotlake.infra.selection.file_tables import newly_named
from slotlake.infra.selection.named import named_exactly
from slotlake.infra.source.fingerprints import CatalogFingerprint
from slotlake.infra.source.history import follow_history
from slotlake.infra.state.notes import DROPPED, MADE, REMOVED
from slotlake.infra.sync.batch_steps import BatchSteps
from slotlake.infra.sync.findings import note_recovery_begun, note_recovery_ended, recovery_note
from slotlake.infra.sync.recopying import give_up_all
from slotlake.infra.sync.schema.evolution import SchemaChanges
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


class Renewal:
    """A new slot, and what differs between lake and source there, as one batch."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline = pipeline
        self._file, self._lake, self._source = pipeline.file, pipeline.lake, pipeline.source

    def renew(
        self, broken: Collection[LakeName], *, salvage: bool, progress: Progressing
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
        self._pipeline.session  # noqa: B018  start Spark before the slot: no slot is made if it cannot start
        if salvage and not recovery_note(self._file).exists():
            follow_history(
                self._pipeline, self._pipeline.position()
            )  # what only a failed primary had is not the source's
            self._apply_what_waits(progress)
        self._make_missing_publications()
        for table in give_up_all(
            self._pipeline
        ):  # positions up to which its changes are noted may come again
            progress(f"copy {table}: given up, the pipeline is recovered", 0)
        with _noted_as_begun(self._file):
            drop_slot(self._source)
            note_identity(
                self._file, self._lake
            )  # before the slot is made: a run that is killed after it must know it
            reach("recover.slot_dropped")
            progress("waiting for a snapshot of the source", 0)
            with create_slot(self._source, wait_seconds=SLOT_WAIT_SECONDS) as snapshot:
                reach("recover.slot_made")
                comparisons = self._bring_to_snapshot(snapshot, broken, progress)
        BatchSteps(self._pipeline).confirm_position()
        return [each.repair for each in comparisons]

    def _bring_to_snapshot(
        self, snapshot: ExportedSnapshot, broken: Collection[LakeName], progress: Progressing
    ) -> list[Comparison]:
        """Bring the lake to the new slot's snapshot."""
        # At once: what commits while the tables are compared comes behind the recovery by time too.
        snapshot_time = source_clock(self._source.dsn)
        start = self._position_below(snapshot.lsn)
        _forget_what_waits(self._file, start)
        note_recovery_begun(self._file, batch_name(start, snapshot.lsn))
        batch, comparisons = self._difference((start, snapshot_time), snapshot, broken, progress)
        reach("recover.batch_written")
        SchemaChanges(self._pipeline).write_copies(batch, snapshot, _whole_copies(comparisons), progress)
        self._reshape(snapshot, comparisons)
        progress("apply", 0)
        BatchSteps(self._pipeline).apply_named(batch.name, judged=True)
        progress("publish", 0)
        BatchSteps(self._pipeline).publish_named(batch.name)
        reach("recover.published")
        recovery_note(self._file).remove()
        DROPPED.of(self._file.state_dir).remove()  # whoever recovers what was dropped wants it to go on
        self._copy_new_tables(comparisons, snapshot, progress)
        return comparisons

    def _copy_new_tables(
        self,
        comparisons: Sequence[Comparison],
        snapshot: ExportedSnapshot,
        progress: Progressing,
    ) -> None:
        """Copy tables that the lake lacks, if the pipeline file wants them."""
        tables = [each.source for each in comparisons if each.source is not None and each.repair.how == NEW]
        if tables and self._file.new_tables == "copy":
            for error in TableCopies(self._pipeline).copy_all(tables, snapshot, progress).errors.values():
                SettingAside(self._pipeline).set_aside(error)

    def _position_below(self, lsn: int) -> int:
        """The lake's position, rewound below the new slot's if the source counts from lower LSNs again."""
        from slotlake.spark.publish.rewind import rewind_position

        position = self._pipeline.position()
        if position < lsn:
            return position
        rewind_position(self._lake, self._pipeline.name, lsn - 1)
        reach("recover.lowered")
        return lsn - 1

    def _apply_what_waits(self, progress: Progressing) -> None:
        """Apply batches that were pulled before the slot was lost; stop at one that cannot be used."""
        while True:
            try:
                batch = batch_starting_at(self._file.changelog_dir, self._pipeline.position())
                if batch is None or batch.end_lsn <= batch.start_lsn:
                    return
                batch.verify()
                SchemaChanges(self._pipeline).with_schema_changes(batch, None, progress)
            except SlotlakeError:
                return
            BatchSteps(self._pipeline).apply_named(batch.name)
            BatchSteps(self._pipeline).publish_named(batch.name)

    def _make_missing_publications(self) -> None:
        """Make publications that are missing, and note them as made by us, so that `drop` removes them."""
        source, note = self._source, MADE.of(self._file.state_dir)
        with source_session(source.dsn, "making the publication") as connection:
            missing = missing_publications(connection, source.publications)
            tables = self._tables_to_publish(connection) if missing else []
            for name in missing:
                create_publication(
                    connection, name, tables, through_root=self._file.source.partitions == "root"
                )
        if missing:
            content = note.mapping() or {"slot": source.slot, "publications": []}
            note.write({**content, "publications": sorted({*content["publications"], *missing})})

    def _tables_to_publish(self, connection: psycopg.Connection[Any]) -> list[Name]:
        """Return the tables that the file names, and those that the lake follows and nothing else publishes.

        If the file names none, return none: the publication may have had all tables, or columns of its own.
        """
        if not self._file.tables:
            return []
        in_lake = _followed(self._file, self._lake)
        # What a pattern matches and the lake has got before is published if it has not left.
        newly, exact = newly_named(self._file, connection), named_exactly(self._file)
        named = [*exact, *sorted(newly - exact)]
        at_source = memberships(connection, self._source.publications, {*named, *in_lake})
        followed = {
            name: each.relation_id
            for name, each in at_source.items()
            if name not in named and not each.obstacle and not each.is_published
        }
        above = [each.relation_id for name, each in at_source.items() if name in named]
        rows = connection.execute(_PARTITIONS_OF, (list(followed.values()), [*above, *followed.values()]))
        below = {int(oid) for (oid,) in rows.fetchall()}
        return [*named, *(name for name, oid in followed.items() if oid not in below)]

    def _difference(
        self,
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

        source, point = (
            self._source,
            self._pipeline.for_comparing(ReadPoint.latest(self._lake)),
        )
        position, snapshot_time = start
        server = identify(source.dsn)
        with snapshot_session(source.dsn, snapshot.snapshot) as connection:
            comparisons = compare(connection, point, published_tables(self._pipeline), broken, progress)
            rows = [
                (each.source, each.changes(connection, point))
                for each in comparisons
                if each.source is not None and each.repair.how == ROWS
            ]
            batch = write_difference(
                self._file.changelog_dir,
                identity_of(server, self._pipeline.name, source),
                (position, snapshot.lsn),
                snapshot_time,
                rows,
            )
        return batch, comparisons

    def _reshape(self, snapshot: ExportedSnapshot, comparisons: Sequence[Comparison]) -> None:
        """Write the catalog fingerprint at the snapshot to compared tables, which are exact there."""
        from slotlake.spark.publish.shape import write_schemas

        mirrors = {
            each.source: each.mirror
            for each in comparisons
            if each.source is not None and each.mirror is not None and each.repair.how != WHOLE
        }
        schemas = Described.at(
            self._pipeline, snapshot, list(mirrors)
        ).schemas  # the next sync meets the others
        shapes = {table: _shape_of_compared(mirrors[table], schema) for table, schema in schemas.items()}
        changed = [shape for table, shape in shapes.items() if shape != mirrors[table]]
        if changed:
            write_schemas(self._lake, changed)


def _whole_copies(comparisons: Sequence[Comparison]) -> dict[SourceTable, str]:
    """The tables that are copied whole, and why."""
    return {
        each.source: each.repair.why
        for each in comparisons
        if each.source is not None and each.repair.how == WHOLE
    }


@contextmanager
def _noted_as_begun(file: PipelineFile) -> Iterator[None]:
    """Note, until the end of the block, that this process has begun a recovery."""
    note_recovery_begun(file, None)
    try:
        yield
    finally:
        note_recovery_ended(file)


def _forget_what_waits(file: PipelineFile, position: int) -> None:
    """Remove batches of the old slot beyond the lake's position, and transactions that it left prepared."""
    from slotlake.spark.publish import sidecar

    for path in batches(file.changelog_dir):
        ends = batch_positions(path.name)
        if ends is not None and ends[1] > position:
            shutil.rmtree(sidecar.place(path), ignore_errors=True)
            shutil.rmtree(path, ignore_errors=True)
    forget_from(file.changelog_dir, 0)


def _followed(file: PipelineFile, lake: LakeSettings) -> set[Name]:
    """Return the tables that have not left the publications; those that are set aside too."""
    from slotlake.spark.read.point import ReadPoint

    point = ReadPoint.latest(lake)
    fingerprints = {(t.schema, t.table): CatalogFingerprint.from_json(t.fingerprint) for t in point.tables()}
    left = {name for name, each in fingerprints.items() if each is not None and each.has_left}
    # The batch that would show that these have left will not come from the new slot.
    removed = REMOVED.of(file.state_dir).mapping().items()
    left |= {parse_postgres_name(name) for name, seen_at in removed if point.position < seen_at}
    return {*fingerprints, *point.aside} - left


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
