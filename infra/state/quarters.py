"""Quarters of an hour of a pipeline's batches: what remains of batch lines that were too many to keep.

At one batch in a second, the lines of a day fill the two files of the journal several times. Before the older
file is replaced, its batches are added up here, so that a week can still be shown. The list has the quarters
of eight days.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slotlake.infra.state.line_files import parsed
from slotlake.infra.state.notes import QUARTERS

SECONDS = 900
_DAYS_MAX = 8
SUMS = ("batches", "transactions", "changes", "bytes")


def read_quarters(folder: Path) -> list[dict[str, Any]]:
    """Return the quarters, the oldest first; ``time``: the start of each, in seconds since 1970."""
    quarters = QUARTERS.of(folder).read()
    return quarters if isinstance(quarters, list) else []


def add_quarters(folder: Path, lines: Path) -> None:
    """Add the batches of a file to the quarters.

    Args:
        lines: the file of batch lines.

    Raises:
        OSError: the file cannot be read, or the quarters cannot be written.
    """
    quarters = {int(each["time"]): each for each in read_quarters(folder)}
    records = list(parsed(lines.read_bytes()))
    for record in records:
        add_batch(quarters, record)
    newest = max(quarters, default=0)
    oldest = newest - _DAYS_MAX * 86_400
    QUARTERS.of(folder).write([quarters[start] for start in sorted(quarters) if start >= oldest])


def add_batch(quarters: dict[int, dict[str, Any]], batch: dict[str, Any], seconds: int = SECONDS) -> None:
    """Add one batch, or one sum of batches, to the sum of its time.

    Args:
        quarters: start of a time, in seconds since 1970 → its sums.
        batch: a batch line, or such a sum.
        seconds: how long such a time is.
    """
    start = int(batch["time"] // seconds * seconds)
    quarter = quarters.setdefault(start, {"time": start, "seconds": {}, "lag": None})
    for name in SUMS:
        quarter[name] = quarter.get(name, 0) + batch.get(name, 1 if name == "batches" else 0)
    for step, spent in batch.get("seconds", {}).items():
        quarter["seconds"][step] = round(quarter["seconds"].get(step, 0.0) + spent, 3)
    lags = [lag for lag in (quarter["lag"], batch.get("lag")) if lag is not None]
    quarter["lag"] = max(lags, default=None)
