"""The disk cache of compiled loops, named after the content of their sources, not after their path.

numba stores a function's machine code in a folder named after the path of its source file, so each clone
compiles again, for most of a minute, within its first batch.  And numba checks only that one file, so a
function keeps the old code of a function that it calls in another file.  Here the folder is named after the
contents of the file and of all files of this project that it imports: equal sources use the same machine
code at any path, and different sources never do.

This applies only if ``NUMBA_CACHE_DIR`` names a folder, as the launcher does; else numba's own rules apply.
The folder may be read-only, as in an image: what it lacks is then compiled in each process.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import UserProvidedCacheLocator

_PROJECT = Path(__file__).resolve().parents[2]
_FLOORS = "decoder|spark|expectations|infra|bench"
_IMPORT = re.compile(
    rf"^\s*from slotlake\.((?:{_FLOORS})(?:\.\w+)*) import ([^\n(]+|\([^)]*\))", re.MULTILINE
)


class ByContent(UserProvidedCacheLocator):  # type: ignore[misc]
    """One cache folder per content (see ``NUMBA_CACHE_LOCATOR_CLASSES`` in numba's manual)."""

    def get_cache_path(self) -> str:
        return str(Path(numba.config.CACHE_DIR) / f"{Path(self._py_file).stem}-{digest(Path(self._py_file))}")

    def get_source_stamp(self) -> str:
        return digest(Path(self._py_file))

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Any:
        """A locator for a function of this project; None for others, for which numba's rules apply."""
        if not Path(py_file).resolve().is_relative_to(_PROJECT):
            return None
        return cls(py_func, py_file) if read_only() else super().from_function(py_func, py_file)


def read_only() -> bool:
    """Return whether ``NUMBA_CACHE_DIR`` is a folder that this process can only read.

    numba asks for a folder that it can write, and fails where there is none; it fails, too, when it cannot
    store what it has compiled.
    """
    folder = numba.config.CACHE_DIR
    return bool(folder) and Path(folder).is_dir() and not os.access(folder, os.W_OK)


def never_store(dispatcher: Any) -> None:
    """Make a function of numba's read the cache and leave it as it is.

    Args:
        dispatcher: what ``numba.njit(cache=True)`` returns.
    """
    dispatcher._cache.save_overload = lambda signature, data: None  # noqa: SLF001 - numba has no other way


def keep_by_content() -> None:
    """Make numba use :class:`ByContent` first, and then its usual locators.

    The environment's setting (``NUMBA_CACHE_LOCATOR_CLASSES``) has priority.
    """
    if not numba.config.CACHE_LOCATOR_CLASSES:
        names = (
            f"{ByContent.__module__}.{ByContent.__qualname__}",
            "InTreeCacheLocator",
            "UserWideCacheLocator",
        )
        numba.config.CACHE_LOCATOR_CLASSES = ",".join(names)


@functools.cache  # hundreds of kernels ask for the same source files
def digest(source: Path) -> str:
    """Sixteen hexadecimal digits for the contents of a source file and of its imports from this project."""
    total = hashlib.sha256()
    for path in sorted(_with_imports(source.resolve())):  # resolved links: the same order everywhere
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


def _with_imports(source: Path) -> set[Path]:
    files, open_ends = {source}, [source]
    while open_ends:
        for module, names in _IMPORT.findall(open_ends.pop().read_text()):
            fresh = _imported(module, names) - files
            files |= fresh
            open_ends += fresh
    return files


def _imported(module: str, names: str) -> set[Path]:
    """The files of a module, or of the modules that are imported from a package."""
    place = _PROJECT.joinpath(*module.split("."))
    inner = {(place / name).with_suffix(".py") for name in re.findall(r"\w+", names)}
    return {path for path in (place.with_suffix(".py"), *inner) if path.is_file()}
