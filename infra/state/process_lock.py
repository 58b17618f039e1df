"""Locked files that show that a process is alive while it does long work of a pipeline.

A process locks a file (flock) while it works, and the lock ends with the process, however that ends.  Process
ids cannot replace this: containers and machines may share a state folder, and the id of a process in one of
them means nothing, or another process, in the others.

Invariant: a lock that this module has taken belongs to this process; a forked child has no lock.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

# A lock lasts as long as its descriptor is open, and a forked child has to close those of its parent.
_handles: dict[Path, int] = {}


def take_process_lock(path: Path) -> None:
    """Lock the file, unless this process has locked it; if the disk refuses the file, there is no lock."""
    key = path.absolute()
    if key in _handles:
        return
    with suppress(OSError):
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # at most `is_process_alive` holds it, for a moment
        except OSError:
            os.close(handle)
            raise
        _handles[key] = handle


def release_process_lock(path: Path) -> None:
    """Release the lock: the work has ended, but the process continues."""
    if (handle := _handles.pop(path.absolute(), None)) is not None:
        os.close(handle)


def is_process_alive(path: Path) -> bool:
    """Return whether a process, on any machine or in any container, holds the lock."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _in_child() -> None:
    while _handles:
        os.close(_handles.popitem()[1])


os.register_at_fork(after_in_child=_in_child)
