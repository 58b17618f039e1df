"""Checks that this role may read every row and every column of the published tables.

The stream obeys neither GRANTs nor row-level security; a copy obeys both.  Rows that the role may not see
would be missing in the copy, while the stream would bring their changes.  Invariant: the check comes before
anything is created, covers all tables at once, and its error gives the statements that grant what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from slotlake.decoder.errors import SourceError


@dataclass(frozen=True)
class _Rights:
    """The privileges of a role on a table; ``columns`` are those that it lacks."""

    schema: str
    table: str
    usage: bool
    select: bool
    secured: bool
    columns: tuple[str, ...]

    @property
    def quoted(self) -> str:
        return sql.Identifier(self.schema, self.table).as_string(None)


_RIGHTS = """
SELECT current_user::text, c.oid::bigint, n.nspname, c.relname,
       coalesce(has_schema_privilege(n.oid, 'USAGE'), true), -- NULL: dropped since, so nothing is read
       coalesce(has_table_privilege(c.oid, 'SELECT'), true), row_security_active(c.oid), array(
           SELECT a.attname::text FROM pg_attribute a
           WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
             AND NOT has_column_privilege(c.oid, a.attnum, 'SELECT') ORDER BY a.attnum)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%s) ORDER BY n.nspname, c.relname
"""


def require_readable(
    connection: psycopg.Connection[Any],
    tables: Mapping[int, Sequence[str] | None],
) -> None:
    """Check that the role of this connection may read all rows and columns of the tables.

    Args:
        tables: OID → the columns that are read, None for all.

    Raises:
        SourceError: it may not; the error names all these tables, and the statements to run.
    """
    rights, role = [], ""
    for row in connection.execute(_RIGHTS.encode(), (list(tables),)).fetchall():
        role, oid, schema, name, usage, select, secured, hidden = row
        columns = tables[int(oid)]
        lacking = tuple(column for column in hidden if columns is None or column in columns)
        rights.append(_Rights(schema, name, usage, select, secured, lacking))
    _refuse_hidden_rows(rights, role)
    _refuse_hidden_tables(rights, role)


def _refuse_hidden_rows(rights: Sequence[_Rights], role: str) -> None:
    secured = [each for each in rights if each.secured]
    if not secured:
        return
    named = ", ".join(each.quoted for each in secured)
    first = secured[0]
    raise SourceError(
        f"row-level security hides rows of {named} from this role: a copy would lack these rows, but the "
        "stream, which ignores row-level security, would bring their changes",
        where=f"role {role}",
        way_out=f"ALTER ROLE {_quoted(role)} BYPASSRLS (as a superuser), or use a role that the policies do "
        "not apply to. To leave rows out on purpose, use a WHERE of the publication, or tables.<name>.filter",
    ).of(first.schema, first.table)


def _refuse_hidden_tables(rights: Sequence[_Rights], role: str) -> None:
    no_usage = sorted({each.schema for each in rights if not each.usage})
    lacking = [each for each in rights if each.columns and not each.select]
    if not no_usage and not lacking:
        return
    unreadable = [f"schema {sql.Identifier(schema).as_string(None)}" for schema in no_usage]
    unreadable += [_described(each) for each in lacking]
    grantee = _quoted(role)
    statements = [
        f"GRANT USAGE ON SCHEMA {sql.Identifier(schema).as_string(None)} TO {grantee}" for schema in no_usage
    ]
    if lacking:
        statements.append(f"GRANT SELECT ON {', '.join(each.quoted for each in lacking)} TO {grantee}")
    first = (lacking or [each for each in rights if not each.usage])[0]
    raise SourceError(
        f"the role may not read all published tables and columns; it lacks: {', '.join(unreadable)}",
        where=f"role {role}",
        way_out="ask the owner to run: " + "; ".join(statements),
    ).of(first.schema, first.table)


def _described(rights: _Rights) -> str:
    return rights.quoted if len(rights.columns) > 5 else f"{rights.quoted} ({', '.join(rights.columns)})"


def _quoted(role: str) -> str:
    return sql.Identifier(role).as_string(None)
