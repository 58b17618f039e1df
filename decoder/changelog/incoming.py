"""Directories that are being written, and the removal of those whose writer is dead, wherever it lived.

A change log may lie on a disk that containers or machines share, where a process id of another one means
nothing.  So a writer locks its directory (flock), and the lock ends with the process; whoever can lock it
may remove it.  Where a directory cannot be locked (NFS), its name says of which machine and process it is:
of this machine, /proc is asked; another one's is left alone until nothing was written to it for a day.

Invariant: `remove_leftovers` removes nothing that a living process is writing, but for this very process's.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import threading
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

_INCOMING = ".incoming-"
_MAKING = ".making-"
_ABANDONED_SECONDS = 86_400.0
_LOCKED_BY_OTHERS = (errno.EWOULDBLOCK, errno.EACCES)
_lock_handles: dict[Path, int] = {}
_owner_pid = [os.getpid()]
_handles_lock = threading.Lock()


def incoming_path(directory: Path, name: str) -> Path:
    """A place of this process, to be made by `make_incoming`."""
    return directory / f"{_INCOMING}{_writer_name()}-{name}"


def make_incoming(path: Path) -> None:
    """Make the directory, and hold it until it is gone or renamed, or the process has ended."""
    release_renamed()
    if path.is_dir():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_name(f"{_MAKING}{secrets.token_hex(4)}")
    making.mkdir()
    try:
        lock_handle = _lock(making)
        making.rename(path)  # nobody removes it before it is held
    except BaseException:
        with suppress(OSError):
            making.rmdir()
        raise
    if lock_handle is not None:
        with _handles_lock:
            _lock_handles[path.absolute()] = lock_handle


def remove_leftovers(directory: Path) -> None:
    """Remove what dead processes were writing when they ended."""
    if not directory.is_dir():
        return
    release_renamed()
    for path in directory.glob(f"{_INCOMING}*"):
        with _handles_lock:
            mine = _lock_handles.pop(path.absolute(), None)
        if mine is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(mine)
        elif _is_abandoned(path):
            shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(path: Path) -> bool:
    try:
        lock_handle = _lock(path)
    except OSError:
        return False
    if lock_handle is not None:
        os.close(lock_handle)
        return True
    machine, pid, start_time = [*path.name.removeprefix(_INCOMING).split("-")[:3], "", "", ""][:3]
    if machine != _machine():
        return _untouched_seconds(path) > _ABANDONED_SECONDS
    return not pid.isdigit() or int(pid) == os.getpid() or start_time != _start_time(int(pid))


def _lock(path: Path) -> int | None:
    """A descriptor with which the directory is locked; None where directories cannot be.

    Raises:
        OSError: another process holds it; or it is not there.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if error.errno in _LOCKED_BY_OTHERS:
            raise
        return None
    return handle


def release_renamed() -> None:
    """Close what is not there any more under its name; all of it in a forked child, whose parent holds it.

    Called wherever a directory was renamed or removed: a descriptor keeps a file system from being unmounted.
    """
    with _handles_lock:
        child = _owner_pid[0] != os.getpid()
        _owner_pid[0] = os.getpid()
        for path in [path for path in _lock_handles if child or not path.is_dir()]:
            os.close(_lock_handles.pop(path))


def _untouched_seconds(path: Path) -> float:
    newest = 0.0
    with suppress(OSError):
        newest = max(each.stat().st_mtime for each in [path, *path.rglob("*")])
    return time.time() - newest


def _writer_name() -> str:
    """``<machine>-<pid>-<start time>``: a number that is given again to another process does not match."""
    return f"{_machine()}-{os.getpid()}-{_start_time(os.getpid())}"


@lru_cache(maxsize=1)
def _machine() -> str:
    """Of this boot of this machine, and of the container's own numbering of processes."""
    parts = [os.uname().nodename]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    with suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:12]


def _start_time(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "0"
