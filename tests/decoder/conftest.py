"""Fixtures of the decoder's tests on real servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from tests.conftest import Database

TABLES = """
CREATE TABLE a (id int PRIMARY KEY, v text);
CREATE TABLE b (id int PRIMARY KEY, v text, n numeric);
ALTER TABLE b REPLICA IDENTITY FULL;
CREATE PUBLICATION p FOR ALL TABLES;
"""


@pytest.fixture
def sessions(database: Database) -> Iterator[list[psycopg.Connection[Any]]]:
    """Four sessions beside the two tables, on a server that streams what exceeds 64 kB."""
    database.execute(TABLES)
    database.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
    with ExitStack() as stack:
        yield [stack.enter_context(psycopg.connect(database.dsn)) for _ in range(4)]
