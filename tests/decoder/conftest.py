"""Fixtures of the decoder's tests on real servers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from tests.conftest import Database
from tests.decoder.guarded import guarded_kernels

TABLES = """
CREATE TABLE a (id int PRIMARY KEY, v text);
CREATE TABLE b (id int PRIMARY KEY, v text, n numeric);
ALTER TABLE b REPLICA IDENTITY FULL;
CREATE PUBLICATION p FOR ALL TABLES;
"""


@pytest.fixture(scope="session", autouse=True)
def guard_pages() -> Iterator[None]:
    """With SLOTLAKE_GUARD_PAGES=1 no compiled loop reads or writes beside its arrays and lives."""
    if not os.environ.get("SLOTLAKE_GUARD_PAGES"):
        yield
        return
    with guarded_kernels():
        yield


@pytest.fixture
def sessions(database: Database) -> Iterator[list[psycopg.Connection[Any]]]:
    """Four sessions beside the two tables, on a server that streams what exceeds 64 kB."""
    database.execute(TABLES)
    database.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
    with ExitStack() as stack:
        yield [stack.enter_context(psycopg.connect(database.dsn)) for _ in range(4)]
