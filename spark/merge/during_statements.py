"""What holds while Spark runs the statements of a table: session settings, a time limit, a failpoint."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from slotlake.decoder.errors import LakeError
from slotlake.decoder.failpoints import reach
from slotlake.spark.session import bounded
from slotlake.spark.session_errors import SPARK_ERRORS

_MID_STATEMENT_SECONDS = 0.05


class StatementTooLongError(LakeError):
    """Spark was at one statement for too long."""

    retryable = True


@contextmanager
def temporary_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set properties of the session for the time of the context; they would stay for all later statements."""
    for key, value in settings.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            session.conf.unset(key)


@contextmanager
def replaced_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set properties of the session for the time of the context, and give them back what they were before."""
    before = {key: session.conf.get(key, None) for key in settings}
    try:
        with temporary_settings(session, settings):
            yield
    finally:
        for key, value in before.items():
            if value is not None:
                session.conf.set(key, value)


@contextmanager
def failpoint_during(name: str) -> Iterator[None]:
    """Reach a failpoint while Spark is at work, so that a test can end the process."""
    if not os.environ.get("SLOTLAKE_FAILPOINT"):
        yield
        return
    timer = threading.Timer(_MID_STATEMENT_SECONDS, reach, [name])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def within_bounds(session: SparkSession, table: str) -> Iterator[None]:
    """Interrupt a statement that takes too long.

    Raises:
        StatementTooLongError: it was interrupted.
    """
    with bounded(session) as interrupted:
        try:
            yield
        except SPARK_ERRORS:
            if not interrupted:
                raise
            raise StatementTooLongError(
                f"a Spark statement took longer than {interrupted[0] / 3600:g} h and was ended",
                where=f"table {table}",
                way_out="find out what Spark waits for (log, memory, locks of the catalog), then run again; "
                "nothing was published",
            ) from None
