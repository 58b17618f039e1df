"""Rows on their way to Spark: in a file where all of Spark is on this machine, else as Arrow in the session.

The executors of a cluster see no file of this machine, and without a Hadoop file system for it Spark reads no
plain Parquet from an object store; what was measured is in docs/adr/0050.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from slotlake.spark import exchange
from slotlake.spark.merge.during_statements import replaced_settings
from slotlake.spark.merge.sizes import cores_of
from slotlake.spark.session import is_remote, shares_files

SLICE_BYTES: Final = 64 << 20
_BATCH_ROWS: Final = 64 * 1024
# Rows travel inside the tasks that read them, and Spark refuses a task of 128 MB.
_TASK_BYTES: Final = 16 << 20
# A smaller task is not worth its start, and what it writes not a file of its own.
_TASK_BYTES_MIN: Final = 4 << 20
# Rows whose number Spark knows it decodes in the driver: 600,000 keys took it 2 s of CPU time.
_ROWS_HERE_MAX: Final = 10_000
_LEAVES: Final = "spark.sql.leafNodeDefaultParallelism"
# Of a driver in this process: each batch of rows becomes a task, unless all are few.
_ROWS_OF_A_BATCH: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_FEW_BYTES: Final = "spark.sql.execution.arrow.localRelationThreshold"


@contextmanager
def view_of_rows(
    session: SparkSession, rows: pa.Table, schema: str, directory: Path, prefix: str, *, sized: bool = True
) -> Iterator[str]:
    """Make a temporary view of rows for the time of the context; yields its name.

    Args:
        schema: their columns as DDL of Spark SQL, in the order that they have.
        directory: for a file; who calls removes it.
        sized: whether Spark must know how much it is, because it chooses a join by that.

    Raises:
        LakeError: the file cannot be written.
    """
    view = f"{prefix}_{uuid.uuid4().hex}"
    with _enough_tasks(session, rows):
        file = directory / f"{view}.parquet"
        frame_of(session, rows, schema, file, sized=sized).createOrReplaceTempView(view)
        try:
            yield view
        finally:
            session.catalog.dropTempView(view)


def frame_of(
    session: SparkSession, rows: pa.Table, schema: str, file: Path, *, sized: bool = True
) -> DataFrame:
    """Return rows as Spark's.

    Args:
        schema: their columns as DDL of Spark SQL, in the order that they have.
        file: where they are written to, if Spark is to read a file.
        sized: whether Spark must know how much it is, because it chooses a join by that.

    Raises:
        LakeError: the file cannot be written.
    """
    if shares_files(session):
        return session.read.schema(schema).parquet(exchange.write_parquet(rows, file).as_uri())
    return frame_by_session(session, rows, schema, sized=sized)


def frame_by_session(session: SparkSession, rows: pa.Table, schema: str, *, sized: bool = True) -> DataFrame:
    """Return rows as Spark's, sent through the session.

    Args:
        schema: their columns as DDL of Spark SQL, in the order that they have.
        sized: whether Spark must know how much it is, because it chooses a join by that.
    """
    # Spark takes an empty batch for the end: it would lose all rows after it, without a word.
    batches = [batch for batch in rows.to_batches() if batch.num_rows]
    rows = pa.Table.from_batches(batches, rows.schema)
    tasks = tasks_of(session, rows.nbytes)
    few = tasks < 2 and (sized or rows.num_rows < _ROWS_HERE_MAX)
    if is_remote(session) or few:  # a server divides the rows when it reads them
        return session.createDataFrame(rows, schema)
    # By itself the driver cuts batches of ten thousand rows, and an INSERT writes a file for each.
    divided = {_ROWS_OF_A_BATCH: str(-(-rows.num_rows // tasks)), _FEW_BYTES: "0"}
    with replaced_settings(session, divided):
        return session.createDataFrame(rows.combine_chunks(), schema)


def tasks_of(session: SparkSession, size: int) -> int:
    """Return how many tasks read rows that go through the session: all cores work, none for long alone.

    Args:
        size: of the rows, in bytes.
    """
    few = size // _TASK_BYTES_MIN
    if few < 2:
        return 1
    cores, least = cores_of(session), -(-size // _TASK_BYTES)
    return min(few, cores) if least <= cores else -(-least // cores) * cores


def read_files(files: Sequence[Path], names: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of Parquet files in tables of about `SLICE_BYTES`; a column that a file lacks is NULL."""
    batches: list[pa.Table] = []
    size = 0
    for batch in _batches(files, names):
        batches.append(batch)
        size += batch.nbytes
        if size >= SLICE_BYTES:
            yield pa.concat_tables(batches, promote_options="default")
            batches, size = [], 0
    if batches:
        yield pa.concat_tables(batches, promote_options="default")


def _batches(files: Iterable[Path], names: Sequence[str]) -> Iterator[pa.Table]:
    for path in files:
        with pq.ParquetFile(path) as file:
            present = [name for name in names if name in file.schema_arrow.names]
            for batch in file.iter_batches(_BATCH_ROWS, columns=present):
                columns = [
                    batch.column(name) if name in present else pa.nulls(batch.num_rows) for name in names
                ]
                yield pa.Table.from_arrays(columns, list(names))


@contextmanager
def _enough_tasks(session: SparkSession, rows: pa.Table) -> Iterator[None]:
    """Have a Connect server divide the rows into so many tasks while it reads them."""
    if shares_files(session) or not is_remote(session) or (tasks := tasks_of(session, rows.nbytes)) < 2:
        yield
        return
    with replaced_settings(session, {_LEAVES: str(tasks)}):
        yield
