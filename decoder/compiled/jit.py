"""How this package compiles its loops: with numba, cached on disk, without the interpreter lock.

Every compiled function takes arrays of fixed element types and returns numbers; it never raises.
An error is a number that the Python caller turns into an exception, so that bad bytes can never
cause a crash.  ``cache=True`` writes next to the source, or to ``NUMBA_CACHE_DIR``
(`decoder.compiled.cache`); `infra.kernels` compiles all of them beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numba.extending
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types

from slotlake.decoder.compiled.cache import keep_by_content, never_store, read_only
from slotlake.decoder.compiled.memory import place

keep_by_content()
_CACHE_IS_READ_ONLY = read_only()

F = TypeVar("F", bound=Callable[..., Any])

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]
Unsigned = npt.NDArray[np.uint64]

# numba needs numpy's types; for the type checker all compiled numbers are plain integers.
signed: Callable[[Any], int] = np.int64  # type: ignore[assignment]
unsigned: Callable[[Any], int] = np.uint64  # type: ignore[assignment]

# Every compiled function by its full name, as numba's dispatcher; filled while modules are imported.
kernels: dict[str, Any] = {}


def compiled(function: F) -> F:
    """Compile on first call; the type checker still sees the plain function."""
    dispatcher = numba.njit(cache=True, nogil=True)(function)
    if _CACHE_IS_READ_ONLY:
        never_store(dispatcher)
    kernels[f"{function.__module__}.{function.__qualname__}"] = dispatcher
    return cast("F", dispatcher)


def inlined(function: F) -> F:
    """For small functions that only other compiled functions call: numba makes them part of each caller.

    They are not cached on disk, because a caller that is compiled again could not include them from there.
    """
    return cast("F", numba.njit(nogil=True, forceinline=True)(function))


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A read-only view: inputs always have one array type, so numba compiles one version."""
    view = array.view()
    view.flags.writeable = False
    return view


_intrinsic: Callable[[Any], Any] = numba.extending.intrinsic


def _big_endian(bits: int) -> Callable[[Bytes, int], int]:
    """A compiled function ``read(data, p)`` for a big-endian integer of ``bits`` bits.

    It is one load and one byte swap; below 64 bits it is unsigned.  Like all compiled code here it does not
    check ``p``: the caller must.
    """

    @_intrinsic
    def read(typing: Any, data: Any, p: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            source = place(context, builder, signature.args[0], values[0], values[1], bits)
            value = builder.bswap(builder.load(source, align=1))
            return value if bits == 64 else builder.zext(value, ir.IntType(64))

        return types.int64(data, types.int64), generate

    return cast("Callable[[Bytes, int], int]", read)


read_uint16, read_uint32, read_int64 = _big_endian(16), _big_endian(32), _big_endian(64)
