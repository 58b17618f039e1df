"""What is chosen of an unfiltered stream is what the server sends if it filters itself, change by change."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from psycopg import sql

from slotlake.decoder.catalog.publications import source_tables
from slotlake.decoder.changelog.batches import Batch, BatchRelation
from slotlake.decoder.errors import ApplyError
from slotlake.decoder.server.position import settled_position
from slotlake.decoder.server.source import SourceSettings, connect
from slotlake.decoder.slots.slot import create_slot
from slotlake.decoder.stream.pull import pull
from slotlake.decoder.types.table import column_type, to_text
from slotlake.infra.config.pipeline_file import PipelineFile
from slotlake.infra.local.postgres import EmbeddedPostgres
from slotlake.infra.selection.tables import SelectedTable, selected
from slotlake.spark.row_filter.selection import select_changes
from slotlake.spark.tables import shapes
from tests.conftest import Database, drop_database
from tests.e2e.scenarios import big
from tests.spark.filtered_tables import CHOSEN, FILTERED, WHOLE, histories, run, setup

EXAMPLES = int(os.environ.get("SLOTLAKE_TEST_HISTORIES", "6"))
pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def database(pg: EmbeddedPostgres) -> Iterator[Database]:
    name = f"filter_stream_{os.getpid()}"
    with psycopg.connect(pg.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    made = Database(pg, name)
    made.execute(setup())
    with create_slot(_source(made, WHOLE)):
        pass
    yield made
    drop_database(pg, name)


def _source(database: Database, publications: tuple[str, ...]) -> SourceSettings:
    return SourceSettings(database.dsn, publications, f"slot_{database.name}")


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


def _selections(database: Database, **more: Any) -> dict[str, str]:
    sections = {
        table: {"filter": filters, **({"columns": columns} if columns else {}), **more}
        for table, (columns, filters) in CHOSEN.items()
    }
    with connect(database.dsn) as connection:
        tables = selected(_file(sections), connection, source_tables(connection, WHOLE))
    return {table.table: table.selection for table in tables if isinstance(table, SelectedTable)}


def _pulled(database: Database, folder: Path, publications: tuple[str, ...], start: int, end: int) -> Batch:
    return pull(_source(database, publications), "test", folder / publications[0], start=start, until=end)


def _changes(relation: shapes.BatchRelation, rows: pa.Table) -> list[dict[str, Any]]:
    """Each change in PostgreSQL's text: what it does, by which row, and what it does not show."""
    images: dict[str, list[dict[str, Any]]] = {}
    for side in "no":
        columns = {}
        for i, column in enumerate(relation.columns):
            if f"{side}{i}" in rows.column_names:
                exact = rows[f"x{side}{i}"] if f"x{side}{i}" in rows.column_names else None
                kind = column_type(column.type_oid, column.typmod)
                columns[column.name] = to_text(rows[f"{side}{i}"], exact, kind).to_pylist()
            else:
                columns[column.name] = [None] * rows.num_rows
        images[side] = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    found = []
    for at in range(rows.num_rows):
        change = {name: rows[name][at].as_py() for name in ("op", "lsn", "old")}
        change["unchanged"] = [
            column.name
            for i, column in enumerate(relation.columns)
            if f"u{i}" in rows.column_names and rows[f"u{i}"][at].as_py()
        ]
        found.append({**change, "new": images["n"][at], "before": images["o"][at]})
    return found


def _by_table(
    changes: Mapping[str, Sequence[tuple[shapes.BatchRelation, pa.Table]]],
) -> dict[str, list[dict[str, Any]]]:
    return {
        table: [change for relation, rows in versions for change in _changes(relation, rows)]
        for table, versions in changes.items()
        if any(rows.num_rows for _, rows in versions)
    }


def _versions(batch: Batch) -> dict[str, list[tuple[BatchRelation, pa.Table]]]:
    found: dict[str, list[tuple[BatchRelation, pa.Table]]] = {}
    for relation in batch.relations:
        if relation.rows:
            found.setdefault(relation.table, []).append((relation, batch.relation_table(relation)))
    return found


def _position(database: Database) -> int:
    with connect(database.dsn) as connection:
        return settled_position(connection)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(history=histories())
def test_the_server_filters_the_same(
    database: Database, tmp_path_factory: pytest.TempPathFactory, history: list[list[str]]
) -> None:
    selections = _selections(database)
    start = _position(database)
    run(database, history)
    end = _position(database)
    folder = tmp_path_factory.mktemp("stream")
    whole = _versions(_pulled(database, folder, WHOLE, start, end))
    chosen = {table: select_changes(selections[table], changes).changes for table, changes in whole.items()}
    by_server = _versions(_pulled(database, folder, FILTERED, start, end))
    assert _by_table(chosen) == _by_table(by_server)
    for table, versions in by_server.items():
        assert chosen[table][-1][0].columns == versions[-1][0].columns
        assert chosen[table][-1][0].key == versions[-1][0].key


@pytest.mark.parametrize("operations", ["insert", "update", "delete", "truncate", "delete, insert"])
def test_operations(database: Database, tmp_path: Path, operations: str) -> None:
    """Which operations are taken, is judged before the filter may make another of it."""
    listed = operations.split(", ")
    database.execute("DROP PUBLICATION IF EXISTS part")
    database.execute(
        f"CREATE PUBLICATION part FOR TABLE by_key WHERE (k % 2 = 0) WITH (publish = '{operations}')"
    )
    selection = _selections(database, operations=listed)["by_key"]
    start = _position(database)
    database.execute("DELETE FROM by_key")
    database.execute("INSERT INTO by_key (k, n) SELECT g, g FROM generate_series(1, 9) g")
    database.execute("UPDATE by_key SET n = -n WHERE k < 3; UPDATE by_key SET k = k + 1 WHERE k = 9")
    database.execute("UPDATE by_key SET k = k + 11 WHERE k = 2; DELETE FROM by_key WHERE k IN (3, 4)")
    database.execute("TRUNCATE by_key; INSERT INTO by_key (k) VALUES (1), (2)")
    end = _position(database)
    whole = _versions(_pulled(database, tmp_path, WHOLE, start, end))["by_key"]
    by_server = _versions(_pulled(database, tmp_path, ("part",), start, end))
    assert _by_table({"by_key": select_changes(selection, whole).changes}) == _by_table(by_server)


def test_a_value_that_was_not_sent_is_told(database: Database, tmp_path: Path) -> None:
    """A row enters, and nothing shows its large value: PostgreSQL's subscriber would have NULL there."""
    database.execute(f"TRUNCATE by_key; INSERT INTO by_key (k, big) SELECT 1, {big(1)}")
    start = _position(database)
    database.execute("UPDATE by_key SET k = 2")
    whole = _versions(_pulled(database, tmp_path, WHOLE, start, _position(database)))["by_key"]
    result = select_changes(_selections(database)["by_key"], whole)
    assert result.lost == {"big"}
    assert select_changes("", result.changes).lost == {"big"}, "also if the server filters"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("ALTER TABLE moody ALTER n TYPE bigint", "whose type has changed"),
        ("ALTER TABLE moody DROP COLUMN n", "which is gone"),
        ("ALTER TABLE moody REPLICA IDENTITY DEFAULT", "not part of the replica identity"),
    ],
)
def test_a_table_that_no_longer_fits_its_filter(
    database: Database, tmp_path: Path, change: str, told: str
) -> None:
    database.execute("DROP TABLE IF EXISTS moody; CREATE TABLE moody (k int PRIMARY KEY, n int)")
    database.execute("ALTER TABLE moody REPLICA IDENTITY FULL; ALTER PUBLICATION whole ADD TABLE moody")
    with connect(database.dsn) as connection:
        tables = selected(_file({"moody": {"filter": "n > 1"}}), connection, source_tables(connection, WHOLE))
    selection = next(t.selection for t in tables if isinstance(t, SelectedTable))
    start = _position(database)
    database.execute(f"{change}; INSERT INTO moody VALUES (1)")
    batch = _pulled(database, tmp_path, WHOLE, start, _position(database))
    with pytest.raises(ApplyError, match=told):
        select_changes(selection, _versions(batch)["moody"])
    database.execute("DROP TABLE moody")


def test_a_filter_fails_where_the_server_would(database: Database, tmp_path: Path) -> None:
    selection = _selections(database)["by_key"]
    start = _position(database)
    database.execute("TRUNCATE by_key; INSERT INTO by_key (k) VALUES (0), (1)")
    changes = _versions(_pulled(database, tmp_path, WHOLE, start, _position(database)))["by_key"]
    broken = selection.replace("((k % 2) = 0)", "((2 / k) = 0)")
    assert broken != selection
    with pytest.raises(ApplyError, match="division by zero"):
        select_changes(broken, changes)
    guarded = selection.replace("((k % 2) = 0)", "((k <> 0) AND ((2 / k) = 2))")
    (_, rows), *_ = select_changes(guarded, changes).changes
    assert rows.filter(pc.equal(rows["op"], ord("I"))).num_rows == 1


def test_nothing_chosen_is_everything(database: Database, tmp_path: Path) -> None:
    start = _position(database)
    database.execute("INSERT INTO by_bag (k) VALUES (1); UPDATE by_bag SET k = 2; DELETE FROM by_bag")
    changes = _versions(_pulled(database, tmp_path, WHOLE, start, _position(database)))["by_bag"]
    assert select_changes("", changes).changes == changes
    empty = [(replace(relation, rows=0), rows.slice(0, 0)) for relation, rows in changes]
    assert select_changes(_selections(database)["by_bag"], empty).changes[0][1].num_rows == 0
