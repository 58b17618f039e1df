"""Replaces the whole content of lake tables by rows read from the source, range by range.

The ranges' files lie in ``<warehouse>/_slotlake/<purpose>/…``.  Those of a table that is copied again over
several syncs (``recopying``) stay there between the processes that read them, as do those that a backfill
reads while batches go on (``backfilling``): a table may be set aside and be copied again meanwhile.  What is
read under the lock (``backfill``) is removed at the end.  The files have the field ids of the lake's table,
so in the end they are linked to its folder and become its own, and nothing is written twice: what is
published takes a DELETE of the rows that were changed since.  What becomes of the table's shape is as with
any other copy that replaces a table (`spark.copy.replace`).

Fields that the lake's table lacks are made when the copy begins, empty, and no shape knows of them until the
rows are published.  A companion for exact texts is not: files that need one which the table lacks are read by
Spark in the end, and written once more.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from slotlake.spark import exchange, lake_files
from slotlake.spark.catalog.base import Loaded, load, load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.copy.files import with_files
from slotlake.spark.copy.replace import copied_files, insert_rows, places, stage_copy
from slotlake.spark.copy.stale_rows import key_condition
from slotlake.spark.history.reserved_columns import rename_reserved_columns
from slotlake.spark.lake import LakeSettings
from slotlake.spark.maintenance.table_files import count_rows
from slotlake.spark.merge.fields import field_changes
from slotlake.spark.merge.run import Work, run, run_steps
from slotlake.spark.names import LakeName
from slotlake.spark.publish.commits import RUN, STEPS, Point
from slotlake.spark.publish.derived_tables import load_derived_tables, with_derived_names
from slotlake.spark.publish.place import CopyTarget, Names, companions_in, field_ids, inner_ids
from slotlake.spark.publish.sidecar import EXACT_IDS, TableCopy
from slotlake.spark.publish.swap import publish_tables, require_owner, reset_stage, steps_staged
from slotlake.spark.storage.location import Location
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.change import schema_after_copy
from slotlake.spark.tables.layout import is_laid_out
from slotlake.spark.tables.manifests import FORMATS
from slotlake.spark.tables.metadata import STAGE, Metadata
from slotlake.spark.tables.schema import TableSchema, schema_of

_DATA, _KEYS = "data", "keys"
BACKFILL, BACKFILLING, RECOPYING = "backfill", "backfilling", "recopying"


@dataclass(frozen=True)
class _RangedCopy(TableCopy):
    """A copy whose files have the columns of the lake's table."""

    copy_target: CopyTarget

    @property
    def target(self) -> CopyTarget:
        return self.copy_target


class Replacement:
    """``begin(t…)``; ``target(t)`` → write files → ``register(t)`` for each that is whole; ``publish(…)``.

    ``point.position`` must be the lake's position: sync up to the snapshot's LSN first.  A table that the
    lake lacks is not for this: add it with `spark.copy.initial.InitialCopy`.

    Args:
        point: where the lake stands, and the tables will; its ``batch`` must be new each time.
        final: a table's shape as it is published; of its columns it says what the given one says.
        purpose: the name of the folder.
    """

    def __init__(
        self,
        session: SparkSession,
        lake: LakeSettings,
        point: Point,
        final: Callable[[TableSchema], TableSchema] = lambda schema: schema,
        purpose: str = BACKFILL,
    ) -> None:
        self._session, self._lake, self._point, self._final = session, lake, point, final
        self._purpose = purpose
        self._staged: dict[str, tuple[list[LakeName], int]] = {}

    def begin(self, schemas: Iterable[TableSchema], *, resumes: bool = False) -> None:
        """Make the fields that tables lack; remove what a killed attempt has left.

        Args:
            schemas: the tables as they will be in the lake.
            resumes: the ranges that are there stay; only what was read again of them goes.

        Raises:
            LakeError: a table is not this pipeline's, or Spark failed.
        """
        for schema in schemas:
            name = schema.lake_name(self._lake.namespace)
            with open_catalog(self._lake) as catalog:
                pointers = catalog.pointers_of(with_derived_names([name]))
                table = load(pointers, name)
                require_owner(table, self._point.pipeline)
                table, _ = rename_reserved_columns(catalog, table, load_derived_tables(pointers, name))
            for change in field_changes(table, self._lake.catalog, _shape(table, schema)):
                run(self._session, table, change)
            for entry in _place(self._lake, name, self._purpose).glob("*"):
                if entry.name != _DATA or not resumes:
                    exchange.remove_directory(entry)

    def target(self, schema: TableSchema) -> CopyTarget:
        """Where this table's files go."""
        return self._table_copy(schema).target

    def register(self, schema: TableSchema, stale: pa.Table | None = None, names: Names = None) -> int:
        """Stage the files in the target's directory as the table's content; how many rows it has then.

        Args:
            names: not needed here: one machine writes to this directory, and what is in it is the table's.
            stale: keys (`stale_rows.delete_rows`) whose rows those files have as they are no more: they are
                left out, and the files in the target's ``again`` taken in instead.

        Raises:
            LakeError: Spark failed, or a file cannot be read.
        """
        table_copy = self._table_copy(self._final(schema))
        name = schema.lake_name(self._lake.namespace)
        with open_catalog(self._lake) as catalog:
            pointers = catalog.pointers_of(with_derived_names([name]))
            table, derived = rename_reserved_columns(
                catalog, load(pointers, name), load_derived_tables(pointers, name)
            )
            reset_stage(catalog, [table, *derived.values()])
        work = Work(
            lambda: self._session, self._lake, self._point, table, table_copy.directory.with_name(_KEYS)
        )
        registers = not schema.soft_deletes and _can_register(table.metadata, table_copy, stale)
        content = _register_files if registers else insert_rows
        stage_copy(work, table_copy, derived, stale, content)
        rows = count_rows(catalog_metadata.head(self._load(name).metadata, STAGE))
        self._staged[schema.source_name] = ([*(each.name for each in derived.values()), name], rows)
        return rows

    def publish(self, tables: Collection[str]) -> None:
        """Publish those of the registered tables that are named, as PostgreSQL writes them, in one point.

        Raises:
            ApplyError: the lake does not stand at the point.
            LakeError: the lake was changed meanwhile; nothing was published.
        """
        chosen = {table: staged for table, staged in self._staged.items() if table in tables}
        if not chosen:
            return
        changed = {str(names[-1]): rows for names, rows in chosen.values()}
        point = replace(self._point, changes=sum(changed.values()), changed=changed)
        names = [name for names, _ in chosen.values() for name in names]
        publish_tables(self._lake, point, names, start=point.position)

    def _load(self, name: LakeName) -> Loaded:
        with open_catalog(self._lake) as catalog:
            return load_one(catalog, name)

    def _table_copy(self, schema: TableSchema) -> _RangedCopy:
        name = schema.lake_name(self._lake.namespace)
        directory = exchange.make_directory(_place(self._lake, name, self._purpose) / _DATA)
        target = _target(self._load(name), schema, directory)
        return _RangedCopy(schema, directory, 0, "copied again", target)


def remove_ranges(lake: LakeSettings, names: Collection[LakeName], purpose: str) -> None:
    """Remove all that is copied of these tables for a purpose, as of a `Replacement`."""
    for name in names:
        exchange.remove_directory(_place(lake, name, purpose))


def _place(lake: LakeSettings, name: LakeName, purpose: str) -> Path:
    return exchange.exchange_path(lake, purpose, name.namespace, name.table)


def _shape(table: Loaded, schema: TableSchema) -> TableSchema:
    return schema_after_copy(schema_of(table.metadata, table.name), schema)


def _target(table: Loaded, schema: TableSchema, directory: Path) -> CopyTarget:
    """As `place.target_of`, of a table that has rows, fields of the past, and few companions."""
    columns, ids = _shape(table, schema).live, field_ids(table.metadata)
    inexact = [(i, column) for i, column in enumerate(columns) if column.representation.inexact]
    return CopyTarget(
        lake_table=str(table.name),
        directory=directory,
        names={column.name: column.lake_name for column in columns},
        field_ids={column.name: ids[column.lake_name] for column in columns},
        exact_names={column.name: column.exact_name for _, column in inexact},
        exact_field_ids={c.name: ids.get(c.exact_name, EXACT_IDS + i) for i, c in inexact},
        representations={column.name: column.representation for column in columns if column.form},
        inner_ids={c.name: inner_ids(table.metadata, c.lake_name) for c in columns if c.form},
    )


def _can_register(metadata: Metadata, table_copy: TableCopy, stale: pa.Table | None) -> bool:
    """Return whether the copied files can become the table's own data files."""
    target, present = table_copy.target, field_ids(metadata)
    companions = companions_in(copied_files(target, stale), target)
    has_companions = all(target.exact_names[name] in present for name in companions)
    return has_companions and not is_laid_out(metadata) and metadata["format-version"] in FORMATS


def _register_files(
    work: Work,
    table_copy: TableCopy,
    schema: TableSchema,
    companions: Collection[str],
    stale: pa.Table | None,
) -> None:
    """Stage the files as all that a table holds; none is written again."""
    branch, target = f"{work.table.name.sql(work.lake.catalog)}.branch_stage", table_copy.target
    run_steps(work, [f"DELETE FROM {branch}"])
    files, *more = [sorted(place.glob("*.parquet")) for place in places(target, stale)]
    again = more[0] if more else []
    if stale is not None and stale.num_rows and files:
        _add_files(work, files, {})
        files = []
        key = [schema.column(name) for name in schema.key]
        names = [(c.lake_name, c.exact_name if c.exact_name in companions else None) for c in key]
        with key_condition(work.session, work.directory, key, stale, names) as condition:
            run_steps(work, [f"DELETE FROM {branch} AS t WHERE {condition}"])
    _add_files(work, [*files, *again], work.point.summary)


def _add_files(work: Work, files: Sequence[Path], entries: Mapping[str, str]) -> None:
    """Add files to what is staged; ``entries``: in the snapshot's summary, of the last one what it is of."""
    with open_catalog(work.lake) as catalog:
        table = load_one(catalog, work.table.name)
        steps = {STEPS: str(1 + steps_staged(table.metadata)), RUN: work.run} if entries else {RUN: work.run}
        linked = _linked(files, table.metadata["location"])
        staged = with_files(table.metadata, linked, branch=STAGE, entries={**entries, **steps})
        catalog.move([catalog.prepared(table, staged)])


def _linked(files: Sequence[Path], location: str) -> list[Location]:
    """The files once more, in the table's folder: a killed attempt can be made again from those copied."""
    names = [f"{uuid.uuid4().hex}-{file.name}" for file in files]
    return lake_files.put(files, Location(location) / _DATA, names)
