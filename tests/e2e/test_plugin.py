"""A pipeline whose slot has another plugin than pgoutput: the lake still equals its source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import PipelineFileError, SourceError
from slotlake.decoder.lsn import parse_lsn
from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.infra.local.postgres import temporary_postgres
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.read.query import query
from tests.conftest import Database, fresh_database
from tests.decoder.plugins import servers
from tests.e2e.oracle import assert_equal, pipeline_file, source_rows
from tests.e2e.test_modes import _told

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def with_contrib() -> Iterator[Database]:
    conf = {"max_wal_senders": "10", "max_replication_slots": "10"}
    with temporary_postgres(version=18, contrib=True, conf=conf) as server, fresh_database(server) as made:
        yield made


def _with_plugin(file: Path, plugin: str, more: str = "") -> Path:
    text = file.read_text().replace("source:\n", f"source:\n  plugin: {plugin}\n{more}", 1)
    assert f"plugin: {plugin}" in text
    file.write_text(text)
    return file


def test_test_decoding(with_contrib: Database, session: Any, tmp_path: Path) -> None:
    database = with_contrib
    database.execute(
        """
        CREATE TABLE a (id int PRIMARY KEY, v text, n numeric(8,2), big text);
        ALTER TABLE a ALTER big SET STORAGE EXTERNAL;
        CREATE TABLE f (id int PRIMARY KEY, v text, at timestamptz); ALTER TABLE f REPLICA IDENTITY FULL;
        CREATE TABLE unpublished (id int);
        INSERT INTO a SELECT g, 'a', g, repeat('x', 5000) FROM generate_series(1, 50) g;
        INSERT INTO f VALUES (1, 'same', NULL), (2, 'same', NULL)
        """
    )
    file = _with_plugin(pipeline_file(tmp_path, database, ["a", "f"]), "test_decoding")
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        database.execute("UPDATE a SET v = 'it''s', n = 'NaN' WHERE id < 10; DELETE FROM a WHERE id > 40")
        database.execute("UPDATE a SET id = 1000 WHERE id = 10; INSERT INTO unpublished VALUES (1)")
        database.execute("DELETE FROM f WHERE id = 1; INSERT INTO f VALUES (3, NULL, 'infinity')")
        database.execute("TRUNCATE f; INSERT INTO f VALUES (4, 'after', NULL)")
        report = pipeline.sync()
        assert (report.transactions, report.changes) == (4, 24)
        assert_equal(database, pipeline, ["a", "f"])
        assert pipeline.verify().equal
        with pytest.raises(SourceError, match="a standing puller reads only pgoutput"):
            pipeline.stream.batch(1, None)


def test_what_a_plugin_cannot_do_is_refused(tmp_path: Path, database: Database) -> None:
    file = _with_plugin(pipeline_file(tmp_path, database, ["a"]), "wal2json", "  binary: true\n")
    with pytest.raises(PipelineFileError, match="wal2json does not support binary"):
        load_pipeline(file)
    file.write_text(file.read_text().replace("plugin: wal2json", "plugin: decoderbufs"))
    with pytest.raises(PipelineFileError, match="plugin"):
        load_pipeline(file)


@pytest.fixture
def with_plugins() -> Iterator[Database]:
    if lacking := servers.missing():
        pytest.skip(f"no server with all plugins here: {', '.join(lacking)} missing")
    with servers.plugin_server() as server, fresh_database(server) as made:
        yield made


TABLES = ["items", "bag"]
MODES = "mode: [history, append]\n"
BEGUN = ("valid_from_lsn", "valid_from_time")
SETUP = """
CREATE TABLE items (a int, part text, v text, n numeric(8,2) NOT NULL, big text, PRIMARY KEY (a, part));
ALTER TABLE items ALTER big SET STORAGE EXTERNAL;
CREATE TABLE bag (v text, w int); ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO items SELECT g, 'p', NULL, g, repeat(md5(g::text), 100) FROM generate_series(1, 9) g;
INSERT INTO bag VALUES ('x', 1), ('x', 1), (NULL, 2);
SELECT pg_replication_origin_create('far')
"""
# Each piece by one of two sessions; after it the source is looked at.
PIECES = [
    (0, "BEGIN; UPDATE items SET v = 'first' WHERE a = 1; INSERT INTO bag VALUES ('first', NULL)"),
    (1, "BEGIN; UPDATE items SET v = 'other' WHERE a = 2; UPDATE items SET a = 12 WHERE a = 2"),
    (0, "SAVEPOINT s; DELETE FROM items WHERE a = 3; ROLLBACK TO s; UPDATE items SET n = 0.10 WHERE a = 1"),
    (1, "DELETE FROM bag WHERE v IS NULL; COMMIT"),
    (0, "UPDATE items SET a = 2, v = 'moved' WHERE a = 1; COMMIT"),
    (
        1,
        "BEGIN; DELETE FROM items WHERE a = 12; INSERT INTO items VALUES (12, 'p', 'again', 1, NULL); COMMIT",
    ),
    (0, "UPDATE bag SET w = 3 WHERE ctid = (SELECT min(ctid) FROM bag WHERE v = 'x')"),
    (1, "SELECT pg_replication_origin_session_setup('far'); UPDATE items SET big = 'small' WHERE a = 4"),
    (1, "SELECT pg_replication_origin_session_reset(); TRUNCATE bag, items"),
    (0, "BEGIN; INSERT INTO items VALUES (1, 'p', '', 1, repeat('y', 5000)); TRUNCATE items; COMMIT"),
    (0, "INSERT INTO items VALUES (5, 'p', 'last', 1, repeat('z', 5000)); INSERT INTO bag VALUES ('l', 1)"),
    (0, "UPDATE items SET v = NULL WHERE a = 5; UPDATE items SET a = 6 WHERE a = 5"),
]


def test_history_and_change_log_of_each_plugin(with_plugins: Database, session: Any, tmp_path: Path) -> None:
    """One history in three slots: what held at each moment, and to the last column what pgoutput told."""
    database, told = with_plugins, {}
    database.execute(SETUP)
    with ExitStack() as stack:
        pipelines = {}
        for plugin in ("pgoutput", "test_decoding", "wal2json"):
            file = pipeline_file(tmp_path / plugin, database, TABLES, name=plugin, extra=MODES)
            pipelines[plugin] = stack.enter_context(Pipeline.open(_with_plugin(file, plugin)))
            pipelines[plugin].init()
        moments = _moments(database)
        for plugin, pipeline in pipelines.items():
            pipeline.sync()
            for table in TABLES:
                beside = _told(pipeline, pipeline.lake, table)
                for lsn, rows in moments.items():
                    assert beside.at(lsn) == rows[table], (plugin, table, lsn)
                    assert beside.replayed(lsn) == rows[table], (plugin, table, lsn)
            told[plugin] = _all_columns(pipeline, min(moments))
        assert pipelines["wal2json"].verify().equal
    assert told["wal2json"] == told["pgoutput"]
    assert {row[-1] for row in told["pgoutput"]["items__changes"]} == {"far", None}
    for name in ("items__changes", "bag__changes"):
        told["pgoutput"][name] = Counter(map(_untold, told["pgoutput"][name].elements()))
    assert told["test_decoding"] == told["pgoutput"]


def _moments(database: Database) -> dict[int, dict[str, Counter[Any]]]:
    """By position, what the source held between the pieces."""
    found = {}
    with ExitStack() as stack:
        sessions = [stack.enter_context(database.connect()) for _ in range(2)]
        looking = stack.enter_context(database.connect())
        for number, statements in [(0, "SELECT 1"), *PIECES]:
            for statement in statements.split("; "):
                sessions[number].execute(statement.encode())
            row = looking.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
            assert row is not None
            found[parse_lsn(row[0])] = {table: source_rows(looking, table)[1] for table in TABLES}
    return found


def _all_columns(pipeline: Any, since: int) -> dict[str, Counter[Any]]:
    """What is beside the mirrors; without what each pipeline's own copy said."""
    found = {}
    for table in TABLES:
        columns = [column.lake_name for column in ReadPoint.latest(pipeline.lake).schema(table).live]
        images = ", ".join(f"{image}.{c}" for image in ("new", "old") for c in columns)
        begun = ", ".join(f"CASE WHEN valid_from_lsn > {since} THEN {c} END" for c in BEGUN)
        asked = {
            "history": f"{begun}, valid_to_lsn, valid_to_time, is_open, {', '.join(columns)} FROM {{}}",
            "changes": "lsn, op, seq, change_lsn, xid, commit_time, old_row, unchanged, "
            f"{images}, commit_lsn, origin FROM {{}} WHERE op NOT IN ('C', 'R')",
        }
        for kind, sql in asked.items():
            name = f"{table}__{kind}"
            rows = query(
                pipeline.session, pipeline.lake, f"SELECT {sql.format(f'{pipeline.lake.namespace}.{name}')}"
            ).rows
            found[name] = Counter(rows)
    return found


def _untold(row: tuple[str | None, ...]) -> tuple[str | None, ...]:
    assert row[0] is not None
    return (*row[:-2], str(int(row[0]) - 1), None)
