"""Processes named so that a number that is given again to another one does not match."""

from __future__ import annotations

from pathlib import Path


def process_mark(pid: int) -> str:
    """``<pid>-<start time>``."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except OSError:
        return f"{pid}-0"
    return f"{pid}-{after_name.split()[19]}"


def is_alive(mark: str) -> int | None:
    """The process id if that process still runs."""
    pid = int(mark.partition("-")[0])
    return pid if Path(f"/proc/{pid}").exists() and process_mark(pid) == mark else None
