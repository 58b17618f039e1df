"""Replaces the whole content of a lake table by rows read again from the source at an exact LSN.

The new content is staged like a batch (all rows go, the new ones come) and published like one, so
the table keeps its history, and readers see the old content or the new.  Tables beside it (spark/modes.py)
take in the same rows, as those of a copy, in the same point.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from spark import lake_files
from spark.apply_run import Work, run_statements, shape
from spark.beside import tables_beside
from spark.catalog import open_catalog
from spark.commits import Point
from spark.initial_place import CopyTarget, companions_in, field_ids
from spark.lake import LakeSettings
from spark.modes_begin import take_copy
from spark.names import LakeName, quote
from spark.publish_swap import Loaded, Published, load, publish_tables, require_owner, reset_stage
from spark.tables import LakeColumn, TableSchema, schema_of
from spark.tables_change import follow

# Field ids only tell columns of these files apart; Spark reads them by name and writes its own files.
_FIRST_OWN_ID = 100_000


class Replacement:
    """``with Replacement.begin(...) as it``: write files to ``it.target``, then ``it.publish(point)``.

    ``point.position`` must be the lake's position: sync up to the snapshot's LSN first.  ``point.batch``
    must be new each time.  A table that the lake lacks is not for this: add it with
    :class:`spark.initial.InitialCopy`.

    Attributes:
        target: where the files go, and what their columns are called.
        schema: the table as it will be in the lake.
    """

    def __init__(self, session: SparkSession, lake: LakeSettings, schema: TableSchema, table: Loaded) -> None:
        self._session = session
        self._lake = lake
        self._directory = lake_files.control_directory(
            lake, "backfill", table.name.namespace, table.name.table
        )
        self.schema = schema
        self.target = _target(table, schema, self._directory)

    @classmethod
    def begin(
        cls, session: SparkSession, lake: LakeSettings, pipeline: str, schema: TableSchema
    ) -> Replacement:
        """Make a place for the files, empty, in the shape that the lake's table has.

        Raises:
            ApplyError: the source's columns changed in a way that the lake's table cannot follow.
            LakeError: the lake has no such table, or it is not this pipeline's.
        """
        table = _load(lake, schema.lake_name(lake.namespace))
        require_owner(table, pipeline)
        followed = follow(schema_of(table.metadata, table.name), schema)
        lake_files.remove_tree(
            lake_files.control_directory(lake, "backfill", table.name.namespace, table.name.table)
        )
        return cls(session, lake, followed, table)

    def __enter__(self) -> Replacement:
        return self

    def __exit__(self, *failure: object) -> None:
        lake_files.remove_tree(self._directory)

    def publish(self, point: Point) -> Published:
        """Stage the new content and publish it.

        Raises:
            ApplyError: the lake does not stand at the point.
            LakeError: Spark failed, or the lake was changed meanwhile; nothing was published.
        """
        name = self.schema.lake_name(self._lake.namespace)
        files = sorted(self._directory.glob("*.parquet"))
        schema = self.schema.with_exact(companions_in(files, self.target)).filled()
        with open_catalog(self._lake) as catalog:
            pointers = catalog.pointers()
            table = load(pointers, name)
            beside = {mode: load(pointers, n) for mode, n in tables_beside(pointers, name).items()}
            reset_stage(catalog, [table, *beside.values()])
        work = Work(self._session, self._lake, point, table, self._directory)
        companions = shape(work, schema)
        view = self._view(schema)
        columns = [c.lake_name for c in schema.live] + [
            c.exact_name for c in schema.live if c.exact_name in companions
        ]
        listed = ", ".join(quote(column) for column in columns)
        branch = f"{name.sql(self._lake.catalog)}.branch_stage"
        run_statements(
            work,
            [f"DELETE FROM {branch}", f"INSERT INTO {branch} ({listed}) SELECT {listed} FROM {quote(view)}"],
        )
        for mode, each in beside.items():
            take_copy(replace(work, table=each), mode, schema, name)
        return publish_tables(
            self._lake, point, [name, *(each.name for each in beside.values())], start=point.position
        )

    def _view(self, schema: TableSchema) -> str:
        definitions = [c.definition for c in schema.live] + [c.exact_definition for c in schema.live]
        view = f"replacement_{self._directory.name}"
        frame = self._session.read.schema(", ".join(definitions)).parquet(self._directory.as_uri())
        frame.createOrReplaceTempView(view)
        return view


def _load(lake: LakeSettings, name: LakeName) -> Loaded:
    with open_catalog(lake) as catalog:
        return load(catalog.pointers(), name)


def _target(table: Loaded, schema: TableSchema, directory: Path) -> CopyTarget:
    ids = field_ids(table.metadata)
    own = iter(range(_FIRST_OWN_ID, _FIRST_OWN_ID + 2 * len(schema.columns)))

    def id_of(lake_name: str) -> int:
        return ids.get(lake_name) or next(own)

    inexact: list[LakeColumn] = [column for column in schema.live if column.kept.inexact]
    return CopyTarget(
        lake_table=str(table.name),
        directory=directory,
        names={column.name: column.lake_name for column in schema.live},
        field_ids={column.name: id_of(column.lake_name) for column in schema.live},
        exact_names={column.name: column.exact_name for column in inexact},
        exact_field_ids={column.name: id_of(column.exact_name) for column in inexact},
        forms={column.name: column.kept for column in schema.live if column.form},
    )
