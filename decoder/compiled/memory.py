"""Arrays in compiled loops as plain memory, without reference counting.

numba counts references, with an atomic instruction, wherever an array is passed to or from a function, even
an inlined one; in a loop over small values that takes most of the time.  ``data = bare(data)`` at the top of
a compiled function keeps only the address and the element type: ``data[i]`` reads and writes as before, but
negative indices do not count from the end.

Invariant: such memory is used only while its array exists: in the compiled function that got the
array as an argument, or that made it and uses it afterwards (numba frees an array after its last use).  It
has no length, and nothing checks the index: the author of the loop must make sure that it is right.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba.extending
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.core.imputils import lower_builtin
from numba.core.typing import signature
from numba.core.typing.templates import AbstractTemplate, infer_global

_Array = TypeVar("_Array", bound=npt.NDArray[Any])
_intrinsic: Callable[[Any], Any] = numba.extending.intrinsic


class _Memory(types.Type):
    """The address of elements of one integer type."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"memory of {dtype}")


@numba.extending.register_model(_Memory)
class _MemoryModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, ir.IntType(kind.dtype.bitwidth).as_pointer())


@_intrinsic
def _bare(typingctx: Any, array: Any) -> Any:
    if isinstance(array, _Memory):
        return array(array), lambda context, builder, kinds, arguments: arguments[0]
    if (
        not isinstance(array, types.Array)
        or array.layout != "C"
        or not isinstance(array.dtype, types.Integer)
    ):
        return None

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        return context.make_array(kinds.args[0])(context, builder, arguments[0]).data

    return _Memory(array.dtype)(array), generate


# In compiled code only: the memory of a contiguous array of integers; of two dimensions, row after row.
bare = cast("Callable[[_Array], _Array]", _bare)


@infer_global(operator.getitem)
class _Get(AbstractTemplate):  # type: ignore[misc]
    def generic(self, arguments: Any, keywords: Any) -> Any:
        if isinstance(arguments[0], _Memory) and isinstance(arguments[1], types.Integer):
            return signature(arguments[0].dtype, arguments[0], types.int64)
        return None


@infer_global(operator.setitem)
class _Set(AbstractTemplate):  # type: ignore[misc]
    def generic(self, arguments: Any, keywords: Any) -> Any:
        if isinstance(arguments[0], _Memory) and isinstance(arguments[1], types.Integer):
            return signature(types.none, arguments[0], types.int64, arguments[0].dtype)
        return None


def _get(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
    return builder.load(builder.gep(arguments[0], [arguments[1]]))


def _set(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
    builder.store(arguments[2], builder.gep(arguments[0], [arguments[1]]))
    return context.get_dummy_value()


lower_builtin(operator.getitem, _Memory, types.Integer)(_get)
lower_builtin(operator.setitem, _Memory, types.Integer, types.Any)(_set)


def place(context: Any, builder: Any, kind: Any, array: Any, at: Any, bits: int) -> Any:
    """Return a pointer to element ``at`` of an array, or of its memory, as ``bits`` bits; for intrinsics.

    Args:
        kind: numba's type of ``array``.
        array: the array or its memory.
        at: index of the element.
    """
    data = array if isinstance(kind, _Memory) else context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), ir.IntType(bits).as_pointer())
