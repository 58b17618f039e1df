"""Who may read what a pipeline writes: the key ``permissions`` of its file.

Change log, spools, state, Data Docs, catalog file and warehouse hold the source's rows, so by default they
are their owner's alone, whatever the umask that this process was started with.  Files are made in many
places, and some by libraries and by Java; so the process's umask is set while a pipeline works.

Invariant: several pipelines of one process, in threads too, together get the strictest that one of them asks
for; when none is at work the umask is what it was.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from slotlake.infra.config.pipeline_file import PipelineFile

_MASKS = {"private": 0o077, "group": 0o027, "umask": 0}  # and what the process's own umask takes
_lock = threading.Lock()
_asked: list[int] = []
_given = 0

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def privately(file: PipelineFile) -> Iterator[None]:
    """While this lasts, what is written may be read by those alone whom the pipeline file allows."""
    mask = _MASKS[file.permissions]
    _change(mask, _asked.append)
    try:
        yield
    finally:
        _change(mask, _asked.remove)


def kept_private(function: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """For a function whose first argument is the pipeline."""

    @functools.wraps(function)
    def inside(pipeline: Any, /, *arguments: P.args, **named: P.kwargs) -> R:
        with privately(pipeline.file):
            return function(pipeline, *arguments, **named)

    return inside


def umask_of(file: PipelineFile) -> str:
    """The umask of what a pipeline writes, as Hadoop takes it; Java knows not that of its process."""
    with privately(file), _lock:
        mask = os.umask(0o077)
        os.umask(mask)
    return f"{mask:03o}"


def tighten(folder: Path, file: PipelineFile) -> None:
    """Take from a folder of ours that an earlier version made what nobody else is to have."""
    with suppress(OSError):  # another user's: what is in it is made by the rule all the same
        mode = folder.stat().st_mode & 0o777
        if mode & _MASKS[file.permissions]:
            folder.chmod(mode & ~_MASKS[file.permissions])


def _change(mask: int, how: Callable[[int], None]) -> None:
    global _given  # noqa: PLW0603 (the process has one umask)
    with _lock:
        if not _asked:
            _given = os.umask(0o077)
        how(mask)
        os.umask(functools.reduce(int.__or__, _asked, _given))
