"""A living process is seen at its work from anywhere, also from where its process id means nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from slotlake.infra.process_marks import is_marked, set_mark, unset_mark

AT_WORK = """
import sys
from pathlib import Path
from slotlake.infra.process_marks import set_mark
set_mark(Path(sys.argv[1]))
print(flush=True)
sys.stdin.read()
"""
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.mark.parametrize("where", [(), CONTAINER], ids=["here", "in another container"])
def test_a_mark_lives_as_long_as_its_process(tmp_path: Path, where: Sequence[str]) -> None:
    if where and (os.getuid() != 0 or not shutil.which(where[0])):
        pytest.skip("needs root, to number processes anew")
    mark = tmp_path / "copy.lock"
    assert not is_marked(mark)
    command = [*where, sys.executable, "-P", "-c", AT_WORK, str(mark)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        assert is_marked(mark)
        process.stdin.close()
        process.wait()
    assert not is_marked(mark)


def test_a_mark_is_set_once_and_a_fork_has_none(tmp_path: Path) -> None:
    mark = tmp_path / "copy.lock"
    set_mark(mark)
    set_mark(mark)
    child = os.fork()
    if child == 0:
        unset_mark(mark)
        os._exit(0 if is_marked(mark) else 1)
    assert os.waitpid(child, 0)[1] == 0
    unset_mark(mark)
    unset_mark(mark)
    assert not is_marked(mark)
    set_mark(tmp_path / "no such folder" / "copy.lock")
