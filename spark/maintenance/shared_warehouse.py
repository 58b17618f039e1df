"""Sees that a cluster's executors write where everybody reads.

On a warehouse that they do not share, an INSERT succeeds and commits, with its files on private disks; only
the next read fails.  So before the first batch a small table is written by executors, and read by executors
and by this process.  A marker in the warehouse says that this was seen, so no later run does it again.

Nothing of this is needed where all of Spark runs on this machine.
"""

from __future__ import annotations

import hashlib
import platform
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from pyspark.sql import SparkSession

from slotlake.decoder.errors import LakeError
from slotlake.spark import lake_files
from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import Catalog, open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.maintenance.removal import executors_folder
from slotlake.spark.maintenance.table_files import TableFiles
from slotlake.spark.names import LakeName, literal
from slotlake.spark.session import bounded, shares_files
from slotlake.spark.session_errors import SPARK_ERRORS, reason
from slotlake.spark.storage.location import Location
from slotlake.spark.tables.metadata import head

# With no executor Spark waits without end.
PROBE_SECONDS_MAX: Final = 300.0
_ROWS: Final = 64  # at most so many executors write, at least one each
_LEFT_SECONDS: Final = 3600
_HELP: Final = "docs/spark.md says what a cluster needs"


def require_shared_warehouse(session: SparkSession, lake: LakeSettings, place: str) -> None:
    """See that executors write where others read, unless that was seen before.

    Args:
        place: which Spark it is: its master, or its address.

    Raises:
        LakeError: they do not, or no executor answers.
    """
    if shares_files(session):
        return
    lake_files.serve(lake)
    marker = _marker(lake, place)
    if lake_files.size(marker) is None:
        probe_executors(session, lake, place)
        with suppress(LakeError):  # somebody else has written it
            lake_files.write_new(marker, place.encode())


def probe_executors(session: SparkSession, lake: LakeSettings, place: str) -> None:
    """Write a table by executors, and read it by executors and by this process.

    Raises:
        LakeError: a file is not there for a reader, or Spark cannot write or does not answer.
    """
    name = LakeName(f"slotlake_probe_{lake.namespace}", f"t{int(time.time())}_{uuid.uuid4().hex[:8]}")
    with open_catalog(lake) as catalog:
        catalog.make_namespace(name.namespace)
        _remove_leftovers(catalog, name.namespace)
        try:
            with _explained(session, lake, place):
                table = name.sql(lake.catalog)
                # Where the lake's tables will be: a server may put it elsewhere, with other keys.
                place_of_table = literal(lake.root / name.namespace / name.table)
                session.sql(
                    f"CREATE TABLE {table} (n bigint) USING iceberg LOCATION {place_of_table}"
                ).collect()
                session.sql(f"INSERT INTO {table} SELECT id FROM range({_ROWS})").collect()
            _require_readable(catalog, name, _where(lake, place))
            with _explained(session, lake, place):
                (row,) = session.sql(f"SELECT count(*) FROM {table} WHERE n >= 0").collect()
            if row[0] != _ROWS:
                raise _not_shared(_where(lake, place), f"they read {row[0]} of {_ROWS} rows")
        finally:
            _remove(catalog, name)


def _require_readable(catalog: Catalog, name: LakeName, where: str) -> None:
    """See that this process reads what Spark's driver wrote, and finds what the executors wrote."""
    try:
        files = TableFiles().data_files(head(load_one(catalog, name).metadata))
        absent = lake_files.absent(file.path for file in files)
    except LakeError as error:
        raise _not_shared(where, f"{error.what} ({error.where})") from error
    if absent:
        raise _not_shared(where, f"{len(absent)} of {len(files)} files that executors wrote are not there")


def _not_shared(where: str, what: str) -> LakeError:
    return LakeError(
        f"Spark's executors do not share the warehouse with slotlake: {what}",
        where=where,
        way_out="put lake.warehouse into an object store (s3://…), or into a folder that all machines mount "
        f"at the same path, or use spark.master: local[*]; {_HELP}",
    )


@contextmanager
def _explained(session: SparkSession, lake: LakeSettings, place: str) -> Iterator[None]:
    with bounded(session, PROBE_SECONDS_MAX) as interrupted:
        try:
            yield
        except SPARK_ERRORS as error:
            what = (
                f"Spark did not write a table of {_ROWS} rows within {interrupted[0]:g} s"
                if interrupted
                else f"Spark's executors cannot write and read the warehouse: {reason(error)}"
            )
            raise LakeError(
                what,
                where=_where(lake, place),
                way_out="see that the cluster has an executor with free cores and memory, and that all its "
                f"machines have the jars, reach the warehouse at this address, and share it; {_HELP}",
            ) from error


def _where(lake: LakeSettings, place: str) -> str:
    return f"warehouse {lake.root}, Spark {place}"


def _marker(lake: LakeSettings, place: str) -> Location:
    machine = "" if lake.is_in_bucket else platform.node()
    digest = hashlib.sha256(f"{place} {machine}".encode()).hexdigest()[:16]
    return executors_folder(lake) / digest


def _remove_leftovers(catalog: Catalog, namespace: str) -> None:
    """Remove the tables of killed attempts."""
    for name in catalog.names():
        began = name.table.removeprefix("t").partition("_")[0]
        if name.namespace == namespace and began.isdigit() and int(began) + _LEFT_SECONDS < time.time():
            _remove(catalog, name)


def _remove(catalog: Catalog, name: LakeName) -> None:
    with suppress(LakeError):  # what cannot be read lies on another machine's disk
        location = load_one(catalog, name).metadata["location"]
        catalog.drop([name])
        lake_files.remove_tree(location)
        catalog.drop_namespace(name.namespace)
