"""Catalogs of a lake for tests: in PostgreSQL, behind REST, in Hive and AWS Glue."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from slotlake.spark.catalog.rest.catalog import RestPointers
from tests.conftest import Database, fresh_database

KINDS = ("postgresql", "rest", "per_table", "hive")

GLUE_URI = "glue://eu-central-1"


def glue_lines(request: pytest.FixtureRequest) -> str:
    """Return the keys of the section `lake` for AWS Glue, besides `uri`.

    Args:
        request: gives the fixture `glue`.
    """
    return f"  publish: per_table\n  glue: {{endpoint: {request.getfixturevalue('glue')}}}\n"


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
    if kind == "hive":
        return {"uri": request.getfixturevalue("hive"), "lake": "lake:\n  publish: per_table\n"}
    lines = "lake:\n"
    if kind == "per_table":
        monkeypatch.setattr(RestPointers, "together", False)
        lines += "  publish: per_table\n"
    return {"uri": request.getfixturevalue("rest"), "lake": lines}
