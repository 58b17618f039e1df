"""Catalogs of a lake for tests: in PostgreSQL, and behind REST with or without commits of several tables."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from slotlake.spark.catalog.rest import RestPointers
from tests.conftest import Database, fresh_database

KINDS = ("postgresql", "rest", "per_table")


def postgres_uri(database: Database) -> str:
    """Return SQLAlchemy's URI of a database, for a catalog in it."""
    return database.server.url(database.name).replace("postgresql://", "postgresql+psycopg://", 1)


def lake_options(
    stack: ExitStack, kind: str, pg: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """Return the options `uri` and `lake` of `pipeline_file` for a catalog of one of `KINDS`.

    Args:
        stack: drops a catalog's database when it closes.
        kind: `per_table` is a REST catalog that cannot commit several tables at once.
        pg: the server for a catalog in PostgreSQL.
        request: gives the fixture `rest`.
        monkeypatch: takes the commit of several tables away from the REST catalog.
    """
    if kind == "postgresql":
        return {"uri": postgres_uri(stack.enter_context(fresh_database(pg))), "lake": "lake:\n"}
    lines = "lake:\n"
    if kind == "per_table":
        monkeypatch.setattr(RestPointers, "together", False)
        lines += "  publish: per_table\n"
    return {"uri": request.getfixturevalue("rest"), "lake": lines}
