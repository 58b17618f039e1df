"""The SQL that brings the fold of a table without a key into its branch ``stage``. Text in, text out.

Rows that go are found by all of their values and taken away by their place (``_file``, ``_pos``), which
costs deletion vectors and no rewriting: equal rows differ in nothing else, so of three that are equal one
can go.  ``l`` is the lake table, ``s`` the folded rows, ``d`` the places of what goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from slotlake.spark.merge.bounds import value_range
from slotlake.spark.merge.sql import Target, insert_values
from slotlake.spark.names import quote

# Each bound is two conditions more; a few columns already leave out most files.
_BOUNDED_COLUMNS_MAX = 16
# What takes places away looks at bounds again and reads each bounded column for it: a few that are cheap.
_PLACED_COLUMNS_MAX = 2
_BROADCAST_ROWS_MAX = 50_000
_FLOATS = ("float", "double")


def bag_statements(target: Target, view: str) -> list[str]:
    """The statements to run one after the other; there is always one."""
    remove, add = (pc.sum(target.fold.rows[name]).as_py() or 0 for name in ("remove", "add"))
    statements = [f"DELETE FROM {target.branch}"] if target.fold.truncated else []
    if remove:
        distinct = pc.sum(pc.greater(target.fold.rows["remove"], 0)).as_py()
        single = target.trusted and not target.fold.truncated and distinct == 1
        statements.append(_remove_all(target, view) if single else _remove(target, view))
    # DELETE of an empty table makes no snapshot, so it cannot be what completes the table.
    return statements + ([_add(target, view)] if add or not remove else [])


def bag_join(
    target: Target,
    rows: pa.Table,
    view: str,
    count: str,
    *,
    where: Sequence[str] = (),
    also: Sequence[str] = (),
) -> str:
    """FROM of the pairs of a row of the lake and the row ``s`` that it equals; ``l.f``, ``l.p``: its place.

    Equal are all values, NULL like NULL, and floats as they are printed.  The join itself is by a hash of
    them, one number in place of two keys a column; whether a pair is equal is looked at afterwards.

    Args:
        rows: what the view holds that can be equal to something.
        count: a column of the view that is never negative. An alternative that never holds keeps Spark from
            making keys of the conditions.
        where: only rows of the lake of which this holds.
        also: what else of the lake's row ``l`` has.
    """
    lake_columns = ["_file AS f", "_pos AS p", *also]
    lake_columns += [
        f"{name} AS l{source_name}"
        for i in range(len(target.columns))
        for source_name, _, name in target.pair(i, "n")
    ]
    lake_condition = " AND ".join([*where, *_range(target, rows, "")]) or "true"
    lake = f"(SELECT {', '.join(lake_columns)} FROM {target.branch} WHERE {lake_condition})"
    return f"{lake} AS l JOIN {quote(view)} AS s ON {_equal(target, lambda given, _: f'l.l{given}', count)}"


def _equal(target: Target, lake: Callable[[str, str], str], count: str) -> str:
    """The condition; ``lake``: the lake's value, by the name in ``s`` and the lake column."""
    hashed, conditions = [], []
    for i, column in enumerate(target.columns):
        for source_name, value, name in target.pair(i, "n"):
            lake_value = lake(source_name, name)
            hashed.append((lake_value, value))
            if source_name == f"n{i}" and any(name in column.spark_type for name in _FLOATS):
                conditions.append(f"CAST({lake_value} AS STRING) <=> CAST({value} AS STRING)")
            else:
                conditions.append(f"{lake_value} <=> {value}")
    lake_hash, row_hash = (f"xxhash64({', '.join(side)})" for side in zip(*hashed, strict=True))
    return f"{lake_hash} = {row_hash} AND ({' AND '.join(conditions)} OR s.{count} < 0)"


def _range(target: Target, rows: pa.Table, prefix: str) -> list[str]:
    """Bounds of ``rows``, so that files that cannot hold any of them are left out."""
    return _bounds(target, rows, prefix, range(len(target.columns)), _BOUNDED_COLUMNS_MAX)


def _cheap_range(target: Target, rows: pa.Table, prefix: str) -> list[str]:
    """The same of a few columns that cost little to read: of those without a fixed width only if all are."""
    narrow = [i for i in range(len(target.columns)) if _is_fixed(rows[f"n{i}"].type)]
    conditions = _bounds(target, rows, prefix, narrow, _PLACED_COLUMNS_MAX)
    return conditions or _bounds(target, rows, prefix, range(len(target.columns)), 1)


def _bounds(
    target: Target, rows: pa.Table, prefix: str, columns: Iterable[int], columns_max: int
) -> list[str]:
    conditions: list[str] = []
    for i in columns:
        if len(conditions) < 2 * columns_max:
            name = f"{prefix}{quote(target.columns[i].lake_name)}"
            conditions += value_range(target.markers, rows, f"n{i}", f"xn{i}", name)
    return conditions


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_temporal(kind) or pa.types.is_decimal(kind))


def _remove(target: Target, view: str) -> str:
    removed = target.fold.rows.filter(pc.greater(target.fold.rows["remove"], 0))
    # Spark takes a numbered join for large, and would shuffle the whole table to meet it.
    few = target.fold.expected.sum() <= _BROADCAST_ROWS_MAX
    hint_s, hint_numbered = ("/*+ BROADCAST(s) */ ", "/*+ BROADCAST(found) */ ") if few else ("", "")
    numbered = (
        f"SELECT {hint_s}l.f, l.p, s.remove, "
        "row_number() OVER (PARTITION BY s.row ORDER BY l.f, l.p) AS number "
        f"FROM {bag_join(target, removed, view, 'remove')} AND s.remove > 0"
    )
    places = f"SELECT {hint_numbered}f, p FROM ({numbered}) AS found WHERE number <= remove"
    t = alias_of(target)
    condition = " AND ".join([f"{t}._file = d.f", f"{t}._pos = d.p", *_cheap_range(target, removed, f"{t}.")])
    return f"MERGE INTO {target.branch} AS {t} USING ({places}) AS d ON {condition} WHEN MATCHED THEN DELETE"


def _remove_all(target: Target, view: str) -> str:
    """Take away all rows equal to the one that goes: one reading of the table, where `_remove` needs two.

    Right if as many rows go as are expected to, which whoever trusts the lake looks at afterwards; of several
    distinct rows one too many could hide one too few.
    """
    removed = target.fold.rows.filter(pc.greater(target.fold.rows["remove"], 0))
    t = alias_of(target)
    condition = " AND ".join(
        [_equal(target, lambda _, name: f"{t}.{name}", "remove"), *_range(target, removed, f"{t}.")]
    )
    source = f"(SELECT /*+ BROADCAST */ * FROM {quote(view)} WHERE remove > 0)"
    return f"MERGE INTO {target.branch} AS {t} USING {source} AS s ON {condition} WHEN MATCHED THEN DELETE"


def alias_of(target: Target) -> str:
    """No column's name: Spark would look for ``_file`` in that column."""
    names = {column.lake_name.lower() for column in (*target.columns, *target.past)}
    alias = "t"
    while alias in names:
        alias += "t"
    return alias


def _add(target: Target, view: str) -> str:
    names, values = zip(*insert_values(target), strict=True)
    return (
        f"INSERT INTO {target.branch} ({', '.join(names)}) SELECT {', '.join(values)} "
        f"FROM {quote(view)} AS s LATERAL VIEW explode(array_repeat(0, CAST(s.add AS INT))) c AS copy"
    )
