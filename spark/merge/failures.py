"""A statement that Spark could not carry out, in words: what was at fault, the table, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from slotlake.decoder.errors import LakeError
from slotlake.spark import lake_files
from slotlake.spark.catalog.base import Loaded
from slotlake.spark.java import java_ended
from slotlake.spark.session_errors import (
    SPARK_ERRORS,
    StageConflictError,
    StoreFailure,
    is_conflict,
    reason,
    store_failure,
)
from slotlake.spark.storage.base import PassingStoreError, StoreRefusedError, StoreUnavailableError
from slotlake.spark.storage.location import Location

# Iceberg's own words (TableMetadata).
_OLDER_THAN_THE_LAST = ("Invalid update timestamp", "Invalid snapshot timestamp", "Expected sorted")


@contextmanager
def explained(table: Loaded) -> Iterator[None]:
    """Raise what Spark raises as an error of ours, without row values.

    Raises:
        StageConflictError: another statement changed the table meanwhile.
        JavaEndedError: the Java of this process has ended.
        StoreUnavailableError, StoreRefusedError: the object store failed.
        LakeError: anything else.
    """
    try:
        yield
    except (*SPARK_ERRORS, ConnectionError) as error:
        if (ended := java_ended(error)) is not None:
            raise ended from error
        if isinstance(error, ConnectionError):
            raise
        if is_conflict(error):
            raise _failed(StageConflictError, table, reason(error)) from error
        if Location(table.location).is_in_bucket:
            failure = store_failure(error)
            if failure is not None:
                raise _failed_by_store(table, failure) from error
            lake_files.look_at(table.location)  # Spark may say of a store that fails: there is no such table
        if any(words in str(error) for words in _OLDER_THAN_THE_LAST):
            raise LakeError(
                "Spark could not change the table: its last change is later than the time by Spark's clock",
                where=f"table {table.name}",
                way_out="correct the clocks of this machine and of Spark's; if the clock of the last change "
                "was ahead, wait until that time. Nothing was published",
            ) from error
        raise _failed(LakeError, table, reason(error)) from error


def _failed(kind: type[LakeError], table: Loaded, why: str) -> LakeError:
    return kind(
        f"Spark could not change the table: {why}",
        where=f"table {table.name}",
        way_out="run again; if it fails again, Spark's own log says more. Nothing was published",
    )


def _failed_by_store(table: Loaded, failure: StoreFailure) -> LakeError:
    """The error that names the object store; a connection that broke may not break again."""
    kind = StoreRefusedError if failure.refused else StoreUnavailableError
    return (PassingStoreError if failure.passing else kind)(
        f"Spark could not change the table, because the object store failed: {failure.what}",
        where=f"table {table.name}, {failure.object or Location(table.location).parent.parent}",
        way_out="see that the store answers, and that the keys are right and not expired (lake.storage); "
        "then run the same command again: nothing was published",
    )
