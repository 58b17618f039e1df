"""What tests of tables set aside share: databases of any encoding, and how a table is spoiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from slotlake.infra.local.postgres import EmbeddedPostgres
from tests.conftest import Database, drop_database

BAD = r"E'\xff\xfe'"


@contextmanager
def encoded_database(server: EmbeddedPostgres, name: str, encoding: str) -> Iterator[Database]:
    """A database of that encoding, dropped with its slots."""
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        made = sql.SQL(
            "CREATE DATABASE {} ENCODING {} LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        ).format(sql.Identifier(name), sql.Literal(encoding))
        admin.execute(made)
    database = Database(server, name)
    try:
        yield database
    finally:
        drop_database(server, name)


def five_rows(database: Database, *names: str) -> list[str]:
    """Tables of five rows each, ``(id int PRIMARY KEY, v text)``."""
    for name in names:
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
        database.execute(f"INSERT INTO {name} SELECT g, 'first' FROM generate_series(1, 5) g")
    return list(names)
