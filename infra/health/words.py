"""Numbers and times as the pages write them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
MASK = "•••"
_RUN_CHARS = 24
# Of the levels of `model.LEVELS`: seen before a word is read.
SYMBOLS = {"broken": "✕", "warning": "!", "unknown": "?", "well": "✓"}


def size(count: float | None) -> str:
    """Return bytes with a unit, as ``1.4 GB`` (steps of 1024); a dash for None."""
    if count is None:
        return "–"
    number, units = float(count), list(_UNITS)
    while abs(number) >= 1024 and len(units) > 1:
        number /= 1024
        del units[0]
    return f"{number:,.0f} {units[0]}" if units[0] in {"B", "kB"} else f"{number:,.1f} {units[0]}"


def spent(seconds: float | None) -> str:
    """Return a duration, as ``0.4 s``, ``12 min``, ``3.5 h``, ``2.1 days``; a dash for None."""
    if seconds is None:
        return "–"
    for unit, name in ((86_400.0, "days"), (3600.0, "h")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f} {name}"
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def moment(seconds: float | None) -> str:
    """Return a time in UTC, as ``2026-11-23 14:05:09``; a dash for None."""
    if seconds is None:
        return "–"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def count(number: float | None) -> str:
    """Return a number with separators; a dash for None."""
    return "–" if number is None else f"{number:,.0f}"


def rows_differ(number: int) -> str:
    """Return how many rows differ, in words."""
    return "1 row differs" if number == 1 else f"{number:,} rows differ"


def scope(name: str) -> str:
    """Return which rows a verification compared, in words: of `full`, `changed`, `rolling`, or several."""
    said = {"full": "all", "changed": "those that changed", "rolling": "slices"}
    return ", ".join(said.get(each, each) for each in name.split(", "))


def rows_rate(number: float | None) -> str:
    """Return rows in a second, as ``12.5/s``."""
    if number is None:
        return "–"
    return f"{number:,.{0 if number >= 100 or number == 0 else 1 if number >= 1 else 2}f}/s"


def key_text(key: Mapping[str, str | None], shown: bool) -> str:
    """Return the key of a row.

    Args:
        key: column → PostgreSQL's text of the value.
        shown: False replaces every value, NULL too, by dots.
    """
    values = {name: MASK if not shown else "NULL" if text is None else text for name, text in key.items()}
    return ", ".join(f"{name}={text}" for name, text in values.items())


def batch_end(name: str) -> str:
    """Return the LSN at which a batch ends, from its name ``<start>-<end>``; other names as they are."""
    end = name.rpartition("-")[2]
    try:
        position = int(end, 16)
    except ValueError:
        return name
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}" if len(end) == 16 else name


def run_text(name: str) -> str:
    """Return a run of Airflow's, as ``scheduled 14:05:09``; another name without its end, if it is long."""
    kind, _, moment_text = name.partition("__")
    try:
        return f"{kind} {datetime.fromisoformat(moment_text):%H:%M:%S}"
    except ValueError:
        return name if len(name) <= _RUN_CHARS else f"{name[:_RUN_CHARS]}…"
