"""The same tables filtered by the server's publications and by the lake: one history, two equal lakes.

One pipeline reads publications with WHERE and column lists, the other one that publishes all, and chooses
itself.  Both must equal what a SELECT with the filter finds at the source.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from psycopg import sql

from slotlake import Pipeline
from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.local.postgres import EmbeddedPostgres
from slotlake.spark.read.point import ReadPoint
from tests.conftest import Database, drop_database
from tests.e2e.oracle import pipeline_file, source_rows
from tests.e2e.scenarios import big
from tests.spark.filtered_tables import CHOSEN, histories, run, setup

pytestmark = pytest.mark.timeout(600)

TABLES = ["by_key", "by_full", "by_several", "by_bag"]
EXAMPLES = int(os.environ.get("SLOTLAKE_TEST_HISTORIES", "2"))


@pytest.fixture(scope="module")
def sides(
    pg: EmbeddedPostgres, session: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Database, Pipeline, Pipeline]]:
    """A database, a pipeline whose publications choose, and one that chooses itself."""
    name = f"filters_{os.getpid()}"
    with psycopg.connect(pg.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    database = Database(pg, name)
    database.execute(setup(TABLES))
    folder: Path = tmp_path_factory.mktemp("filters")
    server = pipeline_file(folder / "server", database, [], name="server")
    server.write_text(server.read_text().replace("[server]", "[one, other]"))
    lake = pipeline_file(folder / "lake", database, [], name="lake", extra=_sections())
    lake.write_text(lake.read_text().replace("[lake]", "[whole]"))
    with Pipeline.open(server) as by_server, Pipeline.open(lake) as by_lake:
        by_server.init()
        by_lake.init()
        yield database, by_server, by_lake
    drop_database(pg, name)


def _sections() -> str:
    lines = []
    for table in TABLES:
        columns, filters = CHOSEN[table]
        lines.append(f"  {table}:")
        lines.append(f"    filter: {filters if len(filters) > 1 else repr(filters[0])}".replace("'\"", '"'))
        if columns:
            lines.append(f"    columns: [{', '.join(columns)}]")
    return "\n".join(lines) + "\n"


def _expected(connection: psycopg.Connection[Any], table: str) -> Counter[tuple[str | None, ...]]:
    columns, filters = CHOSEN[table]
    condition = " OR ".join(f"({each})" for each in filters)
    query = f"(SELECT {', '.join(columns) or '*'} FROM {table} WHERE {condition}) AS chosen"
    return source_rows(connection, query)[1]


def _different(database: Database, *pipelines: Pipeline) -> dict[str, Any]:
    found = {}
    with database.connect() as connection:
        for table in TABLES:
            expected = _expected(connection, table)
            for pipeline in pipelines:
                actual = Counter(pipeline.rows(table))
                if actual != expected:
                    found[f"{table} in {pipeline.name}"] = (expected - actual, actual - expected)
    return found


def test_the_copies_are_filtered(sides: tuple[Database, Pipeline, Pipeline]) -> None:
    database, by_server, by_lake = sides
    assert _different(database, by_server, by_lake) == {}
    assert 0 < sum(1 for _ in by_lake.rows("by_key")) < 8


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    print_blob=True,
    phases=(Phase.explicit, Phase.generate),  # an example takes seconds: none is made smaller
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(history=histories(TABLES))
def test_any_history(sides: tuple[Database, Pipeline, Pipeline], history: list[list[str]]) -> None:
    database, by_server, by_lake = sides
    run(database, history)
    by_server.sync()
    by_lake.sync()
    assert _different(database, by_server, by_lake) == {}


def test_it_verifies(sides: tuple[Database, Pipeline, Pipeline]) -> None:
    report = sides[2].verify()
    assert report.equal, report
    assert set(report.tables) == {f"public.{table}" for table in TABLES}


def test_a_row_that_enters_with_an_unsent_value(sides: tuple[Database, Pipeline, Pipeline]) -> None:
    """The stream does not show the value; the table is copied again at once, on either side."""
    database, by_server, by_lake = sides
    database.execute(
        f"TRUNCATE by_key; INSERT INTO by_key SELECT g, 'v', {big(3)} FROM generate_series(1, 3) g"
    )
    for pipeline in (by_server, by_lake):
        pipeline.sync()
    database.execute("UPDATE by_key SET k = 10 WHERE k = 1")
    for pipeline in (by_server, by_lake):
        pipeline.sync()
    assert _different(database, by_server, by_lake) == {}
    assert not any(column.lost for pipeline in sides[1:] for column in _columns(pipeline, "by_key"))


def _columns(pipeline: Pipeline, table: str) -> Any:
    return ReadPoint.latest(pipeline.lake).schema(table).columns


def test_status_shows_what_is_taken(sides: tuple[Database, Pipeline, Pipeline]) -> None:
    takes = {table.table: table.takes for table in sides[2].status().tables}
    assert takes["public.by_key"] == {"filter": "k % 2 = 0"}
    assert takes["public.by_several"] == {"filter": "(k = 1) OR ((k + 0.5) * 2 > 7.5)", "columns": ["k", "n"]}
    assert not any(table.takes for table in sides[1].status().tables)


def test_other_words_are_refused_until_the_table_is_taken_anew(
    sides: tuple[Database, Pipeline, Pipeline],
) -> None:
    database, _, by_lake = sides
    database.execute("TRUNCATE by_key; INSERT INTO by_key SELECT g FROM generate_series(1, 9) g")
    by_lake.sync()
    path = by_lake.file.path
    bag = "n IS NULL or a = 'w'\n    columns: [k, n]"
    other = path.read_text().replace("k % 2 = 0", "k > 5").replace("'coalesce(n, 2) >= 1.5'", bag)
    assert bag in other
    path.write_text(other)
    with Pipeline.open(path) as changed:
        with pytest.raises(PipelineFileError, match="other rows, columns or operations") as refused:
            changed.sync()
        assert refused.value.where == "tables public.by_bag, public.by_key"
        assert any("other rows, columns or operations" in warning for warning in changed.status().warnings)
        changed.backfill("by_key")
        with pytest.raises(PipelineFileError, match="other rows, columns or operations"):
            changed.sync()
        changed.backfill("by_bag")
        assert sorted(changed.rows("by_key", ["k"])) == [("6",), ("7",), ("8",), ("9",)]
        database.execute("UPDATE by_key SET k = k - 4")
        # Of a table without a key, under FULL, rows are counted by the columns taken.
        database.execute("TRUNCATE by_bag; INSERT INTO by_bag (k) VALUES (1), (1), (1), (2)")
        database.execute("UPDATE by_bag SET a = 'w' WHERE k = 1; UPDATE by_bag SET n = 1, k = k + 1")
        database.execute("DELETE FROM by_bag WHERE ctid = (SELECT min(ctid) FROM by_bag WHERE k = 2)")
        changed.sync()
        assert list(changed.rows("by_key", ["k"])) == []
        assert list(changed.rows("by_bag")) == [("2", "1.00"), ("2", "1.00")]


def test_a_filter_that_no_longer_fits_has_a_way_out(sides: tuple[Database, Pipeline, Pipeline]) -> None:
    """The table is set aside while its filter cannot be kept true; the others go on, and it comes back."""
    database, _, by_lake = sides
    database.execute("INSERT INTO by_full (k, n) VALUES (700, 2)")
    database.execute("ALTER TABLE by_full REPLICA IDENTITY DEFAULT")
    with Pipeline.open(by_lake.file.path) as pipeline:
        database.execute("INSERT INTO by_full (k, n) VALUES (701, 2)")
        (why,) = pipeline.sync().set_aside.values()
        assert "not part of the replica identity" in why
        with pytest.raises(PipelineFileError, match="not part of the replica identity"):
            pipeline.resume("by_full")
        database.execute("ALTER TABLE by_full REPLICA IDENTITY FULL")
        assert pipeline.sync().resumed == ["public.by_full"]
        assert {("700",), ("701",)} <= set(pipeline.rows("by_full", ["k"]))
        assert pipeline.verify().equal
