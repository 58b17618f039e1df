"""Marks that a process sets while it is at some long work of a pipeline: whoever looks on sees if it lives.

A mark is a locked file (flock), and the lock ends with the process, however that ends.  Process ids would not
do: containers and machines may share a state folder, and there one's number is nobody's, or somebody else's.

Invariant: a mark that is set is this process's; a child that it forks has none.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

_set: dict[Path, int] = {}


def set_mark(path: Path) -> None:
    """Set the mark, if this process has not; where the disk does not take it there is none."""
    key = path.absolute()
    if key in _set:
        return
    with suppress(OSError):
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # held by who looks on at most, for a moment
        except OSError:
            os.close(handle)
            raise
        _set[key] = handle


def unset_mark(path: Path) -> None:
    """The work has ended; the process lives on."""
    if (handle := _set.pop(path.absolute(), None)) is not None:
        os.close(handle)


def is_marked(path: Path) -> bool:
    """Is a living process, wherever it runs, at that work?"""
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
    while _set:
        os.close(_set.popitem()[1])


os.register_at_fork(after_in_child=_in_child)
