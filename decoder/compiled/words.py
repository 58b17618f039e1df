"""Reads and writes eight or sixteen bytes at once, for compiled loops over bytes at any address.

numpy has no unaligned access, and numba checks whether each index is negative; these functions read and write
in one instruction of the processor.  They check nothing: the caller must make sure that
``at .. at + 8`` (16) is within the array.  Words are little-endian on every processor; for
eight digits at a time see `digits_only` and `eight_digits`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numba.extending
from llvmlite import ir
from numba.core import cgutils, types

from slotlake.decoder.compiled.jit import Bytes, inlined, unsigned
from slotlake.decoder.compiled.memory import place

_SWAPPED = sys.byteorder == "big"
ZEROS = 0x3030303030303030  # eight times the digit 0
AHEAD = 16  # values: their work takes about as long as one read from memory
_intrinsic: Callable[[Any], Callable[..., Any]] = numba.extending.intrinsic


@_intrinsic
def word_at(typingctx: Any, data: Any, at: Any) -> Any:
    """Return the eight bytes at ``at`` as a number; the first byte is the lowest.

    Args:
        data: uint8 array, or its memory.
        at: offset of the first byte.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = place(context, builder, signature.args[0], arguments[0], arguments[1], 64)
        word = builder.load(source, align=1)
        return builder.bswap(word) if _SWAPPED else word

    return types.uint64(data, types.int64), generate


@_intrinsic
def big_word_at(typingctx: Any, data: Any, at: Any) -> Any:
    """Return the eight bytes at ``at`` as a big-endian number.

    Args:
        data: uint8 array, or its memory.
        at: offset of the first byte.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = place(context, builder, signature.args[0], arguments[0], arguments[1], 64)
        word = builder.load(source, align=1)
        return word if _SWAPPED else builder.bswap(word)

    return types.uint64(data, types.int64), generate


@_intrinsic
def copy_sixteen(typingctx: Any, data: Any, source: Any, out: Any, target: Any) -> Any:
    """Copy sixteen bytes from one array to another.

    Args:
        data, source: uint8 array and offset to read from.
        out, target: uint8 array and offset to write to.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        from_pointer = place(context, builder, signature.args[0], arguments[0], arguments[1], 128)
        to_pointer = place(context, builder, signature.args[2], arguments[2], arguments[3], 128)
        builder.store(builder.load(from_pointer, align=1), to_pointer, align=1)
        return context.get_dummy_value()

    return types.void(data, types.int64, out, types.int64), generate


@_intrinsic
def fetch_ahead(typingctx: Any, data: Any, at: Any) -> Any:
    """Tell the processor to fetch the bytes at ``at``, which the loop will need later.

    Args:
        data: uint8 array, or its memory.
        at: offset of the bytes.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        where = place(context, builder, signature.args[0], arguments[0], arguments[1], 8)
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [where.type, number, number, number])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(prefetch, [where, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(data, types.int64), generate


@inlined
def digits_only(word: int) -> bool:
    """Return whether all eight bytes of a word (one uint64 per value) are digits."""
    high = word & unsigned(0xF0F0F0F0F0F0F0F0)
    over = (word + unsigned(0x0606060606060606)) & unsigned(0xF0F0F0F0F0F0F0F0)
    return high | (over >> unsigned(4)) == unsigned(0x3333333333333333)


@inlined
def eight_digits(word: int) -> int:
    """Return the number of eight digits, of which the first is the word's lowest byte; uint64, per value."""
    value = (word & unsigned(0x0F0F0F0F0F0F0F0F)) * unsigned(2561) >> unsigned(8)
    value = (value & unsigned(0x00FF00FF00FF00FF)) * unsigned(6553601) >> unsigned(16)
    return (value & unsigned(0x0000FFFF0000FFFF)) * unsigned(42949672960001) >> unsigned(32)


@inlined
def plain_digits(word: int, count: int) -> int:
    """Return the first ``count`` bytes (1 to 8) as digit values, after zeros; uint64, one per value."""
    return (word ^ unsigned(ZEROS)) << (unsigned(64) - (unsigned(count) << unsigned(3)))


@inlined
def all_plain(word: int) -> bool:
    """Return whether each byte of `plain_digits` (uint64, one per value) is a digit, 0 to 9."""
    return ((word + unsigned(0x7676767676767676)) | word) & unsigned(0x8080808080808080) == unsigned(0)


@inlined
def eight_plain(word: int) -> int:
    """Return the number (uint64, per value) of the digits from `plain_digits`."""
    value = word * unsigned(2561) >> unsigned(8)
    value = (value & unsigned(0x00FF00FF00FF00FF)) * unsigned(6553601) >> unsigned(16)
    return (value & unsigned(0x0000FFFF0000FFFF)) * unsigned(42949672960001) >> unsigned(32)


@inlined
def zeroed(word: int, mask: int) -> int:
    """Return the word (uint64, one per value) with the digit 0 in the bytes of the mask."""
    return (word & ~mask) | (unsigned(ZEROS) & mask)


@inlined
def last_digits(word: int, count: int) -> int:
    """Return the word (uint64, one per value) with the digit 0 in all but its last ``count`` bytes."""
    if count >= 8:
        return word
    mask = ~unsigned(0) << (unsigned(64) - (unsigned(count) << unsigned(3))) if count > 0 else unsigned(0)
    return (word & mask) | (unsigned(ZEROS) & ~mask)


@inlined
def first_digits(word: int, count: int) -> int:
    """Return the word (uint64, one per value) with the digit 0 in all but its first ``count`` bytes."""
    if count >= 8:
        return word
    mask = (unsigned(1) << (unsigned(count) << unsigned(3))) - unsigned(1)
    return (word & mask) | (unsigned(ZEROS) & ~mask)


@inlined
def copy_bytes(
    data: Bytes, start: int, end: int, data_end: int, into: Bytes, target: int, into_end: int
) -> None:
    """Copy ``data[start:end]`` to ``target`` in the other array, sixteen bytes at a time.

    Up to fifteen more bytes after it are copied, if both arrays, which end at ``data_end`` and
    ``into_end``, are long enough: so the caller must write the next bytes of ``into`` later.

    Args:
        data, into: uint8[data_end] and uint8[into_end], or their memory.
    """
    moved = target - start
    last = min(data_end, into_end - moved) - 16
    while start < end and start <= last:
        copy_sixteen(data, start, into, start + moved)
        start += 16
    while start < end:
        into[start + moved] = data[start]
        start += 1
