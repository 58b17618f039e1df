"""Logs as JSON: one object a line on standard error, with the pipeline, the LSN and the batch at work.

Row values reach no log: slotlake's own lines have names, counts, LSNs and times; of an exception only its
class is written, because the text of a library's error may quote what it met.
"""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

# Libraries that log what they do; only what is wrong is of interest.
_QUIET = ("py4j", "pyspark", "pyiceberg", "great_expectations", "botocore", "urllib3", "numba")
_EMPTY: dict[str, Any] = {"pipeline": None, "lsn": None, "batch": None}
_at_work: ContextVar[dict[str, Any]] = ContextVar("slotlake_at_work", default=_EMPTY)
_state = {"json": False}


def at_work(**fields: str | None) -> None:
    """Set what the following lines are about: ``pipeline``, ``lsn``, ``batch``."""
    _at_work.set({**_at_work.get(), **fields})


def is_json() -> bool:
    """Return whether this process logs as JSON."""
    return _state["json"]


def log_as_json() -> None:
    """Log as JSON from now on, in this process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    _state["json"] = True


class JsonFormatter(logging.Formatter):
    """A line for each record; ``extra={"fields": {…}}`` adds fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            **_at_work.get(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__name__
        return json.dumps(line, ensure_ascii=False, default=str)
