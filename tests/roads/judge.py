"""What the lake holds beside what the source held: values as PostgreSQL prints them, read by others.

Floats are compared by their bits, because each side may print them with other digits; all else as text.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import psycopg
import pyarrow as pa

from tests.conftest import Database
from tests.e2e.oracle import source_rows

Row = tuple[str | None, ...]
Rows = Counter[Row]
_EXACT: Final = "__exact"
MARKED: Final = ("_is_deleted", "_lsn", "_committed_at")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def held(database: Database, tables: Iterable[str]) -> dict[str, tuple[list[str], Rows]]:
    """Per table the names of its columns, and its rows at the source now."""
    found = {}
    with database.connect() as connection:
        for table in tables:
            floats = _floats(connection, table)
            names, rows = source_rows(connection, table)
            found[table] = (names, _with_bits(names, rows, floats))
    return found


def _floats(connection: psycopg.Connection[Any], table: str) -> dict[str, str]:
    query = (
        "SELECT attname, CASE atttypid WHEN 'float4'::regtype THEN '<f' ELSE '<d' END FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND atttypid IN ('float4'::regtype, 'float8'::regtype)"
    )
    return dict(connection.execute(query, [table]).fetchall())


def _with_bits(names: Sequence[str], rows: Rows, floats: Mapping[str, str]) -> Rows:
    if not floats:
        return rows
    kinds = [floats.get(name) for name in names]
    made: Rows = Counter()
    for row, count in rows.items():
        made[
            tuple(
                v if k is None or v is None else _bits(float(v), k) for v, k in zip(row, kinds, strict=True)
            )
        ] += count
    return made


def _bits(value: float, kind: str) -> str:
    return "NaN" if value != value else struct.pack(kind, value).hex()  # noqa: PLR0124


def rows_in(table: pa.Table, names: Sequence[str]) -> Rows:
    """The rows of a lake's table as texts; an exact text stands in its column's place."""
    return Counter(tuples(table, names))


def tuples(table: pa.Table, names: Sequence[str]) -> list[Row]:
    """As `rows_in`, in the order of the table."""
    present = set(table.column_names)
    columns = []
    for name in names:
        values = texts(table[name]) if name in present else [None] * table.num_rows
        if name + _EXACT in present:
            exact = table[name + _EXACT].to_pylist()
            values = [v if e is None else e for v, e in zip(values, exact, strict=True)]
        columns.append(values)
    return list(zip(*columns, strict=True))


def texts(column: pa.ChunkedArray) -> list[str | None]:
    """Values as PostgreSQL prints them; floats as their bits."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        numbers = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).to_pylist()
        zone = "" if kind.tz is None else "+00"
        return [None if n is None else _moment(n) + zone for n in numbers]
    if pa.types.is_floating(kind):
        form = "<f" if kind.bit_width == 32 else "<d"
        return [None if v is None else _bits(v, form) for v in column.to_pylist()]
    return [None if v is None else text(v) for v in column.to_pylist()]


def _moment(microseconds: int) -> str:
    moment = _EPOCH + timedelta(microseconds=microseconds)
    seconds = moment.strftime(f"{moment.year:04}-%m-%d %H:%M:%S")
    return f"{seconds}.{moment.microsecond:06}".rstrip("0") if moment.microsecond else seconds


def text(value: Any) -> str:
    """A value as PostgreSQL prints it."""
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, date):
        return f"{value.year:04}-{value.month:02}-{value.day:02}"
    return str(value)


def live(table: pa.Table) -> pa.Table:
    """Without rows that are marked as deleted."""
    if MARKED[0] not in table.column_names:
        return table
    return table.filter(pa.compute.invert(table[MARKED[0]]))


def at_position(history: pa.Table, position: int) -> pa.Table:
    """The rows that a history had at a position (docs/modes.md)."""
    begun = pa.compute.less_equal(history["valid_from_lsn"], position)
    ended = pa.compute.fill_null(pa.compute.less_equal(history["valid_to_lsn"], position), fill_value=False)
    return history.filter(pa.compute.and_(begun, pa.compute.invert(ended)))


def replayed(changes: pa.Table, names: Sequence[str], position: int) -> Rows:
    """The rows that a change log comes to at a position, change by change (docs/modes.md)."""
    changes = changes.filter(pa.compute.less_equal(changes["lsn"], position))
    changes = changes.sort_by([("lsn", "ascending"), ("commit_lsn", "ascending"), ("seq", "ascending")])
    news, olds = (_structs(changes[side], names) for side in ("new", "old"))
    rows: list[Row] = []
    for number, (op, whole, unchanged) in enumerate(
        zip(*(changes[name].to_pylist() for name in ("op", "old_row", "unchanged")), strict=True)
    ):
        new, old = news[number], olds[number]
        if op in "TC":
            rows.clear()
        elif op in "IR":
            rows.append(_tuple(new))
        else:
            at = _place(rows, names, old or {}, whole, new, changes, number)
            before = dict(zip(names, rows.pop(at), strict=True)) if at is not None else {}
            if op == "U":
                kept = {name: before.get(name) for name in unchanged or ()}
                rows.append(_tuple({**(new or {}), **kept}))
    return Counter(rows)


def _structs(column: pa.ChunkedArray, names: Sequence[str]) -> list[dict[str, str | None] | None]:
    """Each row's struct as texts."""
    whole: Any = pa.concat_arrays(column.chunks) if column.num_chunks else column.combine_chunks()
    inner = {
        whole.type.field(i).name: pa.chunked_array([whole.field(i)]) for i in range(whole.type.num_fields)
    }
    table = pa.table(inner)
    columns = []
    for name in names:
        values = texts(table[name]) if name in inner else [None] * len(whole)
        if name + _EXACT in inner:
            exact = table[name + _EXACT].to_pylist()
            values = [v if e is None else e for v, e in zip(values, exact, strict=True)]
        columns.append(values)
    there = whole.is_valid().to_pylist()
    rows = zip(*columns, strict=True)
    return [
        dict(zip(names, row, strict=True)) if is_there else None
        for row, is_there in zip(rows, there, strict=True)
    ]


def _tuple(row: Mapping[str, str | None] | None) -> Row:
    assert row is not None
    return tuple(row.values())


def _place(
    rows: list[Row], names: Sequence[str], old: Mapping[str, str | None], whole: str | None,
    new: Mapping[str, str | None] | None, changes: pa.Table, number: int,
) -> int | None:  # fmt: skip
    """Which row a change names: by the whole old row, by its key, or by the key that stayed."""
    if whole == "row":
        return rows.index(_tuple(old)) if _tuple(old) in rows else None
    key = [name for name in names if name.startswith("k")]
    named = old if whole == "key" else new
    assert named is not None
    wanted = tuple(_equal(named[name]) for name in key)
    for at, row in enumerate(rows):
        if tuple(_equal(value) for name, value in zip(names, row, strict=True) if name in key) == wanted:
            return at
    return None


def _equal(value: str | None) -> str | None:
    """0 and -0 are one key."""
    return {"0000000000000080": "0" * 16, "00000080": "0" * 8}.get(value or "", value)


def difference(expected: Rows, actual: Rows) -> str:
    """What is missing and extra, with long values cut; empty if nothing is."""
    if expected == actual:
        return ""
    missing, extra = (
        [
            tuple(v if v is None or len(v) < 60 else f"{v[:50]}…{len(v)}" for v in row)
            for row in rows.elements()
        ]
        for rows in (expected - actual, actual - expected)
    )
    return f"{len(missing)} rows missing: {missing[:3]}; {len(extra)} rows extra: {extra[:3]}"
