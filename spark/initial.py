"""Fills new tables out of sight and makes all of them visible, with `commits`, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from spark.commits import Point
from spark.lake import LakeSettings
from spark.publish import Published
from spark.tables import TableSchema


@dataclass(frozen=True)
class CopyTarget:
    """Where the copied files of one table go, and the field ids that must stand in them.

    Attributes:
        lake_table: "namespace.table" that it will be.
        directory: exists and is empty; every ``*.parquet`` in it becomes the table's.
        names: source column → column name in the files.
        field_ids: source column → Iceberg field id.
        exact_names, exact_field_ids: likewise of the column that takes the exact text, for columns
            whose type is inexact; such a column is written only if it holds a value.
    """

    lake_table: str
    directory: Path
    names: Mapping[str, str]
    field_ids: Mapping[str, int]
    exact_names: Mapping[str, str]
    exact_field_ids: Mapping[str, int]


class InitialCopy:
    """One initial copy (or the addition of tables to a pipeline) under way.

    ``with InitialCopy.begin(...) as copy``: target(t) → write files → register(t) for each table,
    then publish(point).  Leaving without publish drops all; so does the next begin after a crash.
    """

    @classmethod
    def begin(
        cls, session: SparkSession, lake: LakeSettings, pipeline: str, tables: Sequence[TableSchema]
    ) -> InitialCopy:
        """Drop leftovers of an earlier attempt and make the tables out of sight.

        Raises:
            LakeError: a table of that name is there and is not this pipeline's, or the lake cannot be reached.
        """
        raise NotImplementedError

    def __enter__(self) -> InitialCopy:
        return self

    def __exit__(self, *failure: object) -> None:
        raise NotImplementedError

    def target(self, schema: TableSchema) -> CopyTarget:
        """Where this table's files go."""
        raise NotImplementedError

    def register(self, schema: TableSchema) -> int:
        """Make the files in the target's directory the table's content; how many rows it has then."""
        raise NotImplementedError

    def publish(self, point: Point) -> Published:
        """Make all tables, and `commits`, visible at once."""
        raise NotImplementedError


def initialised(lake: LakeSettings, pipeline: str) -> bool:
    """Has this pipeline published its initial copy into this lake?"""
    raise NotImplementedError
