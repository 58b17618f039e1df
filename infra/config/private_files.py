"""Who may read the files that a pipeline writes: the key ``permissions`` of its file.

Change log, spools, state, Data Docs, catalog file and warehouse hold rows of the source. So by default only
their owner can read them, with any umask of the process.  Many modules, some libraries and Java make these
files, so this module sets the umask of the process while a pipeline works.

Invariant: if several pipelines of one process work at once, also in threads, the strictest of their umasks is
set; when none works, the process has its own umask again.
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

_MASKS = {"private": 0o077, "group": 0o027, "umask": 0}  # in addition to the process's own umask
_lock = threading.Lock()
_masks_in_use: list[int] = []  # of all pipelines: the process has one umask
_process_mask = 0

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def privately(file: PipelineFile) -> Iterator[None]:
    """Set the umask while this lasts, so that only users whom the pipeline file allows can read new files."""
    mask = _MASKS[file.permissions]
    _change(mask, _masks_in_use.append)
    try:
        yield
    finally:
        _change(mask, _masks_in_use.remove)


def with_private_files(function: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Decorate a function whose first argument is the pipeline: it runs under `privately`."""

    @functools.wraps(function)
    def inside(pipeline: Any, /, *arguments: P.args, **options: P.kwargs) -> R:
        with privately(pipeline.file):
            return function(pipeline, *arguments, **options)

    return inside


def umask_of(file: PipelineFile) -> str:
    """Return the umask of a pipeline's files for Hadoop, because Java ignores the umask of its process."""
    with privately(file), _lock:
        mask = os.umask(0o077)
        os.umask(mask)
    return f"{mask:03o}"


def tighten(folder: Path, file: PipelineFile) -> None:
    """Remove permissions from a folder that an earlier version made, if the pipeline file forbids them."""
    with suppress(OSError):  # another user's folder: the new files in it still get the right permissions
        mode = folder.stat().st_mode & 0o777
        if mode & _MASKS[file.permissions]:
            folder.chmod(mode & ~_MASKS[file.permissions])


def _change(mask: int, how: Callable[[int], None]) -> None:
    global _process_mask  # noqa: PLW0603 (the process has one umask)
    with _lock:
        if not _masks_in_use:
            _process_mask = os.umask(0o077)
        how(mask)
        os.umask(functools.reduce(int.__or__, _masks_in_use, _process_mask))
