"""Who waits for a pipeline gets it, also from a process that takes it again at once."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from slotlake.decoder.errors import BusyError
from slotlake.infra.opened.machine_lock import exclusive

AGAIN_AND_AGAIN = """
import sys, time
from pathlib import Path
from slotlake.infra.opened.machine_lock import exclusive
while True:
    with exclusive(Path(sys.argv[1]), "shop", 60):
        print(flush=True)
        time.sleep(0.02)
"""


def test_who_waits_gets_the_next_turn(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", AGAIN_AND_AGAIN, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            for _ in range(5):
                began = time.monotonic()
                with exclusive(tmp_path, "shop", 20):
                    assert time.monotonic() - began < 2
        finally:
            process.kill()


def test_who_does_not_wait_is_refused(tmp_path: Path) -> None:
    with (
        exclusive(tmp_path, "shop"),
        pytest.raises(BusyError, match="another run of pipeline 'shop' is at work") as refused,
        exclusive(tmp_path, "shop"),
    ):
        pass
    assert refused.value.where.startswith("process ")
    with exclusive(tmp_path, "shop"):
        pass
