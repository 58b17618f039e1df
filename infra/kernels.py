"""Compiles every loop of the decoder, the fold and the verification beforehand: no batch waits for it.

numba compiles a function for the types of its arguments when it is first called.  These types are in
``kernels.json`` (full name of the function: its signatures, as numba writes them); functions that only other
compiled functions call come with these.  ``python -m tests.kernel_signatures`` writes that file again; a test
fails when a pull, a fold or a verification still compiles something.

Run by the launcher when an environment is made, and when these sources are new (`infra.launch.kernels`):
``python -m slotlake.infra.kernels``.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from numba.core import types

from slotlake.decoder.compiled.jit import kernels

SIGNATURES = Path(__file__).with_suffix(".json")


def compile_all(part: int = 0, parts: int = 1) -> None:
    """Compile, or find in the cache, all functions for their signatures.

    Args:
        part: every ``parts``-th function from this one on: so several processes share the work.
    """
    names: dict[str, list[str]] = json.loads(SIGNATURES.read_text())
    wanted = dict(list(names.items())[part::parts])
    for name in wanted:
        importlib.import_module(name.rpartition(".")[0])
    for name, signatures in wanted.items():
        for signature in signatures:
            kernels[name].compile(_types(signature))


def compiled_for() -> dict[str, list[str]]:
    """The signatures that this process has compiled or loaded, without those of no meaning to Python."""
    found = {
        name: sorted({repr(types_) for types_ in kernel.signatures if _is_plain(types_)})
        for name, kernel in sorted(kernels.items())
    }
    return {name: signatures for name, signatures in found.items() if signatures}


def misses() -> list[str]:
    """The functions that this process has compiled because no cache had them."""
    return sorted(name for name, kernel in kernels.items() if kernel.stats.cache_misses)


def _is_plain(signature: tuple[Any, ...]) -> bool:
    """Can Python pass such arguments? Not plain memory (`decoder.compiled.memory`), nor constants."""
    try:
        return _types(repr(signature)) == signature
    except (SyntaxError, NameError):
        return False


def _types(signature: str) -> tuple[Any, ...]:
    """Types as numba writes them; the text is our own file's."""
    found: tuple[Any, ...] = eval(signature, {"__builtins__": {}}, vars(types))  # noqa: S307
    return found


if __name__ == "__main__":
    compile_all(*map(int, sys.argv[1:]))
