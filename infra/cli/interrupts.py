"""Ctrl-C: a command ends soon, with one line and exit code 130, whatever it is at.

Nothing interrupts a thread that waits for a statement of Spark, so the first SIGINT also ends the Java of
this process; what fails because of that says nothing.  A second SIGINT, or some seconds, end all at once.
That is safe at any moment: what a command leaves behind when it is killed, the next one finds and continues.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Final, NoReturn, Self

INTERRUPTED: Final = 130
_SECONDS: Final = 10.0
_JAVA_SECONDS: Final = 3.0


class InterruptedHereError(Exception):
    """Ctrl-C ended a command that handles it itself; typer would make an exit code of KeyboardInterrupt."""


class Interrupts:
    """What SIGINT does in a command.

    Attributes:
        seen: there was one.

    Args:
        report: writes the one line.
    """

    def __init__(self, report: Callable[[], None]) -> None:
        self.seen, self._report, self._reported = False, report, False

    def __enter__(self) -> Self:
        self._is_main = threading.current_thread() is threading.main_thread()
        if self._is_main:
            self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_main:
            # While Python ends, SIGINT would kill it, and change its exit code.
            signal.signal(signal.SIGINT, signal.SIG_IGN if self.seen else self._before)

    def end(self) -> int:
        """Report the interruption, wait a moment for Java's end, and return the exit code."""
        self._say()
        _end_java(_JAVA_SECONDS)
        return INTERRUPTED

    def _interrupt(self, number: int, frame: FrameType | None) -> NoReturn:
        if self.seen:
            self._end_at_once(number, frame)
        self.seen = True
        _be_quiet()
        _end_java(None)
        timer = threading.Timer(_SECONDS, self._end_at_once)
        timer.daemon = True
        timer.start()
        raise KeyboardInterrupt

    def _end_at_once(self, number: int = signal.SIGINT, frame: FrameType | None = None) -> NoReturn:
        with suppress(Exception):
            self._say()
        _end_java(0.0)
        os._exit(INTERRUPTED)

    def _say(self) -> None:
        if not self._reported:
            self._reported = True
            logging.disable(logging.NOTSET)
            self._report()
            logging.disable(logging.CRITICAL)
            sys.stderr.flush()


@contextmanager
def handled_here() -> Iterator[None]:
    """Let SIGINT only raise KeyboardInterrupt: who is called here handles it, and may go on.

    Raises:
        InterruptedHereError: nobody has handled it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt as error:
        raise InterruptedHereError from error
    finally:
        signal.signal(signal.SIGINT, before)


def _be_quiet() -> None:
    """Drop what libraries and other threads say about connections that have ended."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    threading.excepthook = lambda _: None
    sys.unraisablehook = lambda _: None


def _end_java(seconds: float | None) -> None:
    """End the Java of this process, if Spark was opened in it."""
    if "slotlake.spark.java" in sys.modules:
        from slotlake.spark.java import end_java

        end_java(seconds)
