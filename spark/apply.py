"""Applies a batch: folds each touched table and merges it into the table's branch ``stage``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from spark.lake import LakeSettings


@dataclass(frozen=True)
class TableApplied:
    """What applying did to one lake table. All counts are rows.

    Attributes:
        changes: row changes of this table in the batch.
        folded: keys touched (rows inserted, for a table without a key).
        conflicts: changes that met a row that should not, or lacked one that should, be there.
    """

    source_table: str
    changes: int
    folded: int
    conflicts: int = 0


@dataclass(frozen=True)
class Applied:
    """A batch staged in the lake, or found published.

    Attributes:
        tables: lake table ("namespace.table") → what was done to it.
    """

    batch: str
    already_published: bool
    tables: Mapping[str, TableApplied] = field(default_factory=dict)


def apply_batch(session: SparkSession, lake: LakeSettings, batch: object, pipeline: str) -> Applied:
    """Stage a change log batch; readers see nothing of it until it is published.

    Idempotent: staging again starts from ``main`` and gives the same; a published batch is left alone.

    Args:
        batch: a :class:`decoder.changelog.Batch`.

    Raises:
        ApplyError: the batch does not start at the lake's position, or holds a change that the lake
            cannot take (a table it lacks, a column dropped or retyped, …), named with the way out.
        LakeError: catalog or warehouse cannot be reached.
    """
    raise NotImplementedError


def pending(lake: LakeSettings, batch: object) -> bool:
    """Does the lake still lack this batch? Asked of Iceberg alone.

    Raises:
        ApplyError: the batch does not follow what the lake holds.
    """
    raise NotImplementedError
