"""Compiles all numba kernels of the decoder, the fold and the verification, so that no batch waits for it.

numba compiles a function for the types of its arguments at the first call.  ``kernels.json`` lists these
types (full name of the function: its signatures, as numba writes them). Functions that only other kernels
call are compiled with these.  ``python -m tests.kernel_signatures`` writes this file; a test fails if a
pull, a fold or a verification still compiles something.

The launcher runs it for a new environment and for new sources (`infra.launch.kernels`):
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
    """Compile all kernels for their signatures, or load them from the cache.

    Args:
        part: number of this process, from 0.
        parts: how many processes share the work; each compiles every ``parts``-th kernel.
    """
    names: dict[str, list[str]] = json.loads(SIGNATURES.read_text())
    signatures_by_name = dict(list(names.items())[part::parts])
    for name in signatures_by_name:
        importlib.import_module(name.rpartition(".")[0])
    for name, signatures in signatures_by_name.items():
        for signature in signatures:
            kernels[name].compile(_types(signature))


def compiled_for() -> dict[str, list[str]]:
    """Return the signatures that this process has compiled or loaded, except those Python cannot pass."""
    signatures_by_name = {
        name: sorted({repr(types_) for types_ in kernel.signatures if _is_plain(types_)})
        for name, kernel in sorted(kernels.items())
    }
    return {name: signatures for name, signatures in signatures_by_name.items() if signatures}


def misses() -> list[str]:
    """Return the kernels that this process has compiled because the cache did not have them."""
    return sorted(name for name, kernel in kernels.items() if kernel.stats.cache_misses)


def _is_plain(signature: tuple[Any, ...]) -> bool:
    """Return whether Python can pass such arguments: no memory (`decoder.compiled.memory`), no constants."""
    try:
        return _types(repr(signature)) == signature
    except (SyntaxError, NameError):
        return False


def _types(signature: str) -> tuple[Any, ...]:
    """Parse types as numba writes them; the text comes from our own file."""
    argument_types: tuple[Any, ...] = eval(signature, {"__builtins__": {}}, vars(types))  # noqa: S307
    return argument_types


if __name__ == "__main__":
    compile_all(*map(int, sys.argv[1:]))
