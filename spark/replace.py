"""Replaces the whole content of a lake table by rows read again from the source at an exact LSN."""

from __future__ import annotations

from pyspark.sql import SparkSession

from spark.commits import Point
from spark.initial import CopyTarget
from spark.lake import LakeSettings
from spark.publish import Published
from spark.tables import TableSchema


class Replacement:
    """``with Replacement.begin(...) as it``: write Parquet files to it.target, then it.publish(point).

    ``point.position`` must be the lake's position: sync up to the snapshot's LSN first.  A table that
    the lake lacks is not for this: add it through :class:`spark.initial.InitialCopy`.
    """

    target: CopyTarget

    @classmethod
    def begin(cls, session: SparkSession, lake: LakeSettings, pipeline: str, schema: TableSchema) -> Replacement:
        """Make a place for the files, in the shape that the lake's table has.

        Raises:
            ApplyError: the source's columns no longer fit the lake's.
        """
        raise NotImplementedError

    def __enter__(self) -> Replacement:
        return self

    def __exit__(self, *failure: object) -> None:
        raise NotImplementedError

    def publish(self, point: Point) -> Published:
        """Stage the new content and publish it with kind ``backfill``."""
        raise NotImplementedError
