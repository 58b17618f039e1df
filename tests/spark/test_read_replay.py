"""A range of archived batches, applied again elsewhere in batches of any size, gives the same contents."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import ChangeLogError, LakeError
from slotlake.spark.read.point import ReadPoint
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file

pytestmark = pytest.mark.timeout(600)

TABLES = ["items", "log", "odd.names"]
SETUP = """
CREATE SCHEMA odd;
CREATE TABLE items (id int PRIMARY KEY, v text, big text);
CREATE TABLE log (n int);
CREATE TABLE odd.names (a int, b text, v int, PRIMARY KEY (a, b));
INSERT INTO items SELECT g, 'a', repeat(md5(g::text), 200) FROM generate_series(1, 50) g;
INSERT INTO odd.names SELECT g, 'k', 0 FROM generate_series(1, 20) g;
"""
BIG = "(SELECT string_agg(md5((g + {0})::text), '') FROM generate_series(1, 400) g)"
HISTORY = [
    [
        "UPDATE items SET v = 'b' WHERE id <= 10; INSERT INTO log VALUES (1)",
        f"INSERT INTO items VALUES (100, 'n', {BIG.format(7)})",
        "UPDATE items SET id = 101 WHERE id = 100",
        "DELETE FROM odd.names WHERE a = 3",
    ],
    [
        "UPDATE items SET id = 102 WHERE id = 101",
        "UPDATE items SET v = 'moved' WHERE id = 102; INSERT INTO log VALUES (2), (2)",
        (
            "BEGIN; UPDATE odd.names SET a = -1 WHERE a = 1; UPDATE odd.names SET a = 1 WHERE a = 2;"
            " UPDATE odd.names SET a = 2 WHERE a = -1; COMMIT"
        ),
        "TRUNCATE log; INSERT INTO log VALUES (3)",
    ],
    [
        "DELETE FROM items WHERE id = 102; INSERT INTO items VALUES (102, 'again', NULL)",
        f"UPDATE items SET big = {BIG.format(9)} WHERE id = 1",
        "UPDATE items SET v = 'c' WHERE id = 1; INSERT INTO odd.names VALUES (3, 'k', 9)",
    ],
]


def test_replayed_in_batches_of_any_size(database: Database, session: Any, tmp_path: Path) -> None:
    database.execute(SETUP)
    file = pipeline_file(tmp_path, database, TABLES)
    with Pipeline.open(file) as pipeline:
        copied = pipeline.init().lsn
        points = [copied]
        for batch in HISTORY:
            with database.connect() as connection:
                for transaction in batch:
                    connection.execute(transaction)
            points.append(pipeline.sync().lsn)
        for size in (2, 1000):
            report = pipeline.replay("scratch", start=copied, transactions=size)
            assert report.lsn == points[-1]
            assert (report.transactions, report.copied_meanwhile) == (11, [])
            assert (report.archived, report.batches) == (3, len(range(0, 11, size)))
            assert _contents(pipeline, "scratch") == _contents(pipeline, "shop")
        part = pipeline.replay("scratch", start=points[1], end=points[2])
        assert (part.archived, part.batches, part.transactions) == (1, 1, 4)
        assert _contents(pipeline, "scratch") == _contents(pipeline, "shop", points[2])
        _what_is_refused(pipeline, copied)


def _contents(pipeline: Any, namespace: str, at: str | None = None) -> dict[str, Counter[Any]]:
    from slotlake.spark.publish.points import parse_at

    cut = ReadPoint.of(replace(pipeline.lake, namespace=namespace), parse_at(at or "latest"))
    return {table: Counter(cut.rows(table)) for table in TABLES}


def _what_is_refused(pipeline: Any, copied: str) -> None:
    before = _contents(pipeline, "shop")
    for namespace, why in (("shop", "of its own"), ("shop__odd", "of its own"), ("shop__x", "of its own")):
        with pytest.raises(LakeError, match=why):
            pipeline.replay(namespace, start=copied)
    pipeline.session.sql("CREATE NAMESPACE lake.theirs").collect()
    pipeline.session.sql("CREATE TABLE lake.theirs.t (a int) USING iceberg").collect()
    with pytest.raises(LakeError, match="no replay of this pipeline made"):
        pipeline.replay("theirs", start=copied)
    batches = sorted(pipeline.file.changelog_dir.glob("0*"))
    damaged = next(batches[1].glob("r*.parquet"))
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-9] + b"x" + content[-8:])
    with pytest.raises(ChangeLogError, match="was changed"):
        pipeline.replay("scratch", start=copied)
    damaged.write_bytes(content)
    batches[1].rename(batches[1].with_name("gone"))
    with pytest.raises(ChangeLogError, match=r"does not have batch .* any more"):
        pipeline.replay("scratch", start=copied)
    assert _contents(pipeline, "shop") == before
