"""The source's half of a reconciliation: SQL that hashes a table where it lies, in one snapshot.

All statements run in one read-only transaction that imported the snapshot, with row security off, so
that a policy is an error and not a silent difference.  Nothing but hashes leaves the server, except
for the keys of rows that differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
from psycopg import sql

from slotlake.decoder.catalog.publication_tables import require_filter
from slotlake.decoder.catalog.vanished import vanished_error, vanished_for
from slotlake.decoder.errors import ChangedMeanwhileError, LockedError, UnreadableRowsError
from slotlake.decoder.server.session_settings import LOCKED_WAY_OUT
from slotlake.decoder.server.source import explain, source_session
from slotlake.decoder.types.table import sql_text
from slotlake.expectations.hashing import KEY_SEED, Hashes, chain_sql, column_hash_sql, columns_hash_sql
from slotlake.expectations.shapes import Compared

BUCKETS = 8192
NAME_TEXT_MAX = 60
_ROWS_AT_ONCE = 5000
_PAIR = np.dtype([("fields", ">i2"), ("a", ">i4"), ("key", ">i8"), ("b", ">i4"), ("row", ">i8")])
_COPY_HEADER_BYTES, _COPY_TRAILER_BYTES = 19, 2

_ALTERED = (
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,  # for its new type
    psycopg.errors.UndefinedObject,
    psycopg.errors.InvalidSchemaName,
)
_NAMED = "SELECT pg_catalog.to_regclass(%s)::oid::bigint"
Sums = dict[int, tuple[int, int]]


def joined_sums(one: Sums, other: Sums) -> Sums:
    """Return the sums of two parts of a table as those of both."""
    joined = dict(one)
    for bucket, (count, total) in other.items():
        before, above = joined.get(bucket, (0, 0))
        joined[bucket] = before + count, above + total
    return joined


@contextmanager
def snapshot_session(dsn: str, snapshot: str) -> Iterator[psycopg.Connection[Any]]:
    """A session whose one transaction sees exactly the exported snapshot.

    Raises:
        SourceError: the server cannot be reached, or the snapshot is no longer held.
    """
    with (
        source_session(dsn, "reading the tables to compare") as connection,
        connection.transaction(),
    ):
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        connection.execute("SET LOCAL row_security = off")
        yield connection


def hashes_escaped(connection: psycopg.Connection[Any]) -> bool:
    """Return whether the database has an encoding whose bytes differ from those of the lake's texts.

    SQL_ASCII has not: its bytes come as they are.
    """
    return connection.info.parameter_status("server_encoding") not in {"UTF8", "SQL_ASCII"}


@contextmanager
def reading(
    connection: psycopg.Connection[Any], table: Compared, *, locks_stay: bool = True
) -> Iterator[None]:
    """Read a table under a snapshot, which does not keep it from being dropped or replaced by another.

    Args:
        connection: of :func:`snapshot_session`.
        locks_stay: until the transaction ends nobody can alter the table. Else its locks go with a savepoint:
            a server has room for the locks of some thousand tables in one transaction.

    Raises:
        VanishedError: it is gone.
        ChangedMeanwhileError: it has another name, or other columns, by now.
        LockedError: somebody holds it so that nobody can read it; the session reads others on.
        UnreadableRowsError: the server fails at a row of it, as on a damaged page; so does it then.
    """
    row = None
    try:
        with suppress(psycopg.errors.UndefinedTable), connection.transaction(force_rollback=not locks_stay):
            yield
            row = connection.execute(_NAMED, [table.name]).fetchone()
    except psycopg.errors.LockNotAvailable:
        raise LockedError(
            "the table is locked at the source", where=f"table {table.name}", way_out=LOCKED_WAY_OUT
        ) from None
    except _ALTERED:
        what = "a table was altered while it was compared"
        raise ChangedMeanwhileError(what, where=f"table {table.name}", way_out="run again") from None
    except psycopg.Error as error:
        failure = explain(error, connection.info.dsn, f"comparing {table.name}", rows=True)
        if isinstance(failure, UnreadableRowsError):
            raise failure from None
        raise
    if not table.relation_id or row == (table.relation_id,):
        return
    if vanished_for(connection, [table.relation_id]):
        raise vanished_error(table.name)
    what = "a table was renamed while it was compared"
    raise ChangedMeanwhileError(what, where=f"table {table.name}", way_out="run again")


@dataclass(frozen=True)
class RowDetail:
    """A row that differs: what names it, and a hash per compared value."""

    name: dict[str, str | None]
    hashes: tuple[int | None, ...]


class SourceTable:
    """One table, as the session's snapshot shows it."""

    def __init__(self, connection: psycopg.Connection[Any], table: Compared) -> None:
        self.connection = connection
        self._table = table
        # A partitioned table is its partitions; any other stands for itself, whatever inherits from it.
        only = "" if table.partitioned else "ONLY "
        require_filter(table.row_filter, table.name)
        where = f" WHERE ({table.row_filter})" if table.row_filter else ""
        self._from = f"{only}{table.name}{where}"

    def _hashed(self, *more: str) -> str:
        """A subquery with the key's hash k and the row's r; without a key they are the same."""
        key, values = _quoted(self._table.key), _quoted(self._table.values)
        escaped = self._table.escaped
        combined = f"({columns_hash_sql(values, escaped=escaped)})" if values else "0"
        row = chain_sql(key, combined, escaped=escaped)
        of_key = chain_sql(key, str(KEY_SEED), escaped=escaped) if key else row
        columns = ", ".join([f"{of_key} AS k", f"{row} AS r", *more])
        return f"(SELECT {columns} FROM {self._from}) AS hashed"

    def sums(self) -> Sums:
        """(rows, exact sum of their hashes) of each bucket that holds any."""
        statement = f"SELECT k & {BUCKETS - 1}, count(*), sum(r) FROM {self._hashed()} GROUP BY 1"
        rows = self.connection.execute(_plain(statement)).fetchall()
        return {int(bucket): (int(count), int(total)) for bucket, count, total in rows}

    def hashes(self, buckets: Sequence[int] | None) -> tuple[Hashes, Hashes]:
        """Key and row hash of each row in some buckets; None: in all."""
        # OFFSET 0 keeps the planner from computing each hash twice.
        hashed = self._hashed().replace(") AS hashed", " OFFSET 0) AS hashed")
        inner = f"SELECT k, r FROM {hashed}"
        if buckets is not None:
            bucket_list = ",".join(str(int(bucket)) for bucket in buckets)
            inner += f" WHERE k & {BUCKETS - 1} = ANY ('{{{bucket_list}}}'::bigint[])"
        received = bytearray()
        statement = _plain(f"COPY ({inner}) TO STDOUT (FORMAT binary)")
        with self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            for block in copy:
                received += block
        count = (len(received) - _COPY_HEADER_BYTES - _COPY_TRAILER_BYTES) // _PAIR.itemsize
        pairs = np.frombuffer(received, _PAIR, count, _COPY_HEADER_BYTES)
        return pairs["key"].astype(np.int64), pairs["row"].astype(np.int64)

    def details(self, keys: Sequence[int]) -> dict[int, RowDetail]:
        """The rows with these key hashes, by key hash."""
        named, values = _quoted(self._table.named), _quoted(self._table.values)
        names = [
            f"left({sql_text(name, oid)}, {NAME_TEXT_MAX}) AS n{i}" for i, (name, oid) in enumerate(named)
        ]
        hashes = [
            f"{column_hash_sql(name, oid, i, escaped=self._table.escaped)} AS c{i}"
            for i, (name, oid) in enumerate(values)
        ]
        key_list = ",".join(str(key) for key in keys)
        hashed = self._hashed(*names, *hashes)
        rows = self.connection.execute(
            _plain(f"SELECT * FROM {hashed} WHERE k = ANY ('{{{key_list}}}'::bigint[])")
        ).fetchall()
        labels = [name for name, _ in self._table.named]
        count = len(labels)
        return {
            row[0]: RowDetail(dict(zip(labels, row[2 : 2 + count], strict=True)), tuple(row[2 + count :]))
            for row in rows
        }

    def rows(
        self, keys: Sequence[int], columns: Sequence[str]
    ) -> Iterator[tuple[int, tuple[str | None, ...]]]:
        """The rows with these key hashes: the hash, and the whole text of these columns."""
        oids = dict((*self._table.key, *self._table.values))
        texts = [sql_text(name, oid) for name, oid in _quoted([(n, oids[n]) for n in columns])]
        hashed = self._hashed(*(f"({text})::pg_catalog.text AS v{i}" for i, text in enumerate(texts)))
        listed = ", ".join(f"v{i}" for i in range(len(texts)))
        key_list = ",".join(map(str, keys))
        with self.connection.cursor("slotlake_rows") as cursor:
            cursor.itersize = _ROWS_AT_ONCE
            chosen = f"k = ANY ('{{{key_list}}}'::bigint[])"
            cursor.execute(_plain(f"SELECT k, {listed} FROM {hashed} WHERE {chosen}"))
            for row in cursor:
                yield int(row[0]), tuple(row[1:])


def _quoted(columns: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    return [('"' + name.replace('"', '""') + '"', oid) for name, oid in columns]


def _plain(statement: str) -> sql.SQL:
    """A statement with nothing to fill in; identifiers in it are quoted, numbers are numbers."""
    return sql.SQL(statement)
