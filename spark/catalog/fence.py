"""A question before each change of the catalog: may this process still change it?

Who works under a lock that can be lost (infra/opened/server_lock.py) registers what asks for it.  The
question narrows the time in which a run without its lock could publish; the compare-and-set of the pointers
closes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from slotlake.spark.lake import LakeSettings


@dataclass
class _Question:
    ask: Callable[[], None]


@contextmanager
def fenced(lake: LakeSettings, require_lock: Callable[[], None]) -> Iterator[None]:
    """Inside the block, ask before each change of a lake's tables.

    Args:
        require_lock: raises if the lock was lost.
    """
    lake.memory.put(_Question(require_lock))
    try:
        yield
    finally:
        lake.memory.forget(_Question)


def require_lock(lake: LakeSettings) -> None:
    """See that this process still has the lock under which it works, if there is one."""
    question = lake.memory.get(_Question)
    if question is not None:
        question.ask()
