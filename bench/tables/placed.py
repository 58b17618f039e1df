"""ten_of_a_thousand_vs_ten: what tables that a batch does not touch add to its cost.

Two pipelines read the same ten tables' changes, one of a thousand tables and one of these ten, in one Spark.
The other 990 are made in seconds, not copied: published at the source, and in the lake the tenth's metadata
under their names, with what the source's catalog says of them.  That is all that a batch that does not touch
them could meet of them.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from pyiceberg.catalog.sql import IcebergTables
from sqlalchemy import insert, text
from sqlalchemy.engine import create_engine

from slotlake.bench.figures import Figure, in_turns
from slotlake.bench.lakes import bench_pipeline
from slotlake.bench.workload import (
    COLUMNS,
    DATABASE,
    PUBLICATION,
    bench_folder,
    bench_server,
    rows_asked,
    runs_asked,
)
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.server.source import connect
from slotlake.infra.copy.tables import published_tables
from slotlake.infra.selection.tables import lake_schema
from slotlake.infra.source.fingerprints import fingerprints_at, with_fingerprint
from slotlake.spark import lake_files
from slotlake.spark.catalog.base import Loaded, load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.names import LakeName
from slotlake.spark.publish.commits import Point, commits_name
from slotlake.spark.publish.points import positions_to_keep
from slotlake.spark.publish.swap import point_move
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.schema import SCHEMA_PROPERTY, TableSchema

if TYPE_CHECKING:
    from slotlake.infra.pipeline import Pipeline
    from slotlake.infra.progress import Progressing

ROWS = 100
TABLES, _TABLES_SHORT, TOUCHED = 1000, 20, 10
_WARM_UPS, _RUNS = 3, 7
_SLOWER_MAX = 1.2
_MANY = "_many"


def ten_of_a_thousand_vs_ten(progress: Progressing) -> list[Figure]:
    """One row changed in each of ten tables, synced by either pipeline, in turns."""
    count = TABLES if rows_asked(ROWS) == ROWS else _TABLES_SHORT
    names = [f"t{i}" for i in range(1, count + 1)]
    touched, others = names[:TOUCHED], names[TOUCHED:]
    with bench_server() as server, bench_folder() as folder, connect(server.dsn(DATABASE)) as connection:
        progress("ten_of_a_thousand_vs_ten: making tables", 0)
        _make(connection, names)
        change = ";".join(f"UPDATE {name} SET quantity = quantity + 1 WHERE id = 5" for name in touched)
        with (
            bench_pipeline(server, folder, touched, progress, suffix="_few") as few,
            bench_pipeline(server, folder, touched, progress, suffix=_MANY) as many,
        ):
            connection.execute(
                f"ALTER PUBLICATION {PUBLICATION}{_MANY} ADD TABLE {', '.join(others)}".encode()
            )
            place_tables(many, touched[-1], set(others))

            def of_many() -> float:
                connection.execute(change.encode())
                return _synced(many)

            for i in range(runs_asked(_WARM_UPS)):
                progress("ten_of_a_thousand_vs_ten: warming up", i + 1)
                in_turns(of_many, lambda: _synced(few), 1)
            progress("ten_of_a_thousand_vs_ten: pairs", 0)
            seconds = in_turns(of_many, lambda: _synced(few), runs_asked(_RUNS))
    return [
        Figure(
            what=f"sync() of one row in each of ten tables, in a pipeline of {count:,}",
            peer="the same in a pipeline of ten",
            unit="s",
            ours=tuple(mine for mine, _ in seconds),
            theirs=tuple(other for _, other in seconds),
            better="less",
            wanted=1 / _SLOWER_MAX,
        )
    ]


def _make(connection: psycopg.Connection[Any], names: Sequence[str]) -> None:
    for first in range(0, len(names), 100):
        tables = "; ".join(f"CREATE TABLE {name} ({COLUMNS})" for name in names[first : first + 100])
        connection.execute(tables.encode())
    for name in names[:TOUCHED]:
        rows = f"SELECT i, 0 FROM generate_series(1, {ROWS}) i"
        connection.execute(f"INSERT INTO {name} (id, quantity) {rows}".encode())


def place_tables(pipeline: Pipeline, model: str, others: Collection[str]) -> None:
    """Put tables into the lake that look like one that it has, and into the newest row of `commits`.

    Args:
        pipeline: a pipeline whose publications have them.
        model: the table that they look like.
        others: the names of those to be put there.
    """
    with open_catalog(pipeline.lake) as catalog:
        like = load_one(catalog, LakeName(pipeline.lake.namespace, model))
    tables = [table for table in published_tables(pipeline) if table.table in others]
    fingerprints = fingerprints_at(pipeline.source, [table.relation_id for table in tables], None)
    placed = {
        LakeName(pipeline.lake.namespace, table.table): _metadata_of(
            like, with_fingerprint(lake_schema(table), fingerprints[table.relation_id])
        )
        for table in tables
    }
    if pipeline.lake.is_rest:
        with open_catalog(pipeline.lake) as catalog:
            for name, location in placed.items():
                catalog.add(name, location)
    else:
        _insert(pipeline, placed)
    _point_with(pipeline, dict.fromkeys(placed, _main(like)))


def _insert(pipeline: Pipeline, placed: Mapping[LakeName, str]) -> None:
    rows = [
        {
            "catalog_name": pipeline.lake.catalog,
            "table_namespace": name.namespace,
            "table_name": name.table,
            "metadata_location": location,
        }
        for name, location in placed.items()
    ]
    engine = create_engine(pipeline.lake.sqlalchemy_uri)
    with engine.begin() as connection:
        connection.execute(insert(IcebergTables), rows)
        connection.execute(text("ANALYZE"))  # as autovacuum would, which is off here
    engine.dispose()


def _main(table: Loaded) -> int:
    return catalog_metadata.ref(table.metadata, catalog_metadata.MAIN) or 0


def _point_with(pipeline: Pipeline, snapshots: Mapping[LakeName, int]) -> None:
    """Publish a point at the lake's position that names these tables too, as a copy of them would have."""
    position, lake = pipeline.position(), pipeline.lake
    point = Point(pipeline.name, position, "placed", "by hand", "copy", changed={})
    with open_catalog(lake) as catalog:
        commits = load_one(catalog, commits_name(lake.namespace))
        keep_positions = positions_to_keep(commits.metadata, position, True, lake.keep)
        catalog.move([point_move(catalog, commits, point, snapshots, keep_positions)])


def _metadata_of(like: Loaded, schema: TableSchema) -> str:
    location = f"{like.metadata['location'].rpartition('/')[0]}/{schema.table}"
    metadata = {
        **catalog_metadata.with_properties(like.metadata, {SCHEMA_PROPERTY: schema.to_json()}),
        "location": location,
        "table-uuid": str(uuid.uuid4()),
    }
    file = f"{location}/metadata/00000-{uuid.uuid4()}.metadata.json"
    lake_files.write_new(file, json.dumps(metadata).encode())
    return file


def _synced(pipeline: Pipeline) -> float:
    started = time.monotonic()
    report = pipeline.sync()
    if len(report.tables) != TOUCHED or report.changes != TOUCHED:
        raise SlotlakeError(f"sync took {len(report.tables)} tables, {report.changes} changes, not {TOUCHED}")
    return time.monotonic() - started
