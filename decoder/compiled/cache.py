"""Where compiled loops are kept on disk: by what they were compiled from, not by where that lies.

numba keeps a function's machine code in a folder named after the path of its source file, so each clone
compiles for itself, for most of a minute, within its first batch.  Its stamp is that one file, so a function
goes on with the old code of a function that it calls in another file.  Here the folder is named after the
contents of the file and of all files of this project that it imports: the same sources find the same machine
code wherever they lie, and other sources never do.

Only where ``NUMBA_CACHE_DIR`` names a folder, as the launcher does; elsewhere numba's own rules hold.
"""

from __future__ import annotations

import functools
import hashlib
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
    """A cache folder per contents; what numba's manual says of ``NUMBA_CACHE_LOCATOR_CLASSES``."""

    def get_cache_path(self) -> str:
        return str(Path(numba.config.CACHE_DIR) / f"{Path(self._py_file).stem}-{digest(Path(self._py_file))}")

    def get_source_stamp(self) -> str:
        return digest(Path(self._py_file))

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Any:
        """A locator for a function of this project; None for one of others, which numba keeps as it does."""
        ours = Path(py_file).resolve().is_relative_to(_PROJECT)
        return super().from_function(py_func, py_file) if ours else None


def keep_by_content() -> None:
    """Have numba ask :class:`ByContent` first, and then whom it would have asked anyway.

    What the caller's environment says (``NUMBA_CACHE_LOCATOR_CLASSES``) goes before.
    """
    if not numba.config.CACHE_LOCATOR_CLASSES:
        names = (
            f"{ByContent.__module__}.{ByContent.__qualname__}",
            "InTreeCacheLocator",
            "UserWideCacheLocator",
        )
        numba.config.CACHE_LOCATOR_CLASSES = ",".join(names)


@functools.cache
def digest(source: Path) -> str:
    """Sixteen hexadecimal digits of the contents of a source file and of what it imports of this project."""
    total = hashlib.sha256()
    for path in sorted(_with_imports(source.resolve())):  # not by src/slotlake's links: one order everywhere
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
    """The files of a module, or of those that are imported from a package."""
    place = _PROJECT.joinpath(*module.split("."))
    inner = {(place / name).with_suffix(".py") for name in re.findall(r"\w+", names)}
    return {path for path in (place.with_suffix(".py"), *inner) if path.is_file()}
