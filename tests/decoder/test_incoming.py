"""What a dead process was writing is removed; what a living one writes is not, wherever that lives."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slotlake.decoder.changelog import incoming
from slotlake.decoder.changelog.incoming import incoming_path, make_incoming, remove_leftovers

WRITER = """
import sys
from pathlib import Path
from slotlake.decoder.changelog.incoming import incoming_path, make_incoming
path = incoming_path(Path(sys.argv[1]), "batch")
make_incoming(path)
(path / "rows").write_text("half")
print(path.name, flush=True)
sys.stdin.read()
"""


@contextmanager
def writer(folder: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield folder / process.stdout.readline().strip(), process
        process.kill()


def test_a_writer_in_another_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process id says nothing here: there is none of that number, or it is our own."""
    with writer(tmp_path) as (path, process):
        monkeypatch.setattr(incoming, "_start_time", lambda pid: "0")
        remove_leftovers(tmp_path)
        assert (path / "rows").read_text() == "half"
        same = path.with_name(path.name.replace(f"-{process.pid}-", f"-{os.getpid()}-"))
        path.rename(same)
        remove_leftovers(tmp_path)
        assert same.is_dir()
        process.kill()
        process.wait()
        remove_leftovers(tmp_path)
        assert list(tmp_path.iterdir()) == []


def test_own_leftovers_go_and_a_fork_holds_nothing(tmp_path: Path) -> None:
    path = incoming_path(tmp_path, "batch")
    make_incoming(path)
    make_incoming(path)
    child = os.fork()
    if child == 0:
        remove_leftovers(tmp_path)  # the parent's
        os._exit(0 if path.is_dir() else 1)
    assert os.waitpid(child, 0)[1] == 0
    finished = tmp_path / "finished"
    path.rename(finished)
    make_incoming(path)
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [finished]


def test_a_disk_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EBADF, "no locks on directories here")

    with writer(tmp_path) as (path, process):
        monkeypatch.setattr(fcntl, "flock", refused)
        mine = incoming_path(tmp_path, "mine")
        make_incoming(mine)
        far = tmp_path / ".incoming-0123456789ab-1-1-batch"
        old = tmp_path / ".incoming-0123456789ab-1-2-batch"
        for each in (far, old):
            each.mkdir()
            (each / "rows").write_text("half")
        before = time.time() - 2 * 86_400
        for each in (old / "rows", old):
            os.utime(each, (before, before))
        remove_leftovers(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([far, path])
        process.kill()
        process.wait()
        remove_leftovers(tmp_path)
        assert list(tmp_path.iterdir()) == [far]
