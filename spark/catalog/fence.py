"""A question before each change of the catalog: may this process still change it?

Who works under a lock that can be lost (infra/locking/shared.py) registers what asks for it.  The question
narrows the time in which a run without its lock could publish; the compare-and-set of the pointers closes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slotlake.spark.lake import LakeSettings

_questions: dict[tuple[str, str, str], Callable[[], None]] = {}


@contextmanager
def fenced(lake: LakeSettings, require_lock: Callable[[], None]) -> Iterator[None]:
    """Inside the block, ask before each change of a lake's tables.

    Args:
        require_lock: raises if the lock was lost.
    """
    _questions[_key(lake)] = require_lock
    try:
        yield
    finally:
        _questions.pop(_key(lake), None)


def require_lock(lake: LakeSettings) -> None:
    """See that this process still has the lock under which it works, if there is one."""
    question = _questions.get(_key(lake))
    if question is not None:
        question()


def _key(lake: LakeSettings) -> tuple[str, str, str]:
    return lake.catalog, lake.uri, lake.namespace
