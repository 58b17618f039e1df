"""Durations as people write them: a number of seconds, or 90s, 10m, 2h, 1d."""

from __future__ import annotations

import re

_TEXT = re.compile(r"^(\d+(?:\.\d+)?)\s*([smhd]?)$")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration_seconds(text: str) -> float:
    """Return the seconds that a text means.

    Raises:
        ValueError: it is no duration.
    """
    match = _TEXT.match(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no duration: write seconds, or 90s, 10m, 2h")
    return float(match[1]) * _SECONDS[match[2]]
