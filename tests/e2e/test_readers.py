"""The readers' matrix of docs/reading.md: at every kept point all readers see the rows that the source had.

The long form adds Trino, and a catalog in PostgreSQL.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from slotlake import Pipeline
from slotlake.spark.lake import LakeSettings
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.session import sibling, use_lake
from tests.catalogs import postgres_uri
from tests.conftest import ROOT, Database, fresh_database
from tests.e2e.oracle import pipeline_file, source_rows
from tests.e2e.readers import (
    DuckAttached,
    DuckFiles,
    Polars,
    PyIceberg,
    Reader,
    Rows,
    Spark,
    Trino,
    pyiceberg_catalog,
    rows_in,
)
from tests.e2e.trino_server import LocalTrino
from tests.storage import IN_NESSIE, pyiceberg_properties

pytestmark = pytest.mark.timeout(900)
LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
TABLES = ["v2", "v3"]  # each has the format of its name
SETUP = """
CREATE TABLE {t} (id int PRIMARY KEY, v text, n numeric(10,2), at timestamptz, d date, b bytea, ok boolean);
INSERT INTO {t} SELECT g, 'v' || g, g, '2026-11-23 10:00:00.5+00', '2026-11-23', '\\x00ff', g % 2 = 0
FROM generate_series(1, 40) g
"""
TIMELINE = {
    "insert and update": "INSERT INTO {t} VALUES (50, 'ü', 'NaN'), (51, NULL, NULL); "
    "UPDATE {t} SET v = 'x' WHERE id < 5",
    "delete and key change": "DELETE FROM {t} WHERE id % 7 = 0; UPDATE {t} SET id = id + 100 WHERE id < 4",
    "more deletes of a file": "UPDATE {t} SET n = n + 1 WHERE id % 3 = 0",
    "new column": "ALTER TABLE {t} ADD added int DEFAULT 7; INSERT INTO {t} (id) VALUES (60)",
    "renamed column": "ALTER TABLE {t} RENAME v TO w; UPDATE {t} SET w = 'renamed' WHERE id = 50",
    "after that": "DELETE FROM {t} WHERE id = 8",
    "name of another column": "ALTER TABLE {t} RENAME n TO v; DELETE FROM {t} WHERE id = 51",
    "wider type": "ALTER TABLE {t} ALTER added TYPE bigint; UPDATE {t} SET added = 5000000000 WHERE id = 60",
    "dropped column": "ALTER TABLE {t} DROP w; INSERT INTO {t} (id) VALUES (61)",
    "after that too": "DELETE FROM {t} WHERE id = 10",
    "truncation": "TRUNCATE {t}",
    "after the truncation": "INSERT INTO {t} (id, ok) SELECT g, true FROM generate_series(1, 5) g",
    "table renamed": "ALTER TABLE {t} RENAME TO {t}r; INSERT INTO {t}r (id) VALUES (70)",
    "it joins under that name": "DELETE FROM {t}r WHERE id = 1; "
    "UPDATE {t}r SET ok = false WHERE id IN (2, 70)",
}
LONG_ONLY = {"delete and key change", "more deletes of a file", "new column", "wider type", "after that too",
             "name of another column", "after the truncation"}  # fmt: skip
STEPS = {step: each for step, each in TIMELINE.items() if LONG or step not in LONG_ONLY}
# With a REST catalog, the snapshot of a point that renames or drops a column has the columns of before.
BEFORE: Mapping[str, Mapping[str, str | None]] = {
    "renamed column": {"v": "w"},
    "name of another column": {"n": "v"},
    "dropped column": {"w": None},
}
SAME, NAMES_BEFORE = "same rows", "same rows, column names from before"


@dataclass
class Point:
    """What the source had at a point, and by which step the lake came there."""

    step: str
    tables: dict[str, Rows]


@dataclass
class Outcomes:
    """What a reader did not see as it was; of each format and way to name a point, all that it saw."""

    wrong: list[tuple[str, ...]] = field(default_factory=list)
    seen: dict[tuple[str, str], set[str]] = field(default_factory=dict)


@pytest.mark.skipif(IN_NESSIE, reason="it chooses the catalog by itself, and needs format 3")
@pytest.mark.parametrize("kind", ["rest", "postgresql"] if LONG else ["rest"])
def test_all_readers_at_every_point(
    kind: str, database: Database, session: Any, pg: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with ExitStack() as stack:
        if kind == "rest":
            uri = str(request.getfixturevalue("rest"))
        else:
            uri = postgres_uri(stack.enter_context(fresh_database(pg)))
        extra = "".join(f"  {table}: {{format: {table[1:]}}}\n" for table in TABLES) + "on_drop: drop\n"
        file = pipeline_file(tmp_path, database, [], name=f"readers_{kind}", uri=uri, extra=extra)
        with Pipeline.open(file) as pipeline:
            lake, points = pipeline.lake, _life(database, pipeline)
        readers = _readers(session, lake)
        if LONG:
            trino = LocalTrino(tmp_path / "trino", lake.catalog, _trino_catalog(lake))
            readers.append(Trino(stack.enter_context(trino).uri, lake))
        outcomes = {reader.name: _outcomes(reader, points) for reader in readers}
    lines = [_line(name, outcome) for name, outcome in outcomes.items()]
    print(*lines, sep="\n")
    assert [each for outcome in outcomes.values() for each in outcome.wrong] == []
    documented = (ROOT / "docs/reading.md").read_text().splitlines()
    assert [line for line in lines if line not in documented] == []


def _life(database: Database, pipeline: Any) -> dict[str, Point]:
    """Take both tables through the timeline; return what each point must show."""
    for table in TABLES:
        database.execute(SETUP.format(t=table))
    points = {pipeline.init().lsn: Point("copy", _rows(database))}
    for step, statements in STEPS.items():
        for table in TABLES:
            database.execute(statements.format(t=table))
        before = [*points.values()][-1].tables  # a table that left keeps its rows
        lsn = pipeline.sync().lsn
        while step == "table renamed" and not _has_joined(pipeline):
            lsn = pipeline.sync().lsn
        points[lsn] = Point(step, before | _rows(database))
    assert len(points) >= len(STEPS)  # tables may join at the point of the step before
    return points


def _has_joined(pipeline: Any) -> bool:
    """Whether the lake has the tables under their new names; a sync copies as many as it has time for."""
    return {f"{table}r" for table in TABLES} <= {
        name.table for name in ReadPoint.latest(pipeline.lake).pinned
    }


def _rows(database: Database) -> dict[str, Rows]:
    with database.connect() as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE tablename ~ '^v[23]r?$'").fetchall()
        tables = {}
        for (table,) in found:
            columns, rows = source_rows(connection, table)
            named = {tuple(sorted(zip(columns, row, strict=True))): count for row, count in rows.items()}
            tables[table] = Counter(named)
    return tables


def _trino_catalog(lake: LakeSettings) -> dict[str, str]:
    if lake.is_rest:
        return {"iceberg.catalog.type": "rest", "iceberg.rest-catalog.uri": lake.uri, **_trino_storage()}
    url = make_url(lake.uri)
    own = {
        "catalog-name": lake.catalog,
        "driver-class": "org.postgresql.Driver",
        "connection-url": f"jdbc:postgresql://{url.host}:{url.port}/{url.database}",
        "connection-user": url.username or "",
        "connection-password": url.password or "none",
        "default-warehouse-dir": lake.warehouse_uri,
        "schema-version": "V1",
    }
    jdbc = {f"iceberg.jdbc-catalog.{key}": v for key, v in own.items()}
    return {"iceberg.catalog.type": "jdbc", **jdbc, **_trino_storage()}


def _trino_storage() -> dict[str, str]:
    """How Trino reaches the bucket of the run's lakes, if they are in one."""
    properties = pyiceberg_properties()
    if not properties:
        return {}
    return {
        "fs.native-s3.enabled": "true",
        "s3.endpoint": properties["s3.endpoint"],
        "s3.region": properties["s3.region"],
        "s3.path-style-access": "true",
        "s3.aws-access-key": properties["s3.access-key-id"],
        "s3.aws-secret-key": properties["s3.secret-access-key"],
    }


def _readers(session: Any, lake: LakeSettings) -> list[Reader]:
    own = sibling(session)
    use_lake(own, lake)
    catalog = pyiceberg_catalog(lake)
    readers: list[Reader] = [Spark(own, lake), PyIceberg(catalog, lake)]
    readers += [Polars(catalog, lake), DuckFiles(catalog, lake)]
    return [*readers, DuckAttached(lake.uri, lake)] if lake.is_rest else readers


def _outcomes(reader: Reader, points: Mapping[str, Point]) -> Outcomes:
    """Read every table at every point, as the row of `commits` says that this reader itself reads."""
    outcomes = Outcomes()
    # Of two rows with one LSN, the one published last counts.
    rows = sorted(reader.read("commits", None).to_pylist(), key=lambda row: row["published_at"])
    pins = {row["lsn"]: dict(row["tables"]) for row in rows}
    assert points.keys() <= pins.keys(), reader.name
    known = set(TABLES)
    for lsn, point in points.items():
        tables = [table for table in point.tables if f"{reader.lake.namespace}.{table}" in pins[lsn]]
        assert tables[:2] == TABLES, (reader.name, point.step)
        for table in tables:
            pin = pins[lsn][f"{reader.lake.namespace}.{table}"]
            ways: dict[str, int | str | None] = {"snapshot": pin, "tag": "lsn_" + lsn.replace("/", "_")}
            if len(tables) > 2 and table in TABLES:
                del ways["tag"]  # a table that left has no tags of later points
            if table not in known:
                known.add(table)
                del ways["tag"]  # nor one that joins the tag of that point
            for way, version in ways.items():
                _note(outcomes, reader, way, version, table, point)
    last = [*points.values()][-1]
    assert len(last.tables) == 4
    for table in last.tables:
        _note(outcomes, reader, "now", None, table, last)
    return outcomes


def _note(
    outcomes: Outcomes, reader: Reader, way: str, version: int | str | None, table: str, point: Point
) -> None:
    outcome = _outcome(reader, table, version, point)
    number = "2" if table == "v2" else "3"  # the pipeline file says nothing of the new names
    outcomes.seen.setdefault((number, way), set()).add(outcome)
    if outcome == SAME or (outcome == NAMES_BEFORE and reader.lake.is_rest):
        return
    if not any(text in outcome for key, text in reader.refuses.items() if key in (way, number)):
        outcomes.wrong.append((reader.name, table, way, point.step, outcome))


def _outcome(reader: Reader, table: str, version: int | str | None, point: Point) -> str:
    expected = point.tables[table]
    try:
        seen = rows_in(reader.read(table, version))
    except Exception as error:  # noqa: BLE001  (of five engines)
        return f"no: {type(error).__name__}: {error}"[:200]
    if seen == expected:
        return SAME
    if _renamed(seen, BEFORE.get(point.step, {})) == expected:
        return NAMES_BEFORE
    columns, wanted = ({name for row in rows for name, _ in row} for rows in (seen, expected))
    if columns != wanted:
        return f"columns {sorted(columns - wanted)} more, {sorted(wanted - columns)} fewer"
    return f"missing {[*(expected - seen)][:2]}, extra {[*(seen - expected)][:2]}"


def _renamed(rows: Rows, names: Mapping[str, str | None]) -> Rows:
    renamed: Rows = Counter()
    for row, count in rows.items():
        pairs = [(names.get(name, name), text) for name, text in row]
        renamed[tuple(sorted((name, text) for name, text in pairs if name is not None))] += count
    return renamed


def _line(name: str, outcomes: Outcomes) -> str:
    """The reader's line of the matrix."""
    cells = [_cell(outcomes.seen[number, way]) for number in "23" for way in ("now", "snapshot", "tag")]
    return f"| {name} | {' | '.join(cells)} |"


def _cell(seen: set[str]) -> str:
    if any(each.startswith("no: ") for each in seen):
        return "no"
    return "yes, names ¹" if NAMES_BEFORE in seen else "yes"
