"""Read some rows of a table again: those that satisfy a condition on either side, at an exact LSN.

The keys that differ are found first (expectations/chosen.py); only their rows are read and written, so equal
rows keep their files, and a history its versions.  All queries use one snapshot of the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from slotlake.decoder.catalog.condition import Condition, TextColumn, keys_condition, text_columns
from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.compiled.arrays import distinct, python_values
from slotlake.decoder.copy.files import CopiedFile
from slotlake.decoder.copy.parts import whole_part
from slotlake.decoder.copy.table import CopyCrew, CopyJob
from slotlake.decoder.errors import LakeError, PipelineFileError, SourceError
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.infra.backfill.report import KEYS_SHOWN_MAX, TableBackfilled
from slotlake.infra.copy.tables import TableCopies
from slotlake.infra.selection.types import refuse_lossy_copy
from slotlake.infra.source.fingerprints import fingerprints_at, require_unchanged

if TYPE_CHECKING:
    from slotlake.expectations.chosen import ChosenDifferences
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.copy.amend import Amendment
    from slotlake.spark.names import LakeName
    from slotlake.spark.publish.commits import Point
    from slotlake.spark.read.point import ReadPoint
    from slotlake.spark.tables.schema import LakeColumn, TableSchema


@dataclass(frozen=True)
class RemovedRows:
    """The rows that go from the lake.

    Attributes:
        keys: the typed columns of their keys, each key once.
        rows: how many rows that is; the lake may have several with one key.
    """

    keys: pa.Table
    rows: int


@dataclass(frozen=True)
class Difference:
    """The chosen rows of one table that differ between both sides, at one position.

    Attributes:
        mirror: the table as the lake has it.
        point: the read point at which the lake was read.
        key: the columns of the key.
        chosen: the keys of the rows that differ.
        escaped: as `expectations.shapes.Compared`.
        removed: the rows that go from the lake; None if nothing differs.
    """

    table: SourceTable
    mirror: TableSchema
    point: ReadPoint
    key: Sequence[TextColumn]
    chosen: ChosenDifferences
    escaped: bool = False
    removed: RemovedRows | None = None

    def report(self, pipeline: OpenPipeline, *, dry_run: bool) -> TableBackfilled:
        """The counts; in a dry run the keys, too."""
        chosen = self.chosen
        return TableBackfilled(
            table=f"{self.table.schema}.{self.table.table}",
            lake_table=str(self.mirror.lake_name(pipeline.lake.namespace)),
            rows=chosen.rows,
            inserted=len(chosen.inserted),
            changed=len(chosen.changed),
            deleted=len(chosen.deleted),
            taken=0 if self.removed is None else self.removed.rows,
            keys=chosen.named(KEYS_SHOWN_MAX) if dry_run else [],
        )

    @property
    def is_empty(self) -> bool:
        """Return whether the lake equals the source."""
        return not self.chosen.keys.num_rows


def compare(
    pipeline: OpenPipeline,
    table: SourceTable,
    condition: Condition,
    snapshot: ExportedSnapshot,
    point: ReadPoint,
    progress: Progressing,
) -> Difference:
    """Find the chosen rows that differ.

    Args:
        table: the source table, which has a key.
        condition: the condition that chooses rows, on either side.
        snapshot: the snapshot under which the source is read.
        point: the lake at the snapshot's LSN.

    Raises:
        PipelineFileError: the table has other columns than the lake's, so that some rows cannot be replaced.
        LakeError: a row that would go is not found again in the lake.
    """
    from slotlake.expectations.chosen import compare_chosen
    from slotlake.expectations.shapes import Compared
    from slotlake.expectations.source_side import hashes_escaped, snapshot_session

    progress(f"compare {table.quoted}", 0)
    mirror = point.schema(table.quoted)
    _require_same_columns(table, mirror)
    with snapshot_session(pipeline.source.dsn, snapshot.snapshot) as connection:
        key = list(text_columns(connection, table.relation_id, table.key).values())
        compared = Compared.of(table.quoted, table, mirror, escaped=hashes_escaped(connection))
        chosen = compare_chosen(connection, compared, point, condition, key)
    difference = Difference(table, mirror, point, key, chosen, compared.escaped)
    return difference if difference.is_empty else replace(difference, removed=_removed_rows(difference))


def _require_same_columns(table: SourceTable, mirror: TableSchema) -> None:
    same_names = {column.name for column in table.columns} == {column.name for column in mirror.live}
    is_incomplete = any(column.unfilled or column.lost for column in mirror.live)
    if not same_names or is_incomplete or tuple(table.key) != tuple(mirror.key):
        raise PipelineFileError(
            "the table's columns or key have changed since the lake's was copied",
            where=f"table {table.quoted}",
            way_out="run slotlake sync, which follows them; or read the whole table again, with no condition",
        )


@contextmanager
def amending(pipeline: OpenPipeline, mirror: TableSchema) -> Iterator[Amendment]:
    """Open a place for the rows that come; it is removed at the end of the block."""
    from slotlake.spark.copy.amend import Amendment

    name = mirror.lake_name(pipeline.lake.namespace)
    with Amendment.begin(pipeline.session, pipeline.lake, pipeline.name, name) as amendment:
        yield amendment


def read_rows(
    pipeline: OpenPipeline,
    amendment: Amendment,
    difference: Difference,
    snapshot: ExportedSnapshot,
    progress: Progressing,
) -> int:
    """Read the source's rows that differ, and return how many there are; nothing is staged.

    Args:
        amendment: the place for the rows that come (`amending`).
        difference: the rows that differ; at least one does.
        snapshot: the snapshot under which they were compared.

    Raises:
        ChangedMeanwhileError: the table was altered or rewritten meanwhile.
        SourceError: a row is not found again by its key.
    """
    table, chosen = difference.table, difference.chosen
    fingerprints = fingerprints_at(pipeline.source, [table.relation_id], snapshot.snapshot)
    new_keys = chosen.of(chosen.inserted, chosen.changed)
    rows = _read(pipeline, amendment, difference, new_keys, snapshot, progress)
    require_unchanged(pipeline.source, fingerprints, [table])
    if rows != new_keys.num_rows:
        raise SourceError(
            "the source has no row with the key of a row that was compared",
            where=f"table {table.quoted}",
            way_out="read the whole table again, without a condition; nothing was published",
        )
    return rows


def stage_rows(
    amendment: Amendment, difference: Difference, rows: int, point: Point, progress: Progressing
) -> list[LakeName]:
    """Stage the rows that were read in place of the lake's; return the lake tables to be published then.

    Args:
        difference: the rows that differ; at least one does.
        rows: how many were read.
        point: the consistency point that they become part of.
        progress: called with a line.

    Raises:
        LakeError: Spark failed.
    """
    removed = difference.removed
    assert removed is not None, "nothing differs, so there is nothing to stage"
    progress(f"stage {difference.table.quoted}", 0)
    return amendment.stage(point, removed.keys, removed.rows - rows)


def publish_rows(
    pipeline: OpenPipeline,
    names: Sequence[LakeName],
    lsn: int,
    tables: Sequence[SourceTable],
    done: Sequence[TableBackfilled],
) -> None:
    """Publish what is staged, if anything is.

    Args:
        pipeline: the pipeline; its lock is held.
        names: the lake tables in which something is staged.
        lsn: where the lake stands.
        tables: all that the backfill reads.
        done: what was done to each of them.

    Raises:
        LakeError: the lake was changed meanwhile; nothing was published.
    """
    from slotlake.spark.publish.swap import publish_tables

    if not names:
        return
    changed = {t.lake_table: t.changes for t in done if t.inserted is None or t.changes}
    point = replace(TableCopies(pipeline).backfill_point(lsn, tables, sum(changed.values())), changed=changed)
    publish_tables(pipeline.lake, point, names, start=lsn)


def _read(
    pipeline: OpenPipeline,
    amendment: Amendment,
    difference: Difference,
    keys: pa.Table,
    snapshot: ExportedSnapshot,
    progress: Progressing,
) -> int:
    """Write the source's rows with these keys where the lake wants them; return how many there are."""
    from slotlake.expectations.chosen import KEYS_AT_ONCE

    table, target = difference.table, amendment.target
    jobs: list[CopyJob] = []
    for start in range(0, keys.num_rows, KEYS_AT_ONCE):
        part = keys.slice(start, KEYS_AT_ONCE)
        condition = keys_condition(difference.key, [python_values(part[c.name]) for c in difference.key])
        jobs.append(CopyJob(table, target, whole_part(table), f"rows-{len(jobs):05d}", condition))
    files: list[CopiedFile] = []
    progress(f"copy {table.quoted}: rows", 0)
    with CopyCrew(
        pipeline.source.dsn, snapshot.snapshot, jobs, done=lambda _, some: files.extend(some)
    ) as crew:
        crew.wait(jobs)
    refuse_lossy_copy(pipeline, table, snapshot, files)
    return sum(file.rows for file in files)


def _removed_rows(difference: Difference) -> RemovedRows:
    """Find the lake's rows that go: all that have such a key, also further rows with that key.

    Raises:
        LakeError: not all of them are there.
    """
    hashes_to_remove = distinct(np.concatenate([difference.chosen.changed, difference.chosen.deleted]))
    columns = [difference.mirror.column(name) for name in difference.table.key]
    matched_hashes: set[int] = set()
    batches: list[pa.Table] = []
    rows = 0
    for batch in difference.point.arrow_batches(difference.table.quoted, [c.name for c in columns]):
        hashes = _key_hashes(batch, columns, escaped=difference.escaped)
        matching_rows = np.flatnonzero(np.isin(hashes, hashes_to_remove)).tolist()
        rows += len(matching_rows)
        row_by_hash = {int(hashes[i]): i for i in matching_rows}
        new_rows = [i for hashed, i in row_by_hash.items() if hashed not in matched_hashes]
        matched_hashes.update(row_by_hash)
        batches.append(pa.Table.from_batches([batch.take(pa.array(new_rows, pa.int64()))]))
    # A row that stays would stand next to the one that comes.
    if len(matched_hashes) != len(hashes_to_remove):
        raise LakeError(
            "the lake has no row with the key of a row that is to be replaced",
            where=f"table {difference.table.quoted}",
            way_out="read the whole table again, without a condition; nothing was published",
        )
    if not batches:
        return RemovedRows(pa.table({c.name: pa.array([], c.representation.arrow) for c in columns}), 0)
    return RemovedRows(pa.concat_tables(batches), rows)


def _key_hashes(batch: pa.RecordBatch, columns: Sequence[LakeColumn], *, escaped: bool) -> NDArray[np.int64]:
    """The hashes of the keys of a batch's rows: int64, one per row.

    Args:
        batch: rows of the lake, with the key's columns and their exact text.
        escaped: texts are hashed as PostgreSQL escapes them.
    """
    from slotlake.expectations.hashing import KEY_SEED, chain, escaped_texts
    from slotlake.spark.copy.amend import EXACT

    names = set(batch.schema.names)
    texts = [
        c.representation.text(
            batch.column(c.name), batch.column(c.name + EXACT) if c.name + EXACT in names else None
        )
        for c in columns
    ]
    texts = [escaped_texts(text) for text in texts] if escaped else texts
    return chain(texts, np.full(batch.num_rows, KEY_SEED, np.int64))


__all__ = ["Difference", "amending", "compare", "publish_rows", "read_rows", "stage_rows"]
