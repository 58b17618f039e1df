"""A pipeline whose slot has another plugin than pgoutput: the lake still equals its source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from decoder.errors import PipelineFileError, SourceError
from infra.local.postgres import temporary_postgres
from infra.model import load_pipeline
from infra.pipeline import Pipeline
from tests.conftest import Database, fresh_database
from tests.e2e.oracle import assert_equal, pipeline_file

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
        with pytest.raises(SourceError, match="a standing puller reads pgoutput only"):
            pipeline.stream.batch(1, None)


def test_what_a_plugin_cannot_do_is_refused(tmp_path: Path, database: Database) -> None:
    file = _with_plugin(pipeline_file(tmp_path, database, ["a"]), "wal2json", "  binary: true\n")
    with pytest.raises(PipelineFileError, match="wal2json cannot do what is asked for with binary"):
        load_pipeline(file)
    file.write_text(file.read_text().replace("plugin: wal2json", "plugin: decoderbufs"))
    with pytest.raises(PipelineFileError, match="plugin"):
        load_pipeline(file)
