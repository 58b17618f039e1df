"""Directories that are being written, and the removal of those whose writer is dead, on whatever machine.

A change log may be on a disk that containers or machines share; there a process id of another machine means
nothing.  So a writer locks its directory (flock), and the lock ends with the process; a process that can lock
a directory may remove it.  If a directory cannot be locked (NFS), its name gives the writer's machine and
process.  For a process of this machine, /proc says whether it lives.  The directory of another machine is
removed only after nothing was written to it for a day.

Invariant: `remove_leftovers` removes nothing that another living process is writing.
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
# A lock lasts as long as its descriptor is open; who renames or removes the folder knows its path alone.
_lock_handles: dict[Path, int] = {}
_owner_pid = [os.getpid()]
_handles_lock = threading.Lock()


def incoming_path(directory: Path, name: str) -> Path:
    """The path of a directory of this process; `make_incoming` creates it."""
    return directory / f"{_INCOMING}{_writer_name()}-{name}"


def make_incoming(path: Path) -> None:
    """Create the directory, and lock it until it is removed or renamed, or the process has ended."""
    release_renamed()
    if path.is_dir():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_name(f"{_MAKING}{secrets.token_hex(4)}")
    making.mkdir()
    try:
        lock_handle = _lock(making)
        making.rename(path)  # nobody removes it before it is locked
    except BaseException:
        with suppress(OSError):
            making.rmdir()
        raise
    if lock_handle is not None:
        with _handles_lock:
            _lock_handles[path.absolute()] = lock_handle


def remove_leftovers(directory: Path) -> None:
    """Remove the directories that dead processes were writing when they ended."""
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
    """Lock the directory and return the descriptor; None if the file system cannot lock directories.

    Raises:
        OSError: another process has the lock, or the directory does not exist.
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
    """Close the locks of directories that were renamed or removed; in a forked child close all.

    Call it after each rename or removal: an open descriptor prevents a file system from being unmounted.
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
    """``<machine>-<pid>-<start time>``: a later process with the same pid has another start time."""
    return f"{_machine()}-{os.getpid()}-{_start_time(os.getpid())}"


@lru_cache(maxsize=1)
def _machine() -> str:
    """A name for this boot of this machine and for the container's process namespace."""
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
