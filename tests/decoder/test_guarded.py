"""The guard pages themselves: a loop that goes one byte too far ends its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from slotlake.decoder.columnar.buffer import MessageBuffer
from tests.decoder.guarded import GuardedKernel, guarded_kernels, kernels

_LOOP = """
import os
import numpy as np
import slotlake.decoder.columnar.buffer
from slotlake.decoder.compiled.jit import frozen
from tests.decoder.guarded import guarded_kernels
from numba import njit
from slotlake.decoder.compiled.memory import bare

@njit
def move(data, at, into):
    data, into = bare(data), bare(into)
    into[at[0]] = data[at[1]]
    return 0

slotlake.decoder.columnar.buffer.move = move
data, into = np.zeros(10, np.uint8), np.zeros(10, np.uint8)
with guarded_kernels():
    move(frozen(data), np.array([9, 9]), into)
    for target, source in ((0, 9), (9, 0), (0, 10), (0, -1), (10, 0), (-1, 0)):
        child = os.fork()
        if child == 0:
            for _ in range(3):  # at the end, and at the start
                move(frozen(data), np.array([target, source]), into)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.seconds
def test_one_byte_too_far_ends_the_process() -> None:
    command = [sys.executable, "-P", "-c", _LOOP]
    ended = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True)
    within, beyond = [0, 0], [-signal.SIGSEGV] * 4
    assert [int(code) for code in ended.stdout.split()] == within + beyond


def test_kernels_give_the_same_between_guard_pages() -> None:
    every = {f"{each.py_func.__module__}.{each.py_func.__name__}" for each in kernels()}
    assert {
        "slotlake.decoder.stream.framing._walk",
        "slotlake.decoder.copy.frames._walk",
        "slotlake.decoder.stream.bulk_rows._rows",
    } < every
    assert len(every) > 30
    raw = np.frombuffer(b"abcdef", np.uint8)
    lengths = np.array([2, 4], np.int32), np.array([7, 8], np.uint64)
    before = GuardedKernel.calls
    buffer = MessageBuffer()
    with guarded_kernels():
        buffer.extend(raw, np.array([0, 2]), *lengths)
    assert GuardedKernel.calls == before + 1
    assert (bytes(buffer.data), buffer.ends.tolist()) == (b"abcdef", [0, 2, 6])
    assert not any(isinstance(each, GuardedKernel) for each in kernels())
