"""What the pipeline file may choose of a table, and what is refused before anything is copied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from slotlake.decoder.catalog.publications import SourceTable, source_tables
from slotlake.decoder.errors import PipelineFileError
from slotlake.decoder.server.source import connect
from slotlake.infra.config.pipeline_file import PipelineFile
from slotlake.infra.config.sections import TableSection
from slotlake.infra.local.postgres import Version
from slotlake.infra.selection.tables import (
    SelectedTable,
    comparable,
    lake_schema,
    require_published,
    selected,
)
from slotlake.infra.status.table_states import selection_report
from slotlake.spark.row_filter.selection import Selection
from tests.conftest import Database
from tests.decoder.copied import copy_query

SETUP = """
CREATE TABLE by_key (k int PRIMARY KEY, a text, n numeric);
CREATE TABLE by_full (k int PRIMARY KEY, a text); ALTER TABLE by_full REPLICA IDENTITY FULL;
CREATE TABLE some_columns (k int PRIMARY KEY, a text, hidden int);
CREATE PUBLICATION p FOR TABLE by_key, by_full WHERE (a <> 'x'), some_columns (k, a);
CREATE PUBLICATION inserts FOR TABLE by_key WITH (publish = 'insert');
"""


def _file(tables: dict[str, Any]) -> PipelineFile:
    return PipelineFile.model_validate(
        {
            "name": "x",
            "source": {"dsn": "host=x", "publications": ["p"], "slot": "s"},
            "lake": {"uri": "sqlite:///x", "warehouse": "x", "namespace": "x"},
            "tables": tables,
            "path": Path("x.yaml"),
        }
    )


def _selected(database: Database, table: str, publication: str = "p", **section: Any) -> SourceTable:
    database.execute(SETUP)
    with connect(database.dsn) as connection:
        published = source_tables(connection, (publication,))
        found = selected(_file({table: section}), connection, published)
    return next(each for each in found if each.table == table)


def test_one_filter_or_several() -> None:
    assert TableSection.model_validate({"filter": " a > 1 "}).filter == ("a > 1",)
    assert TableSection.model_validate({"filter": ["a", "b"]}).filter == ("a", "b")
    assert TableSection.model_validate({}).filter == ()


@pytest.mark.parametrize(
    "section",
    [
        {"filter": ""},
        {"filter": ["a", " "]},
        {"filter": 3},
        {"columns": []},
        {"columns": ["a", "a"]},
        {"operations": ["upsert"]},
        {"operations": []},
        {"operations": ["insert", "insert"]},
    ],
)
def test_wrong_values(section: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TableSection.model_validate(section)


def test_what_is_kept_comes_back() -> None:
    chosen = Selection(("a > 1",), ("a",), ("insert",), "(a > 1)", (), False)
    assert Selection.from_json(chosen.to_json()) == chosen
    assert Selection.from_json("") == Selection()
    assert selection_report(chosen.to_json()) == {
        "filter": "a > 1",
        "columns": ["a"],
        "operations": ["insert"],
    }
    assert selection_report("") == {}


def test_the_copy_obeys_the_publication_and_the_lake(database: Database) -> None:
    table = _selected(database, "by_full", filter=["k > 1", "k < -1"], columns=["k"])
    database.execute("INSERT INTO by_full VALUES (1, 'a'), (2, 'x'), (3, 'b'), (-2, 'b'), (4, NULL)")
    query = copy_query(table).removeprefix("COPY (").rpartition(") TO STDOUT")[0]
    assert sorted(database.execute(query)) == [(-2,), (3,)]
    assert [column.name for column in lake_schema(table).columns] == ["k"]


@pytest.mark.parametrize(
    ("table", "section", "told"),
    [
        ("by_key", {"filter": "a = 'x'"}, "not part of the replica identity"),
        ("by_key", {"filter": ["k > 1", "n > 1"]}, "column 'n', which is not part"),
        ("by_key", {"columns": ["a"]}, "lack 'k', which identifies"),
        ("by_key", {"columns": ["k", "b"]}, "no published column 'b'"),
        ("some_columns", {"filter": "hidden > 1"}, "hidden is not among the table's published columns"),
        ("some_columns", {"columns": ["k", "hidden"]}, "no published column 'hidden'"),
        ("by_key", {"filter": "k = 1 AND"}, "does not accept the filter"),
        ("by_key", {"filter": "k ~~ 'a'"}, "does not accept the filter"),
    ],
)
def test_refused_up_front(database: Database, table: str, section: dict[str, Any], told: str) -> None:
    with pytest.raises(PipelineFileError, match=told) as error:
        _selected(database, table, **section)
    assert table in error.value.where
    assert error.value.way_out


@pytest.mark.parametrize(
    ("publication", "section"),
    [
        ("inserts", {"filter": "a = 'x'", "columns": ["a"]}),
        ("p", {"filter": "a = 'x'", "columns": ["a"], "operations": ["insert", "truncate"]}),
    ],
)
def test_inserts_alone_may_be_filtered_by_anything(
    database: Database, publication: str, section: dict[str, Any]
) -> None:
    table = _selected(database, "by_key", publication, **section)
    assert (table.key, table.row_filter) == ((), "((a = 'x'::text))")
    assert comparable([table]) == ([] if "operations" in section else [table])


def test_the_identity_is_asked_of_full_too(database: Database) -> None:
    table = _selected(database, "by_full", filter="a = 'y'")
    assert table.key == ("k",)


@pytest.mark.parametrize("version", [14, 16])
def test_on_servers_without_filters_of_their_own_too(
    database_on: Callable[[Version], Database], version: Version
) -> None:
    database = database_on(version)
    database.execute("CREATE TABLE t (k int PRIMARY KEY, a varchar(5)) PARTITION BY RANGE (k)")
    database.execute("CREATE TABLE t1 PARTITION OF t DEFAULT; ALTER TABLE t REPLICA IDENTITY FULL")
    database.execute("ALTER TABLE t1 REPLICA IDENTITY FULL")
    database.execute("CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root)")
    with connect(database.dsn) as connection:
        published = source_tables(connection, ("p",))
        (table,) = selected(_file({"t": {"filter": "a LIKE 'x%'"}}), connection, published)
    assert isinstance(table, SelectedTable)
    (column,) = Selection.from_json(table.selection).inputs
    assert (column.name, column.equal, column.order) == ("a", True, True)
    assert "((a)::text ~~ 'x%'::text)" in table.selection


def test_each_partition_must_show_what_the_filter_looks_at(database: Database) -> None:
    """A partition does not inherit its root's replica identity, and old rows are what the partition shows."""
    database.execute("CREATE TABLE t (k int PRIMARY KEY, a text) PARTITION BY RANGE (k)")
    database.execute("CREATE TABLE t1 PARTITION OF t DEFAULT; ALTER TABLE t REPLICA IDENTITY FULL")
    database.execute("CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root)")
    with connect(database.dsn) as connection:
        published = source_tables(connection, ("p",))
        selected(_file({"t": {"filter": "k > 1"}}), connection, published)
        with pytest.raises(PipelineFileError, match="of its partition t1"):
            selected(_file({"t": {"filter": "a > ''"}}), connection, published)
        database.execute("ALTER TABLE t1 REPLICA IDENTITY FULL")
        selected(_file({"t": {"filter": "a > ''"}}), connection, published)


def test_a_table_that_is_not_published(database: Database) -> None:
    database.execute(SETUP)
    with connect(database.dsn) as connection:
        published = source_tables(connection, ("p",))
    require_published(_file({"by_key": {"filter": "k > 1"}, "nowhere": {}}), published)
    with pytest.raises(PipelineFileError, match=r"no table public\.nowhere"):
        require_published(_file({"nowhere": {"filter": "k > 1"}}), published)
