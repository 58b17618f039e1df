"""The SQL that brings the fold of a table without a key into its branch ``stage``. Text in, text out.

Rows that go are found by all of their values and taken away by their place (``_file``, ``_pos``), which
costs deletion vectors and no rewriting: equal rows differ in nothing else, so of three that are equal one
can go.  ``l`` is the lake table, ``s`` the folded rows, ``d`` the places of what goes.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from spark.apply_sql import Target, inserted, value_range
from spark.names import quote

# Each bound is two conditions more; a few columns already leave out most files.
_BOUNDED_COLUMNS_MAX = 16
_BROADCAST_ROWS_MAX = 50_000
_FLOATS = ("float", "double")


def bag_statements(target: Target, view: str) -> list[str]:
    """The statements to run one after the other; there is always one.

    Args:
        view: the temporary view that holds the folded rows.
    """
    remove, add = (pc.sum(target.fold.rows[name]).as_py() or 0 for name in ("remove", "add"))
    found = [f"DELETE FROM {target.branch}"] if target.fold.truncated else []
    found += [_remove(target, view)] if remove else []
    # DELETE of an empty table makes no snapshot, so it cannot be what completes the table.
    return found + ([_add(target, view)] if add or not remove else [])


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
    taken, hashed, conditions = ["_file AS f", "_pos AS p", *also], [], []
    for i, column in enumerate(target.columns):
        for given, value, name in target.pair(i, "n"):
            taken.append(f"{name} AS l{given}")
            hashed.append((f"l.l{given}", value))
            if given == f"n{i}" and any(name in column.kept.spark for name in _FLOATS):
                conditions.append(f"CAST(l.l{given} AS STRING) <=> CAST({value} AS STRING)")
            else:
                conditions.append(f"l.l{given} <=> {value}")
    met = " AND ".join([*where, *_range(target, rows, "")]) or "true"
    lake = f"(SELECT {', '.join(taken)} FROM {target.branch} WHERE {met})"
    ours, theirs = (f"xxhash64({', '.join(side)})" for side in zip(*hashed, strict=True))
    equal = f"({' AND '.join(conditions)} OR s.{count} < 0)"
    return f"{lake} AS l JOIN {quote(view)} AS s ON {ours} = {theirs} AND {equal}"


def _range(target: Target, rows: pa.Table, prefix: str) -> list[str]:
    """Literal bounds of ``rows``, so that files that cannot hold any of them are left out."""
    conditions: list[str] = []
    for i, column in enumerate(target.columns):
        if len(conditions) < 2 * _BOUNDED_COLUMNS_MAX:
            conditions += value_range(rows, f"n{i}", f"xn{i}", f"{prefix}{quote(column.lake_name)}")
    return conditions


def _remove(target: Target, view: str) -> str:
    going = target.fold.rows.filter(pc.greater(target.fold.rows["remove"], 0))
    # Spark takes a numbered join for large, and would shuffle the whole table to meet it.
    few = target.fold.expected.sum() <= _BROADCAST_ROWS_MAX
    hint_s, hint_found = ("/*+ BROADCAST(s) */ ", "/*+ BROADCAST(found) */ ") if few else ("", "")
    numbered = (
        f"SELECT {hint_s}l.f, l.p, s.remove, "
        "row_number() OVER (PARTITION BY s.row ORDER BY l.f, l.p) AS number "
        f"FROM {bag_join(target, going, view, 'remove')} AND s.remove > 0"
    )
    places = f"SELECT {hint_found}f, p FROM ({numbered}) AS found WHERE number <= remove"
    t = alias_of(target)
    condition = " AND ".join([f"{t}._file = d.f", f"{t}._pos = d.p", *_range(target, going, f"{t}.")])
    return f"MERGE INTO {target.branch} AS {t} USING ({places}) AS d ON {condition} WHEN MATCHED THEN DELETE"


def alias_of(target: Target) -> str:
    """No column's name: Spark would look for ``_file`` in that column."""
    names = {column.lake_name.lower() for column in (*target.columns, *target.past)}
    alias = "t"
    while alias in names:
        alias += "t"
    return alias


def _add(target: Target, view: str) -> str:
    names, values = zip(*inserted(target), strict=True)
    return (
        f"INSERT INTO {target.branch} ({', '.join(names)}) SELECT {', '.join(values)} "
        f"FROM {quote(view)} AS s LATERAL VIEW explode(array_repeat(0, CAST(s.add AS INT))) c AS copy"
    )
