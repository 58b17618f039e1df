"""Sizes that follow the table and the Spark that works on it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

from slotlake.spark.properties import SHUFFLE_PARTITIONS, SHUFFLE_PARTITIONS_MIN
from slotlake.spark.session import given, is_remote, known_of, shares_files
from slotlake.spark.tables.metadata import Metadata, head, summary

# Of a table's files, which hold several times as much once they are read.
_PARTITION_BYTES: Final = 64 << 20
# Where there are more cores than such parts, they are made smaller, so that no core is idle.
_PARTITION_BYTES_MIN: Final = 8 << 20
_PARTITIONS_PER_CORE: Final = 2
_PARTITIONS_MAX: Final = 20_000
_CORES_SECONDS: Final = 60.0  # a server is asked again after this time: executors come and go
# What is broadcast is in the heap twice for a moment, and Spark gives its heap to more than that.
_HEAP_SHARE: Final = 10
_HEAP_DEFAULT: Final = "1g"
_MEMORY: Final = re.compile(r"^(\d+)([kmgt]?)b?$", re.IGNORECASE)
_UNITS: Final = {"": 20, "k": 10, "m": 20, "g": 30, "t": 40}  # Spark takes a bare number for megabytes


@contextmanager
def shuffle_partitions(session: SparkSession, metadata: Metadata) -> Iterator[None]:
    """Shuffle a large table in as many parts as its size and the cores ask for, for the time of the context.

    A small table is left as it is: adaptive execution joins parts that are too small, and each costs a task.
    A value of the pipeline file (``spark.conf``) stays.
    """
    partitions = SHUFFLE_PARTITIONS_MIN
    if given(session, SHUFFLE_PARTITIONS) is None:
        partitions = partitions_of(session, metadata)
    if partitions == SHUFFLE_PARTITIONS_MIN:
        yield
        return
    session.conf.set(SHUFFLE_PARTITIONS, str(partitions))
    try:
        yield
    finally:
        session.conf.set(SHUFFLE_PARTITIONS, str(SHUFFLE_PARTITIONS_MIN))


def partitions_of(session: SparkSession, metadata: Metadata) -> int:
    """Return in how many parts a table is shuffled."""
    size = int(summary(head(metadata)).get("total-files-size", 0))
    partitions, most = -(-size // _PARTITION_BYTES), size // _PARTITION_BYTES_MIN
    if most > SHUFFLE_PARTITIONS_MIN:
        partitions = max(partitions, min(most, _PARTITIONS_PER_CORE * cores_of(session)))
    return min(_PARTITIONS_MAX, max(SHUFFLE_PARTITIONS_MIN, partitions))


def broadcast_bytes_max(session: SparkSession) -> int:
    """Return how much of a batch may be broadcast: a share of the smallest heap that must hold it."""
    heaps = [str(session.conf.get("spark.driver.memory", _HEAP_DEFAULT))]
    if not shares_files(session):
        heaps.append(str(session.conf.get("spark.executor.memory", _HEAP_DEFAULT)))
    return min(map(_bytes, heaps)) // _HEAP_SHARE


def cores_of(session: SparkSession) -> int:
    """Return how many tasks Spark runs at a time: it cuts a range in so many parts."""
    if not is_remote(session):
        return int(session.sparkContext.defaultParallelism)
    known = known_of(session)
    asked, cores = known.cores
    if not cores or time.monotonic() - asked > _CORES_SECONDS:
        parts = f"SELECT spark_partition_id() AS part FROM range({_PARTITIONS_MAX})"
        (row,) = session.sql(f"SELECT 1 + max(part) FROM ({parts})").collect()
        asked, cores = known.cores = time.monotonic(), int(row[0])
    return cores


def _bytes(text: str) -> int:
    match = _MEMORY.match(text.strip())
    return _bytes(_HEAP_DEFAULT) if match is None else int(match[1]) << _UNITS[match[2].lower()]
