"""The lock of a pipeline: one run at a time on this machine, and nothing to clean up after a crash.

The lock belongs to the kernel (flock): it ends with the process, however that ends.  Where the pipeline file
says that several machines work on the pipeline, `infra.opened.server_lock` is taken too.

Whoever waits has the lock of a second file, the *turn*, and gets the pipeline next.  Without it, a process
that takes the lock again at once after each batch (`slotlake run`) would leave a verification waiting for
ever.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slotlake.decoder.errors import BusyError, ChangeLogError
from slotlake.infra.opened.lock_holder import description, text_of


@contextmanager
def exclusive(folder: Path, pipeline: str, wait_seconds: float = 0.0, step: str = "") -> Iterator[None]:
    """Hold the pipeline's lock.

    Args:
        folder: the state folder, which holds the lock file.
        pipeline: its name, for the error.
        wait_seconds: how long to wait for another process.
        step: what is done under the lock, for who waits.

    Raises:
        BusyError: another process still holds the lock after ``wait_seconds``.
        ChangeLogError: the state folder cannot be written.
    """
    handle = _opened(folder / "lock")
    try:
        with _turn(folder, pipeline, handle, time.monotonic() + wait_seconds) as deadline:
            _acquire(handle, pipeline, deadline, handle)
        with suppress(OSError):  # for users; the lock itself needs no room on a full disk
            os.ftruncate(handle, 0)
            os.pwrite(handle, text_of(description(step or "unknown")).encode(), 0)
        yield
    finally:
        os.close(handle)


@contextmanager
def _turn(folder: Path, pipeline: str, lock: int, deadline: float) -> Iterator[float]:
    """Be the one who gets the lock next; gives the deadline for that."""
    handle = _opened(folder / "lock.turn")
    try:
        _acquire(handle, pipeline, deadline, lock)
        yield deadline
    finally:
        os.close(handle)


def _opened(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ChangeLogError(
            f"the state folder cannot be written: {error.strerror}",
            where=str(path.parent),
            way_out="make that folder writable for this user, or name another place in state.path (if that "
            "is an object store: name another folder in SLOTLAKE_HOME)",
        ) from None


def _acquire(handle: int, pipeline: str, deadline: float, lock: int) -> None:
    """Lock a file; ``lock`` is the pipeline's own, which says who is at work."""
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= deadline:
                holder = (
                    os.pread(lock, 1000, 0).decode(errors="replace").strip()
                    or "a process that did not say who it is"
                )
                raise BusyError(
                    f"another run of pipeline {pipeline!r} is at work",
                    where=holder,
                    way_out="wait until it has ended, then run the command again; nothing has changed",
                ) from None
            time.sleep(0.05)
        else:
            return
