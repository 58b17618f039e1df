"""One run at a time per pipeline on this machine, without leftovers after a crash.

The lock is the kernel's (flock): it ends with the process, however that ends.  Runs on different
machines are kept apart by PostgreSQL (one reader per slot) and by the catalog's compare-and-set.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slotlake.decoder.errors import BusyError, ChangeLogError


@contextmanager
def exclusive(folder: Path, pipeline: str, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold the pipeline's lock.

    Raises:
        BusyError: another process holds it, also after ``wait_seconds``.
        ChangeLogError: the state folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ChangeLogError(
            f"the state folder cannot be written: {error.strerror}",
            where=str(folder),
            way_out="make the pipeline file's folder writable for this user",
        ) from None
    try:
        _acquire(handle, pipeline, time.monotonic() + wait_seconds)
        yield
    finally:
        os.close(handle)


def _acquire(handle: int, pipeline: str, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= deadline:
                holder = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
                raise BusyError(
                    f"another run of pipeline {pipeline!r} is at work",
                    where=f"process {holder}",
                    way_out="wait for it to end, then run again; nothing was changed",
                ) from None
            time.sleep(0.05)
        else:
            with suppress(OSError):  # for people; the lock itself needs no room on a full disk
                os.ftruncate(handle, 0)
                os.pwrite(handle, str(os.getpid()).encode(), 0)
            return
