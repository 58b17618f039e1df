"""What of a table the lake takes: which operations, which rows, which columns.

The rules are those of a publication, applied to the change log before it is folded (pgoutput.c,
`pgoutput_change` and `pgoutput_row_filter`): first the operation as it happened; then the filter, NULL being
false: an insert is judged on its new row, a delete on its old one, an update on both, and becomes an insert
when its row enters, a delete when its row leaves, nothing when it was and stays outside; then the
columns.  TRUNCATE is not filtered.  The batch itself stays as it came, so it can be applied again
to a lake that takes something else.

Invariant: what a table takes is decided when it is copied, and kept with it (`TableSchema.selection`): its
rows are at any time those that a copy made now would hold.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.catalog.row_filters import FilterColumn
from slotlake.decoder.compiled.arrays import nulls
from slotlake.decoder.compiled.wide import one_array
from slotlake.decoder.errors import LAKE_ALTERED, ApplyError, LakeError
from slotlake.spark.fold.columns import OLD_KEY, OLD_NONE, OLD_WHOLE, fold_key
from slotlake.spark.row_filter.numeric import EvaluationError
from slotlake.spark.row_filter.plan import Plan, plan
from slotlake.spark.row_filter.values import KINDS_BY_OID, Array, Frame, Source
from slotlake.spark.tables.shapes import BatchRelation

INSERT, UPDATE, DELETE, TRUNCATE = b"IUDT"
OPERATIONS = {"insert": INSERT, "update": UPDATE, "delete": DELETE, "truncate": TRUNCATE}
Change = tuple[BatchRelation, pa.Table]


@dataclass(frozen=True)
class Selection:
    """What a table takes.

    Attributes:
        filters: conditions as the pipeline file has them; a row that satisfies one of them is taken.
        columns: source columns; None for all, also those added later.
        operations: None for all.
        expression: the filters as the source's server reads them, OR'ed; None for all rows.
        inputs: the columns that the expression looks at, as they were when it was read.
        identified: updates or deletes are taken, so the filter must know its columns in old rows.
    """

    filters: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    operations: tuple[str, ...] | None = None
    expression: str | None = None
    inputs: tuple[FilterColumn, ...] = ()
    identified: bool = True

    @property
    def as_configured(self) -> tuple[object, ...]:
        """What the pipeline file says, without what the source made of it."""
        return (self.filters, self.columns, self.operations)

    def takes(self, operation: str) -> bool:
        """Return whether the lake takes this operation."""
        return self.operations is None or operation in self.operations

    @property
    def whole(self) -> bool:
        """Whether the lake takes all operations, so that it can equal the filtered source."""
        return all(self.takes(operation) for operation in OPERATIONS)

    def to_json(self) -> str:
        """For `TableSchema.selection`."""
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    @lru_cache(256)  # each batch asks for the same filters
    def from_json(cls, text: str) -> Selection:
        """The opposite; all of the table for "".

        Raises:
            LakeError: it is not what `to_json` wrote.
        """
        if not text:
            return cls()
        try:
            fields: dict[str, Any] = json.loads(text)
            inputs = tuple(FilterColumn(**column) for column in fields.pop("inputs"))
            lists = {k: None if v is None else tuple(v) for k, v in fields.items() if k in _LISTS}
            return cls(**{**fields, **lists, "inputs": inputs})
        except (ValueError, TypeError, KeyError) as error:
            raise LakeError(
                "the selection of a table's rows and columns is damaged",
                where=text[:80],
                way_out=LAKE_ALTERED,
            ) from error


_LISTS = ("filters", "columns", "operations")


@dataclass(frozen=True)
class SelectedChanges:
    """A table's changes as the lake takes them.

    Attributes:
        changes: relation versions, reduced to the columns taken, with their rows.
        lost: columns of inserted rows whose value the stream did not send and nothing here knows: a row that
            entered the filter with a value stored out of line, unchanged.
    """

    changes: list[Change]
    lost: frozenset[str]


def select_changes(selection: str, changes: Sequence[Change]) -> SelectedChanges:
    """Choose what the lake takes of one table's changes in a batch.

    Args:
        selection: `TableSchema.selection`.
        changes: (relation version, its rows as in the change log).

    Raises:
        ApplyError: the filter looks at a column that is gone, of another type, or outside the replica
            identity; or PostgreSQL would fail to evaluate it on a row.
    """
    chosen = Selection.from_json(selection)
    selected = [_of_version(chosen, relation, rows) for relation, rows in changes]
    lost = frozenset[str]().union(*(_lost(relation, rows) for relation, rows in selected))
    return SelectedChanges(selected, lost)


def _of_version(chosen: Selection, relation: BatchRelation, rows: pa.Table) -> Change:
    if rows.num_rows:
        rows = _operations(chosen, rows)
        if chosen.expression is not None:
            rows = _filtered(chosen, relation, rows)
    elif chosen.expression is not None:
        _plan_for(chosen, relation)
    return (relation, rows) if chosen.columns is None else _columns(chosen, relation, rows)


def _operations(chosen: Selection, rows: pa.Table) -> pa.Table:
    if chosen.whole:
        return rows
    codes = [code for name, code in OPERATIONS.items() if chosen.takes(name)]
    return rows.filter(pa.array(np.isin(_numbers(rows, "op"), codes)))


# -- rows ---------------------------------------------------------------------------------------------


def _filtered(chosen: Selection, relation: BatchRelation, rows: pa.Table) -> pa.Table:
    filter_plan = _plan_for(chosen, relation)
    op, old = _numbers(rows, "op"), _numbers(rows, "old")
    if relation.replica_identity == "f" and np.any((op == UPDATE) & (old == OLD_NONE)):
        raise _unfit(
            relation, "an update does not show its old row: a partition's replica identity is not FULL"
        )
    has_new, has_old = np.isin(op, (INSERT, UPDATE)), np.isin(op, (UPDATE, DELETE)) & (old != OLD_NONE)
    new = _satisfied(filter_plan, relation, rows, has_new, new=True)
    before = _satisfied(filter_plan, relation, rows, has_old, new=False)
    both = has_new & has_old
    # A delete without an old row names no row; what folds it will say so.
    keep = np.where(has_new, new | (both & before), ~has_old | before)
    entering, leaving = both & new & ~before, both & before & ~new
    if entering.any():
        rows = _as_inserts(relation, rows, entering)
    if leaving.any():
        rows = _as_deletes(rows, leaving)
    return rows if keep.all() else rows.filter(pa.array(keep))


def _satisfied(
    filter_plan: Plan, relation: BatchRelation, rows: pa.Table, which: Array, *, new: bool
) -> Array:
    """bool per row: ``which`` is set, and its new (or old) image satisfies the filter."""
    result = np.zeros(rows.num_rows, np.bool_)
    chosen = np.flatnonzero(which)
    some = rows.take(pa.array(chosen))
    positions = {column.name: i for i, column in enumerate(relation.columns)}
    image = _new_image if new else _old_image
    sources = {name: image(relation, some, positions[name]) for name in filter_plan.columns}
    try:
        result[chosen] = filter_plan.matches(Frame(len(chosen), sources))
    except EvaluationError as error:
        raise ApplyError(
            f"the row filter fails on a row: {error}",
            where=f"table {relation.schema}.{relation.table}",
            way_out="correct the filter in the pipeline file (PostgreSQL would stop at this row, too), then "
            "copy the table again with `slotlake backfill`",
        ) from None
    return result


def _old_image(relation: BatchRelation, rows: pa.Table, i: int) -> Source:
    return Source(_kind(relation, i), *_pair(relation, rows, "o", i))


def _new_image(relation: BatchRelation, rows: pa.Table, i: int) -> Source:
    typed, exact = _pair(relation, rows, "n", i)
    unchanged = _unchanged(rows, i)
    if unchanged is not None:
        if np.any(unchanged & ~_carried(relation, rows, i)):
            raise ApplyError(
                f"a change does not show column {relation.columns[i].name}, which the row filter looks at",
                where=f"table {relation.schema}.{relation.table}",
                way_out="make the column part of the replica identity, or take the filter out",
            )
        typed, exact = _completed((typed, exact), _pair(relation, rows, "o", i), unchanged)
    return Source(_kind(relation, i), typed, exact)


def _kind(relation: BatchRelation, i: int) -> str:
    return KINDS_BY_OID[relation.columns[i].type_oid]


_Pair = tuple[pa.Array, pa.Array | None]


def _pair(relation: BatchRelation, rows: pa.Table, side: str, i: int) -> _Pair:
    """A column's typed values and exact texts; NULLs where no row had any."""
    from slotlake.decoder.types.table import column_type

    column = relation.columns[i]
    typed = _array(rows, f"{side}{i}")
    if typed is None:
        typed = nulls(rows.num_rows, column_type(column.type_oid, column.typmod).arrow)
    return typed, _array(rows, f"x{side}{i}")


def _completed(pair: _Pair, other: _Pair, where: Array) -> _Pair:
    """``pair`` with the values of ``other`` put in."""
    mask = pa.array(where)
    typed = pc.if_else(mask, other[0].cast(pair[0].type), pair[0])
    if pair[1] is None and other[1] is None:
        return typed, None
    texts = [nulls(len(where), pa.string()) if text is None else text.cast(pa.string()) for text in
             (pair[1], other[1])]  # fmt: skip
    return typed, pc.if_else(mask, texts[1], texts[0])


def _as_inserts(relation: BatchRelation, rows: pa.Table, which: Array) -> pa.Table:
    """Updates made inserts: what the new row does not show is taken from the old one, which goes."""
    for i in range(len(relation.columns)):
        unchanged = _unchanged(rows, i)
        if unchanged is None:
            continue
        from_old = which & unchanged & _carried(relation, rows, i)
        typed, exact = _completed(_pair(relation, rows, "n", i), _pair(relation, rows, "o", i), from_old)
        rows = _put(rows, f"n{i}", typed)
        rows = rows if exact is None else _put(rows, f"xn{i}", exact)
        rows = _put(rows, f"u{i}", pa.array(unchanged & ~from_old))
    return _rewritten(rows, which, INSERT, OLD_NONE, ("o", "xo"))


def _as_deletes(rows: pa.Table, which: Array) -> pa.Table:
    """Updates made deletes of their old row."""
    return _rewritten(rows, which, DELETE, None, ("n", "xn", "u"))


def _rewritten(rows: pa.Table, which: Array, op: int, old: int | None, cleared: tuple[str, ...]) -> pa.Table:
    mask = pa.array(which)
    rows = _put(rows, "op", pa.array(np.where(which, op, _numbers(rows, "op")).astype(np.int8)))
    if old is not None:
        rows = _put(rows, "old", pa.array(np.where(which, old, _numbers(rows, "old")).astype(np.int8)))
    for name in rows.column_names:
        group = name.rstrip("0123456789")
        if group in cleared and group != name:
            values = rows.column(name)
            nothing = pa.scalar(False) if group == "u" else pa.scalar(None, values.type)
            rows = _put(rows, name, pc.if_else(mask, nothing, values))
    return rows


# -- columns ------------------------------------------------------------------------------------------


def _columns(chosen: Selection, relation: BatchRelation, rows: pa.Table) -> Change:
    assert chosen.columns is not None
    indices = [i for i, column in enumerate(relation.columns) if column.name in chosen.columns]
    names = [relation.columns[i].name for i in indices]
    key = tuple(relation.key) if set(relation.key) <= set(names) else ()
    reduced: Any = dataclasses.replace(
        cast("Any", relation), columns=tuple(relation.columns[i] for i in indices), key=key
    )
    if chosen.identified and set(fold_key(relation)) - set(names):
        raise ApplyError(
            "the selected columns lack one of those that identify a row",
            where=f"table {relation.schema}.{relation.table}",
            way_out="add it to the table's columns in the pipeline file, then copy the table again with "
            "`slotlake backfill`",
        )
    numbers = {str(i): number for number, i in enumerate(indices)}
    selected, renamed = [], []
    for name in rows.column_names:
        group = name.rstrip("0123456789")
        number = numbers.get(name[len(group) :])
        if group == name or number is not None:
            selected.append(name)
            renamed.append(name if group == name else f"{group}{number}")
    return reduced, rows.select(selected).rename_columns(renamed)


# -- the filter and the table as it is ----------------------------------------------------------------


def _plan_for(chosen: Selection, relation: BatchRelation) -> Plan:
    """The filter, if this version of the table has what it was made for.

    Raises:
        ApplyError: it has not.
    """
    present = {column.name: column for column in relation.columns}
    for column in chosen.inputs:
        now = present.get(column.name)
        if now is None:
            raise _unfit(relation, f"the row filter looks at column {column.name}, which is gone")
        if (now.type_oid, now.typmod) != (column.type_oid, column.typmod):
            raise _unfit(relation, f"the row filter looks at column {column.name}, whose type has changed")
        if chosen.identified and not now.in_key:
            raise _unfit(
                relation,
                f"the row filter looks at column {column.name}, which is not part of the replica identity, "
                "so old rows do not show it",
            )
    assert chosen.expression is not None
    return _compiled(chosen.expression, chosen.inputs)


@lru_cache(256)
def _compiled(expression: str, inputs: tuple[FilterColumn, ...]) -> Plan:
    return plan(expression, {column.name: column for column in inputs})


def _unfit(relation: BatchRelation, what: str) -> ApplyError:
    name = f"{relation.schema}.{relation.table}"
    return ApplyError(
        what,
        where=f"table {name}",
        way_out="change the filter in the pipeline file, or the table's REPLICA IDENTITY, then copy the "
        f"table again: slotlake backfill --table '{name}'; nothing was published",
    )


def _lost(relation: BatchRelation, rows: pa.Table) -> frozenset[str]:
    if not rows.num_rows or not any(name[0] == "u" for name in rows.column_names):
        return frozenset()
    inserted = _numbers(rows, "op") == INSERT
    flags = ((column.name, _unchanged(rows, i)) for i, column in enumerate(relation.columns))
    return frozenset(
        name for name, unchanged in flags if unchanged is not None and np.any(inserted & unchanged)
    )


# -- the change log's columns -------------------------------------------------------------------------


def _numbers(rows: pa.Table, name: str) -> Array:
    return np.asarray(rows.column(name).to_numpy())


def _array(rows: pa.Table, name: str) -> pa.Array | None:
    if name not in rows.column_names:
        return None
    return one_array(rows.column(name))


def _unchanged(rows: pa.Table, i: int) -> Array | None:
    flags = _array(rows, f"u{i}")
    return (
        None if flags is None else np.asarray(flags.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)
    )


def _carried(relation: BatchRelation, rows: pa.Table, i: int) -> Array:
    """bool per row: the old row shows the column."""
    old = _numbers(rows, "old")
    in_key = np.full(len(old), relation.columns[i].in_key)
    return np.asarray((old == OLD_WHOLE) | ((old == OLD_KEY) & in_key), np.bool_)


def _put(rows: pa.Table, name: str, values: Any) -> pa.Table:
    if name in rows.column_names:
        return rows.set_column(rows.column_names.index(name), name, values)
    return rows.append_column(name, values)
