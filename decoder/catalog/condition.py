"""An SQL condition by which a user chooses rows: the source checks it, and evaluates it for the lake's rows.

Only the server decides what a condition means, also for rows that the server does not have: slotlake sends
these as text, and the server answers which of them satisfy the condition.  Invariant: a condition that passed
:func:`checked` is one expression, so it cannot leave the parentheses around it; it reads nothing but the row,
and its result for a row is the same each time within one transaction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.errors import PipelineFileError

# The server's own lexical rules (manual, 4.1), with standard_conforming_strings on.
_TOKEN = re.compile(
    r"""(?P<text>[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*")"""
    r"""|(?P<refused>--|/\*|\$(?:[^\W\d]\w*)?\$|[;'"\x00])|(?P<open>\()|(?P<close>\))|[\w$]+|.""",
    re.DOTALL,
)
_WORD = re.compile(r'"(?:[^"]|"")*"|[^\W\d][\w$]*')
_NO_SUBQUERY = ("SubPlan", "InitPlan")


@dataclass(frozen=True)
class TextColumn:
    """A column whose values can be given to the server as text.

    Attributes:
        type_name: as it is written in a cast.
        collation: qualified and quoted; None for a type that has none.
    """

    name: str
    type_name: str
    collation: str | None

    def cast(self, text: str) -> str:
        """SQL for a value of the column, from SQL for the value's text."""
        collate = f" COLLATE {self.collation}" if self.collation else ""
        return f"CAST({text} AS {self.type_name}){collate}"

    @property
    def quoted(self) -> str:
        """Its name in SQL."""
        return sql.Identifier(self.name).as_string(None)


@dataclass(frozen=True)
class Condition:
    """A condition over a table's columns that has been checked.

    Attributes:
        columns: those that it may name; the lake must have them.
    """

    text: str
    table: str
    columns: tuple[TextColumn, ...]

    def among(self, connection: psycopg.Connection[Any], values: Sequence[Sequence[str | None]]) -> list[int]:
        """Which of these rows satisfy it: their places, from 0.

        Args:
            values: the rows' texts, a sequence per column of ``columns``.
        """
        rows = connection.execute(self._question().encode(), [list(column) for column in values]).fetchall()
        return [int(row[0]) - 1 for row in rows]

    def _question(self) -> str:
        names = ", ".join(f"c{i}" for i in range(len(self.columns)))
        arrays = ", ".join(["%s::pg_catalog.text[]"] * len(self.columns))
        cast = ", ".join(f"{each.cast(f'c{i}')} AS {each.quoted}" for i, each in enumerate(self.columns))
        alias = sql.Identifier(self.table).as_string(None)
        begin = f"SELECT place__ FROM (SELECT {cast}, place__ FROM unnest("
        # OFFSET 0: the server casts each value before it evaluates the condition.
        end = f") WITH ORDINALITY AS given__ ({names}, place__) OFFSET 0) AS {alias} WHERE ({self.text})"
        return begin.replace("%", "%%") + arrays + end.replace("%", "%%")


def range_condition(table: SourceTable, key_range: str) -> str:
    """The condition for a range of keys, ``A..B``, both ends included; one end may be left out.

    Raises:
        PipelineFileError: the text is not a range, or the table has no key.
    """
    low, dots, high = key_range.partition("..")
    if not table.key:
        raise _keyless(table)
    if not dots or not (low or high):
        raise PipelineFileError(
            f"{key_range!r} is not a range of keys",
            where=f"--key-range, table {table.quoted}",
            way_out="write A..B, A.. or ..B; use --where for any other choice of rows",
        )
    name = sql.Identifier(table.key[0]).as_string(None)
    ends = [f"{name} {sign} {_literal(end)}" for sign, end in ((">=", low), ("<=", high)) if end]
    return " AND ".join(ends)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def checked(
    connection: psycopg.Connection[Any], table: SourceTable, text: str, lake_columns: Iterable[str]
) -> Condition:
    """A condition over the rows of a table, after the server has analysed it; nothing is executed.

    Raises:
        PipelineFileError: it is not one condition over these columns; or it contains a subquery or a volatile
            function, whose result can differ each time, and for rows of the lake.
    """
    if not table.key:
        raise _keyless(table)
    where = f"the condition on {table.quoted}: {text}"
    _require_one_expression(text, where)
    names = _named_columns(text, table, lake_columns)
    columns = tuple(text_columns(connection, table.relation_id, names).values())
    condition = Condition(text, table.table, columns)
    only = "" if table.kind == "p" else "ONLY "
    rows = f"SELECT ({text}) AND true AS x FROM {only}{table.quoted} WHERE ({text})"
    _refuse_plan(_plan(connection, f"SELECT s.x, s.x FROM ({rows}) AS s", where), where)
    try:
        with connection.transaction():
            condition.among(connection, [[] for _ in columns])
    except psycopg.Error as error:
        raise _not_understood(error, where, _ELSEWHERE) from None
    return condition


_ELSEWHERE = (
    "use only columns that are published and that the lake has, and no schema before the table's name"
)


def text_columns(
    connection: psycopg.Connection[Any], relation_id: int, names: Sequence[str]
) -> Mapping[str, TextColumn]:
    """Return columns of a table by name, in the order of ``names``; unknown names are left out."""
    rows = connection.execute(_COLUMNS.encode(), (relation_id, list(names))).fetchall()
    by_name = {row[0]: TextColumn(*row) for row in rows}
    return {name: by_name[name] for name in names if name in by_name}


_COLUMNS = """
SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod),
       CASE WHEN c.oid IS NOT NULL THEN pg_catalog.quote_ident(n.nspname) || '.'
            || pg_catalog.quote_ident(c.collname) END
FROM pg_catalog.pg_attribute a
LEFT JOIN pg_catalog.pg_collation c ON c.oid = a.attcollation AND c.collname <> 'default'
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.collnamespace
WHERE a.attrelid = %s AND a.attname = ANY (%s) AND NOT a.attisdropped
"""


def keys_condition(columns: Sequence[TextColumn], keys: Sequence[Sequence[str]]) -> str:
    """The condition that a row's key is one of these; the server can use the key's index.

    Args:
        keys: the keys' texts, a sequence per column.
    """
    names = ", ".join(column.quoted for column in columns)
    cast = ", ".join(column.cast(f"k{i}") for i, column in enumerate(columns))
    parts = ", ".join(f"k{i}" for i in range(len(columns)))
    arrays = ", ".join(f"{sql.Literal(list(texts)).as_string(None)}::pg_catalog.text[]" for texts in keys)
    return f"({names}) IN (SELECT {cast} FROM unnest({arrays}) AS given__ ({parts}))"


def _require_one_expression(text: str, where: str) -> None:
    depth = 0
    for token in _tokens(text):
        depth += (token.lastgroup == "open") - (token.lastgroup == "close")
        if token.lastgroup == "refused" or depth < 0:
            raise PipelineFileError(
                f"the condition is not a single expression, because of {token[0]!r} at character "
                f"{token.start() + 1}",
                where=where,
                way_out="write one SQL expression with closed quotes and parentheses, without comments, "
                "dollar quotes and semicolons",
            )
    if depth or not text.strip():
        raise PipelineFileError(
            "a parenthesis of the condition is not closed" if depth else "the condition is empty",
            where=where,
            way_out="write one SQL expression, as after WHERE",
        )


def _tokens(text: str) -> Iterator[re.Match[str]]:
    return _TOKEN.finditer(text)


def _named_columns(text: str, table: SourceTable, lake_columns: Iterable[str]) -> list[str]:
    """The lake's columns that a condition may name; all of them if it names the whole row."""
    words = set()
    for word in _WORD.findall(text):
        words.add(word[1:-1].replace('""', '"') if word.startswith('"') else word.lower())
    whole = table.table in words or 'u&"' in text.lower()
    here = {column.name for column in table.columns} & set(lake_columns)
    names = [column.name for column in table.columns if column.name in here]
    named = [name for name in names if whole or name in words]
    return named or list(table.key[:1])


def _plan(connection: psycopg.Connection[Any], statement: str, where: str) -> Any:
    try:
        with connection.transaction():
            connection.execute("SET LOCAL standard_conforming_strings = on")
            # The server prepares one statement only, so the text cannot add another.
            row = connection.execute(f"EXPLAIN (COSTS OFF, FORMAT JSON) {statement}".encode(), prepare=True)
            return row.fetchone()[0][0]["Plan"]  # type: ignore[index]
    except psycopg.errors.LockNotAvailable:
        raise
    except psycopg.Error as error:
        raise _not_understood(error, where) from None


def _refuse_plan(plan: Any, where: str) -> None:
    nodes = list(_nodes(plan))
    if any(node.get("Parent Relationship") in _NO_SUBQUERY for node in nodes):
        raise PipelineFileError(
            "a condition may not contain a subquery: the source cannot answer it for rows that only the "
            "lake has",
            where=where,
            way_out="query the keys at the source first, and write them in the condition: id IN (1, 2, 3)",
        )
    # The planner does not merge a subquery whose columns are volatile (is_simple_subquery, prepjointree.c).
    if any(node.get("Node Type") == "Subquery Scan" for node in nodes):
        raise PipelineFileError(
            "a condition may not call a volatile function, such as random() or clock_timestamp(): "
            "it would choose other rows each time",
            where=where,
            way_out="write a value instead; now() and current_date are allowed",
        )


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _not_understood(error: psycopg.Error, where: str, way_out: str = "") -> PipelineFileError:
    return PipelineFileError(
        f"PostgreSQL does not accept the condition: {error.diag.message_primary or 'it gives no reason'}",
        where=where,
        way_out=way_out or "write one SQL expression over the table's columns, as after WHERE",
    )


def _keyless(table: SourceTable) -> PipelineFileError:
    return PipelineFileError(
        f"{table.quoted} has no key, so single rows of it cannot be identified",
        where=f"the condition or the range of keys, table {table.quoted}",
        way_out="leave the condition or the range out, so that the whole table is read again; or give the "
        "table a primary key that is not deferrable",
    )


__all__ = ["Condition", "TextColumn", "checked", "keys_condition", "range_condition", "text_columns"]
