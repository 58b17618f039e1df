"""Rows of a large table are replaced: one statement takes away what is there, another appends what comes.

To insert what it does not find, one MERGE must keep all folded rows, so Spark cannot broadcast them and
shuffles the whole table, file names included.  What goes is found with the keys alone, which are broadcast;
what comes is appended without a join.  For 5 M rows with keys in no order that is a third to a tenth of the
CPU time (docs/adr/0018).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slotlake.spark.merge.sql import (
    DELETE,
    IN_PLACE,
    MOVED,
    WHOLE,
    Target,
    assignments,
    insert,
    key_range,
    past_columns,
    same_key,
    view_schema,
)
from slotlake.spark.names import quote

# From these sizes on, two statements are cheaper than one MERGE.
_BATCH_ROWS_MIN = 500
_ROWS_MIN = 1_000_000
# A smaller batch's range of keys leaves out nearly the whole table before the exchange, if it is this narrow.
_NARROW_RANGE_MAX = 1_000_000
# So many small files Spark reads in one task.
_FILES_TOGETHER = 4


@dataclass(frozen=True)
class Replacement:
    """A fold whose rows are replaced.

    Attributes:
        target: the table and the fold.
        lookup: what the first statement broadcasts: the keys, as bits where that is less (`key_bits`); with
            all that is known, where a row stays partly as it is.
        schema: the columns of ``lookup`` as DDL.
        conditions: that a row ``t`` of the lake is one of ``lookup``, which is ``s``.
        staying: which folded rows stay; see `rows_staying`.
    """

    target: Target
    lookup: pa.Table
    schema: str
    conditions: tuple[str, ...]
    staying: np.ndarray[Any, np.dtype[np.bool_]]

    @property
    def appends(self) -> bool:
        """Whether there is a second statement."""
        deleted = self.target.fold.rows["action"].to_numpy() == DELETE
        return not (deleted | self.staying).all()

    def take_away(self, lookup_view: str) -> str:
        """Return the first statement: it takes away the rows that are there, or updates those that stay.

        Args:
            lookup_view: the temporary view that holds the rows of ``lookup``.
        """
        target, names = self.target, ", ".join(self.lookup.column_names)
        condition = " AND ".join([*self.conditions, *key_range(target, target.fold.rows, "t")])
        source = f"(SELECT /*+ BROADCAST */ {names} FROM {quote(lookup_view)})"
        clauses = "WHEN MATCHED THEN DELETE"
        if self.staying.any():
            assigned = ", ".join(assignments(target))
            clauses = f"WHEN MATCHED AND {self._in_place()} THEN UPDATE SET {assigned} {clauses}"
        return f"MERGE INTO {target.branch} AS t USING {source} AS s ON {condition} {clauses}"

    def append(self, view: str) -> str:
        """Return the second statement: it appends the rows of which all is known."""
        return insert(self.target, view, f"s.action <> {DELETE} AND NOT ({self._in_place()})")

    def _in_place(self) -> str:
        in_place = f"s.action = {IN_PLACE}"
        if self.target.trusted and not past_columns(self.target):
            unsent = " OR ".join(f"s.{name}" for name in _unsent(self.target))
            in_place += f" AND ({unsent or 'false'})"
        return in_place


def replacement_of(target: Target) -> Replacement | None:
    """Return how a fold's rows are replaced; None if one MERGE is cheaper, or needed.

    Rows that moved and keep values of the lake's row need it: the values would be deleted by then.
    """
    fold, rows = target.fold, target.fold.rows
    if fold.bag or fold.truncated or not fold.key or not rows.num_rows:
        return None
    if rows.num_rows < _BATCH_ROWS_MIN and not _is_spread(target):
        return None
    if target.lake_rows + rows.num_rows < _ROWS_MIN or pc.any(pc.equal(rows["action"], MOVED)).as_py():
        return None
    replacement = _replacement(target)
    size = replacement.lookup.num_rows * KEY_BYTES + 2 * replacement.lookup.nbytes
    return replacement if size <= target.broadcast_bytes else None


def _replacement(target: Target) -> Replacement:
    rows, pairs = target.fold.rows, [target.pair(i, "n") for i, _ in target.keys]
    names = [name for pair in pairs for name, _, _ in pair if name in target.view_columns]
    staying = rows_staying(target)
    if staying.any():
        names = sorted(target.view_columns)
    elif len(pairs) == len(pairs[0]) == 1 and (bits := key_bits(rows[names[0]])) is not None:
        ((_, _, column),) = pairs[0]
        return Replacement(target, bits, BITS, has_key(f"t.{column}"), staying)
    conditions = tuple(same_key(target, "t"))
    return Replacement(target, rows.select(names), view_schema(target, names), conditions, staying)


def should_gather(target: Target, replacement: Replacement | None) -> bool:
    """Return whether Spark should bring the rows together before it writes them.

    Where Spark broadcasts the batch, each task that reads some files writes its updated rows to a file of its
    own: a table that is only updated would get more files with every batch, the faster the more it has.

    Args:
        replacement: as `replacement_of` gives it.
    """
    fold = target.fold
    if fold.bag or fold.truncated or not fold.key or fold.rows.num_rows < 2:
        return False
    if target.lake_files <= _FILES_TOGETHER:
        return False
    if replacement is not None:
        return bool(replacement.staying.any())
    return not np.isin(fold.rows["action"].to_numpy(), (WHOLE, MOVED)).any()


def with_known_moves(target: Target) -> Target:
    """The same, where the batch knows all of each row whose key changed and that lets it be replaced.

    Such a row needs nothing of the lake's, whatever its key was there: it comes whole.  Should the lake not
    have had it, what is taken away is one row too few, which whoever trusts the lake looks at afterwards.
    """
    rows = target.fold.rows
    if target.fold.bag or "action" not in rows.column_names:
        return target
    moved = rows["action"].to_numpy() == MOVED
    if not moved.any() or any((moved & rows[name].to_numpy()).any() for name in _unsent(target)):
        return target
    action = pa.array(np.where(moved, WHOLE, rows["action"].to_numpy()).astype(np.int8))
    known_rows = rows.set_column(rows.column_names.index("action"), "action", action)
    replaced = replace(target, fold=replace(target.fold, rows=known_rows))
    return target if replacement_of(replaced) is None else replaced


def rows_staying(target: Target) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which folded rows stay where they are while others are replaced: they keep something of the lake's.

    An updated row of which everything is known is replaced where the lake is trusted to have it: should it
    not, it is to be inserted too (`spark.fold.batch`), and the count tells.
    """
    rows = target.fold.rows
    updated = np.asarray(rows["action"].to_numpy() == IN_PLACE, np.bool_)
    if not target.trusted or past_columns(target):
        return updated
    partly_unchanged = np.zeros(rows.num_rows, np.bool_)
    for name in _unsent(target):
        partly_unchanged |= rows[name].to_numpy()
    return np.asarray(updated & partly_unchanged, np.bool_)


def _unsent(target: Target) -> list[str]:
    return [f"u{i}" for i in range(len(target.columns)) if f"u{i}" in target.view_columns]


def _is_spread(target: Target) -> bool:
    """Return whether the batch's keys lie far apart, or may do so."""
    for i, _ in target.keys:
        values = target.fold.rows[f"n{i}"]
        if not pa.types.is_integer(values.type):
            return bool(len(values) > 1)
        ends = pc.min_max(values)
        if ends["max"].as_py() - ends["min"].as_py() > _NARROW_RANGE_MAX:
            return True
    return False


# Keys as bits: what a batch broadcasts where its keys are integers that lie close enough.
#
# Spark's table of keys to look up in takes about 48 bytes for each: the driver makes it, and each executor
# reads it.  One bit for each number between takes less from one key in 384 on, and no hash is made of a row's
# key.  Numbers are divided into chunks, and only chunks that hold a key are sent.

BITS: Final = "chunk bigint, bits array<bigint>"
_CHUNK_BITS, _WORD_BITS = 14, 6
_WORDS: Final = 1 << (_CHUNK_BITS - _WORD_BITS)
# As much as one key takes in Spark's own table.
KEY_BYTES: Final = 48


def key_bits(keys: pa.ChunkedArray) -> pa.Table | None:
    """Return keys as bits; None if that is no less than Spark's table of them, or if they are no integers.

    Args:
        keys: one for each row.

    Returns:
        One row for each chunk of 16,384 numbers that has a key: ``chunk``, the numbers' upper bits (int64),
        and ``bits``, 256 words of 64 numbers each (list of int64), the smallest number in the lowest bit.
    """
    if keys.null_count or not pa.types.is_integer(keys.type):
        return None
    numbers = keys.to_numpy().astype(np.int64, copy=False)
    chunks, places = np.unique(numbers >> _CHUNK_BITS, return_inverse=True)
    if not len(chunks) or len(chunks) * _WORDS * 8 > len(numbers) * KEY_BYTES:
        return None
    words = np.zeros(len(chunks) * _WORDS, np.uint64)
    word = places * _WORDS + ((numbers >> _WORD_BITS) & (_WORDS - 1))
    np.bitwise_or.at(words, word, np.uint64(1) << (numbers & ((1 << _WORD_BITS) - 1)).astype(np.uint64))
    offsets = pa.array(np.arange(0, len(words) + 1, _WORDS), pa.int32())
    bits = pa.ListArray.from_arrays(offsets, pa.array(words.view(np.int64)))
    return pa.table({"chunk": pa.array(chunks), "bits": bits})


def has_key(name: str) -> tuple[str, ...]:
    """Return the conditions, in Spark SQL, that a number is one of `key_bits`, whose rows are ``s``.

    Args:
        name: the number, in SQL; of any integer type.
    """
    number = f"CAST({name} AS BIGINT)"
    word = f"get(s.bits, CAST(shiftright({number}, {_WORD_BITS}) & {_WORDS - 1} AS INT))"
    bit = f"shiftright({word}, CAST({number} & {(1 << _WORD_BITS) - 1} AS INT)) & 1"
    return f"shiftright({number}, {_CHUNK_BITS}) = s.chunk", f"({bit}) = 1"
