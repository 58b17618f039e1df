"""Starting a program so that it can be found and ended: its own session, ended by process id.

A program that is to go when we go is started through ``_GUARD``, a few lines of Python that ask the kernel
for a signal at the parent's end (prctl(2), PR_SET_PDEATHSIG) and then become the program.  Doing the same
between fork and exec in this process (``preexec_fn``) may deadlock where there are threads.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_GUARD = """
import ctypes, os, sys
parent, number, user, group = map(int, sys.argv[1:5])
if user != os.geteuid():
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
ctypes.CDLL(None).prctl(1, number)
if os.getppid() != parent:
    sys.exit("the parent ended before this program began")
os.execv(sys.argv[5], sys.argv[5:])
"""


def start(
    command: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    user: tuple[int, int] | None = None,
    at_parents_end: signal.Signals | None = None,
    umask: int = -1,
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, so that Ctrl-C in the terminal reaches us and not it.

    Args:
        command: the first is a full path.
        log: standard output and error are appended to it.
        environment: its variables; the caller's when not given.
        user: user and group id to run as; the caller's when not given.
        umask: its own; the caller's when not given.
        at_parents_end: the signal it gets when the thread that started it ends, however that ends.
    """
    uid, gid = user or (os.geteuid(), os.getegid())
    if user or at_parents_end:
        number = int(at_parents_end or 0)
        identity = [str(os.getpid()), str(number), str(uid), str(gid)]
        command = [sys.executable, "-I", "-S", "-c", _GUARD, *identity, *command]
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=None if environment is None else dict(environment),
            start_new_session=True,
            umask=umask,
        )


def end_group(leader: int, *, seconds_max: float = 20.0) -> None:
    """End a session that ``start`` made: ask first, insist after ``seconds_max``."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, number)
        give_up = time.monotonic() + seconds_max
        while time.monotonic() < give_up:
            if not group_alive(leader):
                return
            time.sleep(0.05)


def group_alive(leader: int) -> bool:
    """True while any process of the group runs; collects the leader if it is our child."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(leader, os.WNOHANG)
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    return True


def command_line(pid: int) -> list[str]:
    """A running process's command line; empty when there is none of that id, or it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def free_port() -> int:
    """A TCP port on loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int) -> bool:
    """True when a server could take this port on loopback now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def write_private(path: Path, text: str) -> None:
    """Write a file that never has a wider mode than 0600, whole or not at all."""
    incoming = path.with_name(f"{path.name}.incoming-{os.getpid()}")
    incoming.unlink(missing_ok=True)
    descriptor = os.open(incoming, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    incoming.rename(path)
