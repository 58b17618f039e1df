"""The changes of one table as plain columns, whatever relation versions they were sent under.

Columns are matched by name to the newest version.  A column that an older version did not have is
"unchanged" in its tuples: those changes say nothing about it.  A value is always the pair of typed
value and exact text (the change log's ``n``/``xn`` and ``o``/``xo``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from slotlake.decoder.compiled.arrays import nulls
from slotlake.decoder.compiled.wide import joined, one_array, taken
from slotlake.decoder.errors import ApplyError
from slotlake.spark.tables.shapes import BatchColumn, BatchRelation

OLD_NONE, OLD_KEY, OLD_WHOLE = 0, ord("K"), ord("O")

Array = np.ndarray[Any, Any]


Part = tuple[BatchRelation, pa.Table]


def fold_key(relation: BatchRelation) -> tuple[str, ...]:
    """The columns by which this version's changes name their row; () if there are none.

    Under REPLICA IDENTITY USING INDEX old tuples carry only that index's columns, so it is these even
    if the table has a primary key too.  Under NOTHING no change names a row, whatever key there is.
    """
    index = tuple(column.name for column in relation.columns if column.in_key)
    if relation.replica_identity == "i" and set(index) != set(relation.key):
        return index
    return () if relation.replica_identity == "n" else tuple(relation.key)


def is_bag(relation: BatchRelation) -> bool:
    """Return whether this version's changes identify their row by all of its values."""
    return relation.replica_identity == "f" and not fold_key(relation)


def naming(relation: BatchRelation) -> tuple[tuple[Any, ...], ...]:
    """What its changes name their row by: versions of which this differs cannot be folded together."""
    if is_bag(relation):
        return tuple((column.name, column.type_oid, column.typmod) for column in relation.columns)
    return tuple((name,) for name in fold_key(relation))


@dataclass
class Values:
    """One column of all changes: typed values and, where any, exact texts."""

    new: pa.Array | None
    old: pa.Array | None
    exact_new: pa.Array | None
    exact_old: pa.Array | None

    def take(self, source: pa.Array, with_old: bool) -> tuple[pa.Array, pa.Array | None]:
        """Typed values and exact texts at ``source`` (null: no value; old tuples follow the new)."""
        exact = _side_by_side(self.exact_new, self.exact_old, with_old)
        typed = _side_by_side(self.new, self.old, with_old)
        assert typed is not None
        texts = None if exact is None else taken(exact, source)
        return taken(typed, source), None if texts is None or texts.null_count == len(texts) else texts


def _side_by_side(new: pa.Array | None, old: pa.Array | None, with_old: bool) -> pa.Array | None:
    present = new if new is not None else old
    if present is None or not with_old:
        return new if with_old or new is not None or present is None else nulls(len(present), present.type)
    sides = [nulls(len(present), present.type) if side is None else side for side in (new, old)]
    return joined(sides)


@dataclass
class Merged:
    """All changes of one table in ``seq`` order.

    Attributes:
        op: int8 per change; TRUNCATE no longer among them.
        old: int8 per change: OLD_NONE, OLD_KEY or OLD_WHOLE.
        whole: bool per change: its tuples show every value that its row had then. (A column that joined
            later is no part of it: cutting the batch before it must not make a difference.)
        values: per column.
        unchanged: per column, bool per change (the new tuple does not show the value), or None.
        carried: per column, bool per change: the old tuple shows the value.
    """

    table: str
    columns: tuple[BatchColumn, ...]
    op: Array
    old: Array
    whole: Array
    values: list[Values] = field(default_factory=list)
    unchanged: list[Array | None] = field(default_factory=list)
    carried: list[Array] = field(default_factory=list)

    def position(self, name: str) -> int:
        """Index of the column of that name."""
        return next(index for index, column in enumerate(self.columns) if column.name == name)

    def take(self, position: int, source: Array) -> dict[str, pa.Array]:
        """Columns ``n<i>`` and, if any, ``xn<i>``.

        Args:
            source: int64; i for the new tuple of change i, len(op) + i for its old one, < 0 for none.
        """
        with_old = bool(source.max(initial=-1) >= len(self.op))
        absent = source < 0
        indices = pa.array(source, mask=absent) if absent.any() else pa.array(source)
        typed, exact = self.values[position].take(indices, with_old)
        return {f"n{position}": typed} | ({} if exact is None else {f"xn{position}": exact})

    def complete_key(self, position: int) -> None:
        """Show key values sent as unchanged (a large key stored out of line): the old tuple has them.

        Raises:
            ApplyError: it has not.
        """
        unchanged = self.unchanged[position]
        if unchanged is None:
            return
        if np.any(unchanged & ~self.carried[position]):
            raise ApplyError(
                "a change does not show the key of its row",
                where=f"table {self.table}",
                way_out="ALTER TABLE … REPLICA IDENTITY FULL (or an index of short columns), then have "
                "the table "
                "copied again: `slotlake backfill --table`",
            )
        changes = len(self.op)
        source = pa.array(np.where(unchanged, changes, 0) + np.arange(changes))
        values = self.values[position]
        new, exact = values.take(source, True)
        self.values[position] = Values(new, values.old, exact, values.exact_old)
        self.unchanged[position] = None


def merge(parts: Sequence[Part]) -> Merged:
    """Bring the changes of several relation versions of one table together, in ``seq`` order."""
    relation = parts[-1][0]
    parts = [part for part in parts if part[1].num_rows] or list(parts[-1:])
    order = _order(parts)
    merged = Merged(
        f"{relation.schema}.{relation.table}",
        tuple(relation.columns),
        _numbers(parts, "op", order),
        _numbers(parts, "old", order),
        _flags([_whole_rows(part) for part in parts], order),
    )
    for column in relation.columns:
        pieces = [_piece(part, column) for part in parts]
        merged.values.append(
            Values(*(_joined([getattr(piece, side) for piece in pieces], parts, order) for side in _SIDES))
        )
        unchanged = _flags([piece.unchanged for piece in pieces], order)
        merged.unchanged.append(unchanged if unchanged.any() else None)
        merged.carried.append(_flags([piece.carried for piece in pieces], order))
    return merged


def _whole_rows(part: Part) -> Array:
    """Bool per change: new and old tuple together show each column of its own relation version."""
    relation, rows = part
    shown = np.ones(rows.num_rows, bool)
    for position, column in enumerate(relation.columns):
        if f"u{position}" in rows.column_names:
            shown &= ~_booleans(_whole(rows, f"u{position}")) | _carried(rows, column)
    return shown


def _carried(rows: pa.Table, column: BatchColumn) -> Array:
    """Bool per change: its old tuple shows the column."""
    old = _whole(rows, "old").to_numpy()
    return np.asarray((old == OLD_WHOLE) | ((old == OLD_KEY) & column.in_key))


_SIDES = ("new", "old", "exact_new", "exact_old")


@dataclass
class _Piece:
    """One column of one relation version's changes."""

    new: pa.Array | None
    old: pa.Array | None
    exact_new: pa.Array | None
    exact_old: pa.Array | None
    unchanged: Array
    carried: Array


def _piece(part: Part, column: BatchColumn) -> _Piece:
    relation, rows = part
    names = [candidate.name for candidate in relation.columns]
    if column.name not in names:
        nothing = nulls(rows.num_rows, _arrow_type(column))
        return _Piece(nothing, None, None, None, np.ones(rows.num_rows, bool), np.zeros(rows.num_rows, bool))
    position = names.index(column.name)
    source = relation.columns[position]
    unchanged = _whole(rows, f"u{position}") if f"u{position}" in rows.column_names else None
    sides = [_side(rows, f"{side}{position}") for side in ("n", "o", "xn", "xo")]
    new, old_values, exact_new, exact_old = _in_newest_type(sides, source, column)
    if new is None:
        new = nulls(rows.num_rows, old_values.type if old_values is not None else _arrow_type(column))
    flags = np.zeros(rows.num_rows, bool) if unchanged is None else _booleans(unchanged)
    return _Piece(new, old_values, exact_new, exact_old, flags, _carried(rows, source))


def _in_newest_type(
    sides: list[pa.Array | None], source: BatchColumn, column: BatchColumn
) -> tuple[pa.Array | None, ...]:
    """Values of an older version's type, as the newest type writes them; through PostgreSQL's text.

    But for real, of which the server makes double precision bit by bit, and not of its text.
    """
    if (source.type_oid, source.typmod) == (column.type_oid, column.typmod):
        return tuple(sides)
    from slotlake.decoder.types import table as types

    before = types.column_type(source.type_oid, source.typmod)
    after = types.column_type(column.type_oid, column.typmod)
    new, old, exact_new, exact_old = sides
    if (before.arrow, after.arrow) == (pa.float32(), pa.float64()):
        return *(None if side is None else side.cast(after.arrow) for side in (new, old)), None, None
    converted: list[tuple[pa.Array | None, pa.Array | None]] = []
    for typed, exact in ((new, exact_new), (old, exact_old)):
        both = (None, None) if typed is None else types.from_text(types.to_text(typed, exact, before), after)
        converted.append(both)
    (new, exact_new), (old, exact_old) = converted
    return new, old, exact_new, exact_old


def _side(rows: pa.Table, name: str) -> pa.Array | None:
    return _whole(rows, name) if name in rows.column_names else None


def _whole(rows: pa.Table, name: str) -> pa.Array:
    return one_array(rows.column(name))


def _joined(arrays: list[pa.Array | None], parts: Sequence[Part], order: pa.Array | None) -> pa.Array | None:
    present = [array for array in arrays if array is not None]
    if not present:
        return None
    kind = present[0].type
    whole = joined(
        [
            nulls(part[1].num_rows, kind) if array is None else array
            for array, part in zip(arrays, parts, strict=True)
        ]
    )
    return whole if order is None else whole.take(order)


def _flags(arrays: list[Array], order: pa.Array | None) -> Array:
    whole = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return whole if order is None else whole[order.to_numpy()]


def _numbers(parts: Sequence[Part], name: str, order: pa.Array | None) -> Array:
    return _flags([_whole(rows, name).to_numpy() for _, rows in parts], order)


def _order(parts: Sequence[Part]) -> pa.Array | None:
    """Row numbers in ``seq`` order, or None if they are so already."""
    seq = np.concatenate([_whole(rows, "seq").to_numpy() for _, rows in parts])
    return None if np.all(seq[1:] > seq[:-1]) else pa.array(np.argsort(seq, kind="stable"))


def _booleans(array: pa.Array) -> Array:
    return np.asarray(array.fill_null(False).to_numpy(zero_copy_only=False), bool)


def _arrow_type(column: BatchColumn) -> pa.DataType:
    from slotlake.decoder.types import table as types

    return types.column_type(column.type_oid, column.typmod).arrow
