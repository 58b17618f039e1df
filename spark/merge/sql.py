"""The SQL that brings one fold into a lake table's branch ``stage``. Text in, text out.

``t`` is the lake table, ``s`` the folded rows, ``o`` the lake's rows that a key change takes along.
Columns of ``s`` are numbered (``n0``, ``xn0``, ``u0``, ``m0``; see spark/fold/batch.py), so no source name
needs quoting there.

Every key column's smallest and largest value in the batch stands beside the join condition
(spark/merge/bounds.py): with it Iceberg leaves out the files that cannot hold a key of the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from slotlake.spark.fold.batch import ACTIONS, Folded
from slotlake.spark.merge.bounds import Markers, value_range
from slotlake.spark.merge.representation import in_representation
from slotlake.spark.names import LakeName, quote
from slotlake.spark.tables.schema import LakeColumn, TableSchema

DELETE, WHOLE, IN_PLACE, MOVED = (ACTIONS[name] for name in ("delete", "whole", "in_place", "moved"))
# No column's: a name in the lake has no space (spark/names.py).
_PRESENT = "`is there`"
_NO_TEXT = "CAST(NULL AS STRING)"


@dataclass(frozen=True)
class Target:
    """A lake table and a fold of the changes for it.

    Attributes:
        columns: the lake column of each of the fold's columns, in the fold's order.
        past: lake columns that the fold knows nothing of.
        companions: lake names of the exact-text companions that the table has.
        view_columns: the columns of ``s``.
        lake_rows: about how many rows the table has; ``lake_files``: in how many files.
        trusted: whether the lake had what the changes count on is looked at afterwards.
        markers: the values that the statements for it name.
        broadcast_bytes: so much may be broadcast (`spark.merge.sizes`).
    """

    name: LakeName
    catalog: str
    fold: Folded
    columns: tuple[LakeColumn, ...]
    past: tuple[LakeColumn, ...]
    companions: frozenset[str]
    view_columns: frozenset[str]
    lake_rows: int = 0
    lake_files: int = 0
    trusted: bool = False
    markers: Markers = field(default_factory=Markers)
    broadcast_bytes: int = 192 << 20

    @classmethod
    def of(
        cls, name: LakeName, catalog: str, schema: TableSchema, fold: Folded, companions: frozenset[str]
    ) -> Target:
        """Pair the fold's columns with the lake's, by source name.

        Args:
            companions: lake names of the exact-text columns that the table has.
        """
        columns = tuple(schema.column(shape.name) for shape in fold.columns)
        fold = replace(fold, rows=in_representation(columns, fold.rows))
        past = tuple(column for column in schema.columns if column not in columns)
        return cls(name, catalog, fold, columns, past, companions, frozenset(fold.rows.column_names))

    @property
    def branch(self) -> str:
        """The branch that is written to."""
        return f"{self.name.sql(self.catalog)}.branch_stage"

    @property
    def keys(self) -> list[tuple[int, LakeColumn]]:
        """Key columns with their positions in the fold."""
        by_name = {column.name: i for i, column in enumerate(self.columns)}
        return [(by_name[name], self.columns[by_name[name]]) for name in self.fold.key]

    def pair(self, i: int, prefix: str) -> list[tuple[str, str, str]]:
        """Typed value and, if the lake keeps one, exact text: (name in ``s``, expression, lake column)."""
        column = self.columns[i]
        pairs = [(f"{prefix}{i}", f"s.{prefix}{i}", quote(column.lake_name))]
        if column.exact_name in self.companions:
            exact = f"x{prefix}{i}"
            pairs.append(
                (exact, f"s.{exact}" if exact in self.view_columns else _NO_TEXT, quote(column.exact_name))
            )
        return pairs


def statements(target: Target, view: str) -> list[str]:
    """The statements to run in this order, if rows are not replaced; the last one completes the table."""
    if target.fold.truncated:
        return [f"DELETE FROM {target.branch}", insert(target, view)]
    if not target.fold.key or not target.fold.rows.num_rows:
        return [insert(target, view)]
    return [_merge(target, view)]


def view_schema(target: Target, names: Iterable[str]) -> str:
    """DDL of columns of folded rows, so that Spark need not open the file to learn it."""
    kinds = {"action": "tinyint", **dict.fromkeys(("code", "row", "remove", "add"), "bigint")}
    for i, column in enumerate(target.columns):
        kinds |= {f"n{i}": column.spark_type, f"m{i}": column.spark_type}
        kinds |= {f"xn{i}": "string", f"xm{i}": "string", f"u{i}": "boolean"}
    return ", ".join(f"{name} {kinds[name]}" for name in names)


def _merge(target: Target, view: str) -> str:
    actions = set(pc.unique(target.fold.rows["action"]).to_pylist())
    source = quote(view)
    if MOVED in actions:
        source = f"({_with_moved(target, view)})"
        target = replace(
            target, view_columns=target.view_columns | {f"xn{i}" for i in range(len(target.columns))}
        )
    condition = " AND ".join(same_key(target, "t", "n") + key_range(target, target.fold.rows, "t"))
    clauses = f"{_when_matched(target, actions)} {_when_not_matched(target, actions)}"
    return f"MERGE INTO {target.branch} AS t USING {source} AS s ON {condition} {clauses}"


def _when_matched(target: Target, actions: set[int]) -> str:
    clauses = []
    if actions & {DELETE, MOVED}:
        clauses.append(f"WHEN MATCHED AND s.action = {DELETE} THEN DELETE")
    if actions - {DELETE}:
        clauses.append(f"WHEN MATCHED THEN UPDATE SET {', '.join(assignments(target))}")
    return " ".join(clauses)


def _when_not_matched(target: Target, actions: set[int]) -> str:
    if not actions & {WHOLE, MOVED}:
        return ""
    names, values = zip(*insert_values(target), strict=True)
    return (
        f"WHEN NOT MATCHED AND s.action IN ({WHOLE}, {MOVED}) "
        f"THEN INSERT ({', '.join(names)}) VALUES ({', '.join(values)})"
    )


def insert(target: Target, view: str, which: str = f"s.action = {WHOLE}") -> str:
    """Return the INSERT of folded rows of which all is known.

    Args:
        which: of them, ``s``; by default those that are whole.
    """
    names, values = zip(*insert_values(target), strict=True)
    return (
        f"INSERT INTO {target.branch} ({', '.join(names)}) "
        f"SELECT {', '.join(values)} FROM {quote(view)} AS s WHERE {which}"
    )


def _with_moved(target: Target, view: str) -> str:
    """Folded rows with what rows that changed their key keep from the lake filled in.

    A row that the lake lacks cannot be taken along: then the key it would go to is left empty.
    """
    selected = [
        f"CASE WHEN s.action = {MOVED} AND o.{_PRESENT} IS NULL THEN {DELETE} ELSE s.action END AS action"
    ]
    needed = [name for i, _ in target.keys for _, _, name in target.pair(i, "m")]
    for i in range(len(target.columns)):
        unchanged = f"u{i}" in target.view_columns
        for source_name, value, name in target.pair(i, "n"):
            moved_value = f"CASE WHEN s.action = {MOVED} AND s.u{i} THEN o.{name} ELSE {value} END"
            selected.append(f"{moved_value if unchanged else value} AS {source_name}")
            needed += [name] if unchanged else []
        if unchanged:
            selected.append(f"s.u{i} AND s.action <> {MOVED} AS u{i}")
    columns = ", ".join([f"true AS {_PRESENT}", *dict.fromkeys(needed)])
    where = " AND ".join(key_range(target, target.fold.rows, "l", "m")) or "true"
    condition = " AND ".join([f"s.action = {MOVED}", *same_key(target, "o", "m")])
    lake = f"(SELECT {columns} FROM {target.branch} AS l WHERE {where})"
    return f"SELECT {', '.join(selected)} FROM {quote(view)} AS s LEFT JOIN {lake} AS o ON {condition}"


def assignments(target: Target) -> Iterator[str]:
    """Return what an UPDATE of a lake row sets."""
    for i in range(len(target.columns)):
        for _, value, name in target.pair(i, "n"):
            new_value = (
                f"CASE WHEN s.u{i} THEN t.{name} ELSE {value} END"
                if f"u{i}" in target.view_columns
                else value
            )
            yield f"t.{name} = {new_value}"
    for name in past_columns(target):
        yield f"t.{name} = CASE WHEN s.action = {IN_PLACE} THEN t.{name} END"


def insert_values(target: Target) -> list[tuple[str, str]]:
    """(lake column, value) of every column, for an INSERT."""
    pairs = [(name, value) for i in range(len(target.columns)) for _, value, name in target.pair(i, "n")]
    return pairs + [(name, "NULL") for name in past_columns(target)]


def past_columns(target: Target) -> list[str]:
    """Return the lake columns that the fold knows nothing of."""
    names = [name for column in target.past for name in (column.lake_name, column.exact_name)]
    existing = {column.lake_name for column in target.past} | target.companions
    return [quote(name) for name in names if name in existing]


def same_key(target: Target, lake: str, prefix: str = "n") -> list[str]:
    """Return the conditions that a lake row and a row of ``s`` have the same key.

    Key columns are NOT NULL in the source; a typed value is NULL only where its exact text is not.

    Args:
        prefix: ``n`` for the row's key, ``m`` for its key in the lake.
    """
    conditions = []
    for i, _ in target.keys:
        pairs = target.pair(i, prefix)
        equals = "=" if len(pairs) == 1 else "<=>"
        conditions += [f"{lake}.{name} {equals} {value}" for _, value, name in pairs]
    return conditions


def key_range(target: Target, rows: pa.Table, lake: str, prefix: str = "n") -> list[str]:
    """Return the conditions that bound the keys in ``rows``.

    Args:
        prefix: ``n`` for the row's key, ``m`` for its key in the lake.
    """
    conditions = []
    for i, column in target.keys:
        name = f"{lake}.{quote(column.lake_name)}"
        conditions += value_range(target.markers, rows, f"{prefix}{i}", f"x{prefix}{i}", name)
    return conditions
