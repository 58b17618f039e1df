"""What Spark raises, and what of it may be told: never a row value, which its messages can hold."""

from __future__ import annotations

import re
from dataclasses import dataclass

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from slotlake.decoder.errors import LakeError

# A classic session hands on what Java threw and PySpark has no class for.
SPARK_ERRORS = (PySparkException, Py4JError)
_JAVA_CLASS = re.compile(r"\(([a-z]\w*(?:\.[\w$]+)+(?:Exception|Error))\)")
_CONFLICTS = ("ValidationException", "CommitFailedException", "CommitStateUnknownException")
_NO_SPACE = "No space left on device"
# What the SDK of the store says, and after how many tries; or what a connection to it died of.
_SDK = re.compile(r"software\.amazon\.awssdk\.[\w.$]+Exception: ([^\n]*?) \(SDK Attempt Count: (\d+)\)")
_STATUS = re.compile(r" \(Service: S3, Status Code: (\d+)[^)]*\)")
_BROKEN = re.compile(r"(?:java\.net\.Socket\w*|ConnectionClosed|SSL\w*)Exception: [^\n]*")
_OBJECT = re.compile(r"\bs3[an]?://[^\s'\",)]+")
_IN_A_TASK = "Job aborted due to stage failure"
# A catalog in PostgreSQL, through Java: the class of what Spark raises says nothing of it.
_DENIED = re.compile(r"ERROR: (permission denied for \w+ \"?\w+\"?)")
_CATALOG_FULL = ("SQLITE_FULL", "database or disk is full")


class StageConflictError(LakeError):
    """Another statement changed the branch meanwhile, as one that a killed run left in a Spark server."""

    retryable = True


@dataclass(frozen=True)
class StoreFailure:
    """What an object store did to Spark.

    Attributes:
        what: its answer, and after how many tries; or what the connection died of.
        object: its location, where Spark says it.
        passing: the connection broke, which a further try may mend; else the SDK has tried again itself.
        refused: the keys do not allow it.
    """

    what: str
    object: str | None
    passing: bool
    refused: bool


def store_failure(error: Exception) -> StoreFailure | None:
    """Return what an object store did to a statement; None if it is not at fault."""
    text = str(error)
    named = _OBJECT.search(text)
    place = named[0] if named else None
    if sdk := _SDK.search(text):
        status, tries = _STATUS.search(sdk[1]), int(sdk[2])
        answer = f"{_STATUS.sub('', sdk[1])}{f' (status {status[1]})' if status else ''}"
        times = f"; tried {tries} times" if tries > 1 else ""
        refused = status is not None and status[1] in ("401", "403")
        return StoreFailure(f"{answer}{times}", place, passing=False, refused=refused)
    broken = _BROKEN.search(text)
    # A task reads and writes nothing but the store; outside of tasks a connection may be the catalog's.
    if broken is None or (place is None and _IN_A_TASK not in text):
        return None
    return StoreFailure(broken[0].rpartition("Exception: ")[2], place, passing=True, refused=False)


def reason(error: Exception) -> str:
    """The kind of error, in words that hold no row value."""
    text = str(error)
    if _NO_SPACE in text:
        return "no space left on the device"
    if any(part in text for part in _CATALOG_FULL):
        return "the catalog's database or disk is full"
    if denied := _DENIED.search(text):
        return f"the catalog's database says: {denied[1]}"
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.getClass().getName())
    java = _JAVA_CLASS.search(text)
    if java:
        return java[1]
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    return str(condition or type(error).__name__)


def is_conflict(error: Exception) -> bool:
    """Return whether a statement failed because another one changed the table's branch meanwhile."""
    return any(name in str(error) for name in _CONFLICTS)


def message(error: Exception) -> str:
    """Spark's own words on a statement that a user wrote, without Java's stack."""
    text = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    lines = [line for line in text.split("JVM stacktrace")[0].splitlines() if line.strip()]
    return " ".join(lines[:3])[:500] or type(error).__name__
