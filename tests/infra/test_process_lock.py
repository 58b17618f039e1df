"""A living process is seen at its work from anywhere, also from where its process id means nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from slotlake.infra.state.process_lock import is_process_alive, release_process_lock, take_process_lock

AT_WORK = """
import sys
from pathlib import Path
from slotlake.infra.state.process_lock import take_process_lock
take_process_lock(Path(sys.argv[1]))
print(flush=True)
sys.stdin.read()
"""
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.mark.parametrize("where", [(), CONTAINER], ids=["here", "in another container"])
def test_a_mark_lives_as_long_as_its_process(tmp_path: Path, where: Sequence[str]) -> None:
    if where and (os.getuid() != 0 or not shutil.which(where[0])):
        pytest.skip("needs root, to number processes anew")
    mark = tmp_path / "copy.lock"
    assert not is_process_alive(mark)
    command = [*where, sys.executable, "-P", "-c", AT_WORK, str(mark)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        assert is_process_alive(mark)
        process.stdin.close()
        process.wait()
    assert not is_process_alive(mark)


def test_a_mark_is_set_once_and_a_fork_has_none(tmp_path: Path) -> None:
    mark = tmp_path / "copy.lock"
    take_process_lock(mark)
    take_process_lock(mark)
    child = os.fork()
    if child == 0:
        release_process_lock(mark)
        os._exit(0 if is_process_alive(mark) else 1)
    assert os.waitpid(child, 0)[1] == 0
    release_process_lock(mark)
    release_process_lock(mark)
    assert not is_process_alive(mark)
    take_process_lock(tmp_path / "no such folder" / "copy.lock")
