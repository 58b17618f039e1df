"""Why a batch of a table is left to Spark's MERGE."""

from __future__ import annotations


class UnsuitableError(Exception):
    """The batch is one for Spark. Nothing was staged; the message says why."""
