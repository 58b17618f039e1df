"""Compiled loops with guard pages around every array they are given.

Compiled code checks no index: a byte read or written beside an array is luck, or a crash far away.  Inside
`guarded_kernels` each kernel gets a copy of each array that ends right before a page that may not be touched,
or begins right behind one; what it wrote is copied back.  One byte too far ends the process at once, with
the kernel's name in the traceback of `faulthandler`.

An array that a kernel makes itself is not guarded; nor is one that is not contiguous.  What takes addresses
(`copy_data._drain`) is left alone.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import mmap
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from numba.core.registry import CPUDispatcher

from slotlake import decoder

_PAGE = mmap.PAGESIZE
_AREA_BYTES = 1 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)
_LEFT_ALONE = {("slotlake.decoder.stream.copy_data", "_drain")}


class Area:
    """Memory between two pages that may not be touched."""

    def __init__(self, size: int = _AREA_BYTES) -> None:
        self.size = -(-size // _PAGE) * _PAGE
        self._map = mmap.mmap(-1, self.size + 2 * _PAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for page in (address, address + _PAGE + self.size):
            if _LIBC.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE), 0):
                raise OSError(ctypes.get_errno(), "mprotect")

    def room(self, like: npt.NDArray[Any], *, at_end: bool) -> npt.NDArray[Any]:
        """An array of that shape and type, at one of the ends; what it holds is left over from before."""
        begin = _PAGE + (self.size - like.nbytes if at_end else 0)
        return np.ndarray(like.shape, like.dtype, self._map, begin)


class GuardedKernel(CPUDispatcher):  # type: ignore[misc]
    """A kernel that is given its arrays between guard pages.

    Attributes:
        calls: how many there were, of all kernels.
        passed: arrays that were given as they are.
    """

    calls = 0
    passed = 0
    _areas: list[Area] = []  # noqa: RUF012 - of all kernels: none calls another through Python
    _ends = itertools.cycle([True, True, False])

    def __call__(self, *arguments: Any) -> Any:
        cls = GuardedKernel
        cls.calls += 1
        place = _Places(cls._areas, at_end=next(cls._ends))
        given = [place.instead_of(each) if isinstance(each, np.ndarray) else each for each in arguments]
        found = CPUDispatcher.__call__(self, *given)
        for argument, copy in place.written:
            np.copyto(argument, copy)
        cls.passed += place.passed
        return found


class _Places:
    """Where the arrays of one call go; views of one memory go to one place."""

    def __init__(self, areas: list[Area], *, at_end: bool) -> None:
        self._areas, self._at_end, self._used = areas, at_end, 0
        self._wholes: dict[int, tuple[npt.NDArray[Any], npt.NDArray[Any]]] = {}
        self.written: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []
        self.passed = 0

    def instead_of(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not array.flags.c_contiguous:
            self.passed += 1
            return array
        if not array.flags.writeable:
            copy = self._room(array)
            np.copyto(copy, array)
            copy.flags.writeable = False
            return copy
        base = array.base
        if isinstance(base, np.ndarray) and base.flags.c_contiguous and base.nbytes == array.nbytes:
            return self._view(base, array)
        copy = self._room(array)
        np.copyto(copy, array)
        self.written.append((array, copy))
        return copy

    def _view(self, base: npt.NDArray[Any], array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A view of all of one memory, as another type."""
        known = self._wholes.get(id(base))
        if known is None:
            copy = self._room(base)
            np.copyto(copy, base)
            known = self._wholes[id(base)] = (base, copy)
            self.written.append(known)
        return known[1].view(array.dtype).reshape(array.shape)

    def _room(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        self._used += 1
        return _area(self._areas, self._used - 1, array.nbytes).room(array, at_end=self._at_end)


def _area(areas: list[Area], i: int, size: int) -> Area:
    while len(areas) <= i:
        areas.append(Area())
    if areas[i].size < size:
        areas[i] = Area(2 * size)
    return areas[i]


def kernels() -> list[CPUDispatcher]:
    """All compiled loops of the decoder that are called from Python, with arrays and not addresses."""
    found: dict[int, CPUDispatcher] = {}
    for module in pkgutil.walk_packages(decoder.__path__, "slotlake.decoder."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, CPUDispatcher) and not value.targetoptions.get("forceinline"):
                function = value.py_func
                if (function.__module__, function.__name__) not in _LEFT_ALONE:
                    found[id(value)] = value
    return list(found.values())


@contextmanager
def guarded_kernels() -> Iterator[None]:
    """Until the end of the block no kernel reads or writes beside its arrays and lives."""
    every = [kernel for kernel in kernels() if not isinstance(kernel, GuardedKernel)]
    for kernel in every:
        kernel.__class__ = GuardedKernel
    try:
        yield
    finally:
        for kernel in every:
            kernel.__class__ = CPUDispatcher
