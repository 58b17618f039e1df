"""Counters of a pipeline that only grow: what Prometheus calls counters and histograms.

They are one JSON file in the journal's folder. A change of them is made under a lock of the operating system,
because a verification and a sync of the same pipeline may end at the same time. Invariant: if the file is
lost or damaged, the counters begin again at zero, which Prometheus understands.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slotlake.infra.state.notes import TOTALS

Totals = dict[str, Any]
# Upper limits in seconds; one more bucket has all that is above.
SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_LOCK = "totals.lock"
_LABELS_MAX = 1000  # a counter with a label does not grow beyond so many values of it


def read_totals(folder: Path) -> Totals:
    """Return the counters; ``since``: when they began, in seconds since 1970 (missing: none yet)."""
    return TOTALS.of(folder).mapping()


@contextmanager
def changed_totals(folder: Path) -> Iterator[Totals]:
    """Lend the counters for a change, and write them.

    Raises:
        OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        totals = read_totals(folder)
        totals.setdefault("since", time.time())
        yield totals
        TOTALS.of(folder).write(totals)
    finally:
        os.close(handle)


def add(totals: Totals, name: str, amount: float) -> None:
    """Add to a counter without a label.

    Args:
        amount: what is added.
    """
    totals[name] = _number(totals.get(name)) + amount


def add_labelled(totals: Totals, name: str, amounts: Mapping[str, float]) -> None:
    """Add to a counter with one label; a new value of the label is dropped if there are too many already.

    Args:
        amounts: value of the label → what is added.
    """
    counter = totals.setdefault(name, {})
    for label, amount in amounts.items():
        if label in counter or len(counter) < _LABELS_MAX:
            counter[label] = _number(counter.get(label)) + amount


def observe(totals: Totals, name: str, label: str, seconds: float) -> None:
    """Add an observation to a histogram.

    Args:
        seconds: what was measured.
    """
    histogram = totals.setdefault(name, {}).get(label, {})
    counts = list(histogram.get("counts", ()))
    if len(counts) != len(SECONDS) + 1:
        histogram, counts = {}, [0] * (len(SECONDS) + 1)
    counts[sum(seconds > limit for limit in SECONDS)] += 1
    totals[name][label] = {
        "counts": counts,
        "count": int(_number(histogram.get("count"))) + 1,
        "sum": round(_number(histogram.get("sum")) + seconds, 6),
    }


def add_totals(totals: Totals, more: Mapping[str, Any]) -> None:
    """Add counters to counters; a damaged one adds nothing.

    Args:
        more: what is added.
    """
    for name, value in more.items():
        if name == "since":
            totals[name] = min(_number(value), totals.get(name, math.inf))
        elif isinstance(value, int | float):
            add(totals, name, value)
        elif isinstance(value, dict):
            _add_several(totals, name, value)


def _add_several(totals: Totals, name: str, several: Mapping[str, Any]) -> None:
    counter = totals.setdefault(name, {})
    for label, value in several.items():
        if isinstance(value, int | float):
            add_labelled(totals, name, {label: value})
        elif isinstance(value, dict) and len(value.get("counts", ())) == len(SECONDS) + 1:
            known = counter.get(label, {"counts": [0] * len(value["counts"]), "count": 0, "sum": 0.0})
            counter[label] = {
                "counts": [a + b for a, b in zip(known["counts"], value["counts"], strict=True)],
                "count": int(known["count"] + value["count"]),
                "sum": round(known["sum"] + value["sum"], 6),
            }


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0
