"""Replaces the whole content of lake tables by rows that were read range by range, over days if need be.

The ranges' files lie in ``<warehouse>/_slotlake/recopying/…``, and stay there between the processes that read
them; nothing of the table is touched before all of them are there.  Then they are staged, without the rows
that were changed since, and published, as any other copy that replaces a table (`spark.replace`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from spark import catalog_metadata, lake_files
from spark.annex import Copied
from spark.catalog import open_catalog
from spark.catalog_base import load_one
from spark.catalog_metadata import STAGE
from spark.commits import Point
from spark.initial_place import CopyTarget
from spark.lake import LakeSettings
from spark.names import LakeName
from spark.publish_swap import publish_tables
from spark.replace import Replacement
from spark.tables import TableSchema

_DATA = "data"


class RangedReplacement:
    """``target(t)`` → write files → ``register(t)`` for each table that is whole, then ``publish()``.

    Args:
        point: where the lake stands, and the tables will.
        final: a table's shape as it is published; of its columns it says what the given one says.
    """

    def __init__(
        self,
        session: SparkSession,
        lake: LakeSettings,
        point: Point,
        final: Callable[[TableSchema], TableSchema],
    ) -> None:
        self._session, self._lake, self._point, self._final = session, lake, point, final
        self._staged: dict[str, tuple[list[LakeName], int]] = {}

    def target(self, schema: TableSchema) -> CopyTarget:
        """Where this table's files go."""
        return self._replacement(schema).target

    def register(self, schema: TableSchema, stale: pa.Table | None = None) -> int:
        """Stage the files in the target's directory as the table's content; how many rows it has then.

        Args:
            stale: keys (`initial_again.forget`) whose rows those files have as they are no more: they are
                left out, and the files in the target's ``again`` taken in instead.

        Raises:
            LakeError: Spark failed.
        """
        name = schema.lake_name(self._lake.namespace)
        names = self._replacement(self._final(schema)).stage(self._point, stale)
        with open_catalog(self._lake) as catalog:
            staged = catalog_metadata.head(load_one(catalog, name).metadata, STAGE)
        rows = catalog_metadata.live_rows(staged) or 0
        self._staged[schema.source_name] = (names, rows)
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

    def _replacement(self, schema: TableSchema) -> Replacement:
        name = schema.lake_name(self._lake.namespace)
        directory = lake_files.make_directory(_place(self._lake, name) / _DATA)
        return Replacement(self._session, self._lake, Copied(schema, directory, 0, "copied again"), name)


def begin_round(lake: LakeSettings, names: Collection[LakeName]) -> None:
    """Remove what an attempt that was killed read again of these tables, but not their ranges."""
    for name in names:
        for entry in _place(lake, name).glob("*"):
            if entry.name != _DATA:
                lake_files.remove_tree(entry)


def clear(lake: LakeSettings, names: Collection[LakeName]) -> None:
    """Remove all that is copied of these tables."""
    for name in names:
        lake_files.remove_tree(_place(lake, name))


def _place(lake: LakeSettings, name: LakeName) -> Path:
    parts = ("recopying", name.namespace, name.table)
    return lake.warehouse_path.joinpath(lake_files.CONTROL_DIRECTORY, *parts)
