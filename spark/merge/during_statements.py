"""What holds while Spark runs the statements of a table: session settings, and a failpoint for tests."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from slotlake.decoder.failpoints import reach

_MID_STATEMENT_SECONDS = 0.05


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
def failpoint_during(name: str) -> Iterator[None]:
    """Reach a failpoint while Spark is at work, so that a test can end the process.

    Args:
        name: of the failpoint.
    """
    if not os.environ.get("SLOTLAKE_FAILPOINT"):
        yield
        return
    timer = threading.Timer(_MID_STATEMENT_SECONDS, reach, [name])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
