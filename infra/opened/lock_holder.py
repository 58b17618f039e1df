"""Who has a lock of a pipeline: host, process, since when, and which step, in words."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime


def description(step: str) -> dict[str, str]:
    """Return who this process is and what it does, for those who wait for it."""
    since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return {"host": socket.gethostname(), "pid": str(os.getpid()), "since": since, "step": step}


def text_of(holder: Mapping[str, str]) -> str:
    """Return a description as a user reads it.

    Args:
        holder: as `description` returns it.
    """
    return f"process {holder['pid']} on {holder['host']}, since {holder['since']}, step {holder['step']}"
