"""Time that passes for rolling verifications."""

from __future__ import annotations

import time
from typing import Any

from slotlake.infra.verify.outcome import changed_verified


def let_pass(pipeline: Any, seconds: float) -> None:
    """Make all times of the note older."""
    with changed_verified(pipeline) as verified:
        verified["credit_from"] = verified.get("credit_from", time.time()) - seconds
        for entry in verified["tables"].values():
            for note in entry.get("slices", ()):
                note["time"] -= seconds
