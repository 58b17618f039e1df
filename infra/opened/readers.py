"""Who reads an older point of the lake for long: maintenance leaves the files of such a point alone.

A verification reads without the pipeline's lock.  Meanwhile its point may stop being a kept one, and
maintenance would remove its files.  So a reader has a locked file in the state folder as long as it reads;
its time is when the reader began.  Invariant: the lock ends with the process, so nothing must be cleaned up.

Machines that share no folder (`state.path` in an object store) do not see each other's readers: there a point
that is not kept any more stays for `maintenance.unused_minutes`.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slotlake.infra.state.process_lock import is_process_alive, release_process_lock, take_process_lock

_FOLDER = "readers"
_MARGIN_SECONDS = 60.0
_numbers = itertools.count()


@contextmanager
def reading_noted(state_dir: Path) -> Iterator[None]:
    """Keep the lake's newest point readable while this lasts."""
    place = state_dir / _FOLDER / f"{os.uname().nodename}-{os.getpid()}-{next(_numbers)}"
    with suppress(OSError):  # a full disk: the reader may have to begin again, no more
        place.parent.mkdir(parents=True, exist_ok=True)
    take_process_lock(place)
    try:
        yield
    finally:
        release_process_lock(place)
        place.unlink(missing_ok=True)


def seconds_read(state_dir: Path) -> float:
    """Return for how long the oldest reader at work has been reading; 0 if none is at work."""
    longest, folder = 0.0, state_dir / _FOLDER
    for place in folder.iterdir() if folder.is_dir() else ():
        if is_process_alive(place):
            longest = max(longest, time.time() - place.stat().st_mtime + _MARGIN_SECONDS)
        else:
            place.unlink(missing_ok=True)
    return longest
