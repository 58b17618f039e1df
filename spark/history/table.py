"""The table ``<table>__history``: every version of every row, from which LSN and time to which.

A version begins and ends with a transaction: what the table held at an LSN that was a position of the lake
is ``valid_from_lsn <= L AND (valid_to_lsn IS NULL OR valid_to_lsn > L)``, that is the invariant.  Both are
the end of a commit record, the first position at which readers of the source see what it did.  The
versions that hold now (``is_open``) have a partition of their own, so that neither reading the present nor
applying a batch looks at the past.

The columns are the mirror's, under the names that spark/history/columns.py gives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from slotlake.spark.fold.batch import FoldCounts, Folded
from slotlake.spark.fold.conflicts import Conflicts
from slotlake.spark.history.columns import IS_OPEN as _OPEN
from slotlake.spark.history.columns import OWN as _OWN
from slotlake.spark.history.columns import derived_column, field_name
from slotlake.spark.history.fold import Versions
from slotlake.spark.merge.bag_sql import alias_of, bag_join
from slotlake.spark.merge.sql import Target, key_range, same_key
from slotlake.spark.names import LakeName, quote
from slotlake.spark.publish.derived_tables import Source, column_types, create, fields_of, timestamp
from slotlake.spark.tables.metadata import Metadata
from slotlake.spark.tables.schema import TableSchema, unbounded

__all__ = [
    "IMAGES",
    "amend_statements",
    "copy_statements",
    "definition",
    "derived_column",
    "field_name",
    "open_versions_query",
    "statements",
    "target_of",
    "versions_source",
    "view_schema",
]
IMAGES: Sequence[str] = ()
_VALIDITY = {"from_lsn": "bigint", "to_lsn": "bigint", "from_time": "timestamp", "to_time": "timestamp"}


def _derived_schema(schema: TableSchema) -> TableSchema:
    return replace(schema, columns=tuple(map(derived_column, schema.columns)))


def definition(
    name: LakeName, catalog: str, schema: TableSchema, pipeline: str, location: str, table_format: int
) -> str:
    """Return the SQL that makes the table."""
    columns = [f"{quote(column)} {kind}" for column, kind in _OWN.items()]
    columns += [field.definition for field in fields_of(_derived_schema(schema))]
    options = {
        "mode": "history",
        "pipeline": pipeline,
        "location": location,
        "format": table_format,
        "partitioned": _OPEN,
        "unbounded": unbounded(_derived_schema(schema).columns),
    }
    return create(name, catalog, columns, options)


def copy_statements(metadata: Metadata, target: str, source: Source) -> list[str]:
    """Return the SQL for a copy: all open versions end, and new ones begin with its rows."""
    when = timestamp(source.time)
    ending = (
        f"UPDATE {target} SET valid_to_lsn = {source.position}L, valid_to_time = {when}, "
        f"{_OPEN} = false WHERE {_OPEN}"
    )
    adding = _beginning(metadata, target, source)
    return [ending, adding] if metadata.get("snapshots") else [adding]


def _beginning(metadata: Metadata, target: str, source: Source) -> str:
    own = {field_name(field): field for field in sorted(source.fields)}
    names = [name for name in column_types(metadata) if name in own]
    into = ", ".join(["valid_from_lsn", "valid_from_time", _OPEN, *map(quote, names)])
    when = timestamp(source.time)
    rows = ", ".join([f"{source.position}L", when, "true", *(quote(own[name]) for name in names)])
    return f"INSERT INTO {target} ({into}) SELECT {rows} FROM {source.name}"


def amend_statements(
    metadata: Metadata, target: str, new_rows: Source, touched: str, key: Sequence[str]
) -> list[str]:
    """The SQL for rows that were read again: the open versions of some keys end, and new ones begin."""
    when = timestamp(new_rows.time)
    same = " AND ".join(f"t.{quote(field_name(name))} <=> s.{quote(name)}" for name in key)
    ends = f"t.{_OPEN} = false, t.valid_to_lsn = {new_rows.position}L, t.valid_to_time = {when}"
    ending = (
        f"MERGE INTO {target} AS t USING {quote(touched)} AS s ON t.{_OPEN} AND {same} "
        f"WHEN MATCHED THEN UPDATE SET {ends}"
    )
    return [ending, _beginning(metadata, target, new_rows)]


def target_of(
    name: LakeName, catalog: str, schema: TableSchema, metadata: Metadata, versions: Versions
) -> Target:
    """Return the history as the target of statements."""
    schema = _derived_schema(schema)
    rows, counts = versions.rows, FoldCounts(versions.rows.num_rows, Conflicts())
    fold = Folded(
        str(name), versions.columns, versions.key, False, rows, counts, np.empty(0, np.int64), versions.bag
    )
    fields = column_types(metadata)
    companions = frozenset(c.exact_name for c in schema.columns if c.exact_name in fields)
    return Target.of(name, catalog, schema, fold, companions)


def open_versions_query(target: Target, lookup: pa.Table, view: str, holds: str = _OPEN) -> str:
    """Return the query for how many open versions there are per key: (code, held).

    Args:
        lookup: the keys, as `SegmentFold.lookup_rows` gives them.
        holds: the condition, in Spark SQL, of the rows that are counted.
    """
    if target.fold.bag:
        pairs = bag_join(target, lookup, view, "code", where=[holds])
    else:
        condition = " AND ".join([holds, *same_key(target, "l"), *key_range(target, lookup, "l")])
        pairs = f"{target.branch} AS l JOIN {quote(view)} AS s ON {condition}"
    return f"SELECT s.code AS code, count(*) AS held FROM {pairs} GROUP BY s.code"


def statements(
    target: Target, versions: Versions, view: str, lookup_view: str, *, continued: bool = False
) -> list[str]:
    """Return the statements that end and begin versions; the last one completes the table.

    Args:
        view: the view of ``versions.rows``.
        lookup_view: of a bag, the view of ``versions.lookup_rows``.
        continued: slices before may have begun versions of the same transaction. Where this slice ends one of
            these, nobody ever saw it, and it goes.
    """
    names, values = (", ".join(side) for side in zip(*_inserted(target), strict=True))
    source = versions_source(target, versions, view, lookup_view)
    if not versions.closes:
        adding = f"INSERT INTO {target.branch} ({names}) SELECT {values} FROM {source} AS s"
        return [*_truncating(target, versions, continued=continued), adding]
    t = alias_of(target)
    ends = f"UPDATE SET {t}.{_OPEN} = false, {t}.valid_to_lsn = {{}}, {t}.valid_to_time = {{}}"
    clauses = [f"WHEN MATCHED AND {t}.valid_from_lsn = s.to_lsn THEN DELETE"] if continued else []
    clauses += [
        f"WHEN MATCHED THEN {ends.format('s.to_lsn', 's.to_time')}",
        f"WHEN NOT MATCHED AND NOT s.close THEN INSERT ({names}) VALUES ({values})",
    ]
    if versions.truncated is not None:
        at, when = versions.truncated
        if continued:
            clauses.append(
                f"WHEN NOT MATCHED BY SOURCE AND {t}.{_OPEN} AND {t}.valid_from_lsn = {at}L THEN DELETE"
            )
        clauses.append(
            f"WHEN NOT MATCHED BY SOURCE AND {t}.{_OPEN} THEN {ends.format(f'{at}L', timestamp(when))}"
        )
    condition = " AND ".join(["s.close", f"{t}.{_OPEN}", *_same_version(target, versions, t)])
    return [f"MERGE INTO {target.branch} AS {t} USING {source} AS s ON {condition} {' '.join(clauses)}"]


def _same_version(target: Target, versions: Versions, t: str) -> list[str]:
    if versions.bag:
        return [f"{t}._file = s.f", f"{t}._pos = s.p"]
    closed_rows = target.fold.rows.slice(0, versions.closes)
    # What no row of the batch matches ends too when the table is truncated: then no file may be left out.
    return same_key(target, t) + (key_range(target, closed_rows, t) if versions.truncated is None else [])


def _truncating(target: Target, versions: Versions, *, continued: bool) -> list[str]:
    if versions.truncated is None:
        return []
    at, when = versions.truncated
    ends = f"{_OPEN} = false, valid_to_lsn = {at}L, valid_to_time = {timestamp(when)}"
    unseen = f"DELETE FROM {target.branch} WHERE {_OPEN} AND valid_from_lsn = {at}L"
    ending = f"UPDATE {target.branch} SET {ends} WHERE {_OPEN}"
    return [unseen, ending] if continued else [ending]


def view_schema(target: Target, rows: pa.Table) -> str:
    """DDL of the columns of a view of rows."""
    kinds = {**_VALIDITY, "close": "boolean", "code": "bigint", "number": "bigint"}
    for i, column in enumerate(target.columns):
        kinds |= {
            f"n{i}": column.spark_type,
            f"m{i}": column.spark_type,
            f"u{i}": "boolean",
        }
        kinds |= {f"xn{i}": "string", f"xm{i}": "string"}
    return ", ".join(f"{name} {kinds[name]}" for name in rows.column_names)


def _inserted(target: Target) -> list[tuple[str, str]]:
    """(column, value of ``s``) of a version that begins."""
    values = [(f"valid_{name}", f"s.{name}") for name in _VALIDITY] + [(_OPEN, "s.to_lsn IS NULL")]
    values += [
        (name, f"s.{source}") for i in range(len(target.columns)) for source, _, name in target.pair(i, "n")
    ]
    return values + [(name, f"s.p{number}") for number, name in enumerate(_past(target))]


def _past(target: Target) -> list[str]:
    """Fields of columns that the changes say nothing of."""
    names = [name for column in target.past for name in (column.lake_name, column.exact_name)]
    existing = {column.lake_name for column in target.past} | target.companions
    return [quote(name) for name in names if name in existing]


def versions_source(
    target: Target, versions: Versions, view: str, lookup_view: str, holds: str = _OPEN
) -> str:
    """The rows: with what versions keep of the open one that they come from, or the place of what ends.

    Args:
        view: the view of ``versions.rows``.
        lookup_view: of a bag, the view of ``versions.lookup_rows``.
        holds: the condition, in Spark SQL, of the rows of the lake that are open.
    """
    moved = any(f"m{i}" in target.view_columns for i, _ in target.keys)
    selected = ["s.close AS close", *(f"s.{name} AS {name}" for name in _VALIDITY)]
    needed = [name for i, _ in target.keys for _, _, name in target.pair(i, "m")] if moved else []
    for i in range(len(target.columns)):
        for source_name, value, name in target.pair(i, "n"):
            from_open = moved and f"u{i}" in target.view_columns
            expression = f"CASE WHEN s.u{i} THEN o.{name} ELSE {value} END" if from_open else value
            selected.append(f"{expression} AS {source_name}")
            needed += [name] if from_open else []
    past = _past(target)
    selected += [f"{f'o.{name}' if moved else 'NULL'} AS p{number}" for number, name in enumerate(past)]
    joined = _open_version(target, [*needed, *past], holds) if moved else ""
    if versions.bag and versions.closes:
        selected += ["d.f AS f", "d.p AS p"]
        joined = _places(target, versions, lookup_view)
    return f"(SELECT {', '.join(selected)} FROM {quote(view)} AS s{joined})"


def _open_version(target: Target, names: Sequence[str], holds: str) -> str:
    where = " AND ".join([holds, *key_range(target, target.fold.rows, "l", "m")])
    lake = f"(SELECT {', '.join(dict.fromkeys(names))} FROM {target.branch} AS l WHERE {where})"
    return f" LEFT JOIN {lake} AS o ON {' AND '.join(same_key(target, 'o', 'm'))}"


def _places(target: Target, versions: Versions, lookup_view: str) -> str:
    """Where the open versions lie that end: of those that are alike, the oldest first."""
    assert versions.lookup_rows is not None
    lookup_target = replace(target, view_columns=frozenset(versions.lookup_rows.column_names))
    pairs = bag_join(
        lookup_target,
        versions.lookup_rows,
        lookup_view,
        "code",
        where=[_OPEN],
        also=["valid_from_lsn AS began"],
    )
    numbered = (
        "SELECT l.f, l.p, s.code, "
        f"row_number() OVER (PARTITION BY s.code ORDER BY l.began, l.f, l.p) AS number FROM {pairs}"
    )
    return f" LEFT JOIN ({numbered}) AS d ON s.close AND s.code = d.code AND s.number = d.number"
