"""Who belongs to a session (setsid(2)): Airflow gives tasks process groups of their own, never sessions.

So the session is what holds all of a local Airflow together, also after the process that began it is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path


def members(session: int) -> set[int]:
    """Ids of the running processes of a session; zombies do not run."""
    pids = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields and fields[0] not in ("Z", "X") and int(fields[3]) == session:
                pids.add(int(entry.name))
    return pids


def kill_all(session: int, *, but: int | None = None) -> None:
    """SIGKILL each member until none is left; they may start others meanwhile."""
    while running := members(session) - {but}:
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _stat(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the state on (proc(5)); the name before them may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
