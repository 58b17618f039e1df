"""What goes on in threads of its own while a test does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager


@contextmanager
def meanwhile(*works: Callable[[threading.Event], object]) -> Iterator[None]:
    """Run each of these as long as the block runs; what fails in one of them fails the test.

    Args:
        works: each is called once; it returns soon after its event is set.
    """
    ended = threading.Event()
    with ThreadPoolExecutor(len(works)) as threads:
        running = [threads.submit(each, ended) for each in works]
        try:
            yield
        finally:
            ended.set()
            wait(running)
    for each in running:
        each.result()


def repeatedly(action: Callable[[], object], seconds: float) -> AbstractContextManager[None]:
    """Do something again and again as long as the block runs, with this pause before each time."""

    def repeat(ended: threading.Event) -> None:
        while not ended.wait(seconds):
            action()

    return meanwhile(repeat)
