"""Tables are altered while they are copied: these are copied later, and no other table waits for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.infra.progress import CopyStep
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = [pytest.mark.timeout(900), pytest.mark.server]
# What is done to the table of that name while another one is read.
CHANGES = {
    "added": "ALTER TABLE added ADD COLUMN more int DEFAULT 3",
    "detached": "ALTER TABLE detached DETACH PARTITION detached_1",
    "renamed": "ALTER TABLE renamed RENAME TO renamed_to",
    "replaced": "DROP TABLE replaced; CREATE TABLE replaced (id int PRIMARY KEY, w text);"
    "INSERT INTO replaced VALUES (5, 'other')",
    "vacuumed": "VACUUM FULL vacuumed",
}
if os.environ.get("SLOTLAKE_TEST_LONG"):
    CHANGES |= {
        "clustered": "CLUSTER clustered USING clustered_pkey",
        "lost": "ALTER TABLE lost DROP COLUMN v",
        "retyped": "ALTER TABLE retyped ALTER v TYPE varchar USING v || '!'",
        "emptied": "TRUNCATE emptied; INSERT INTO emptied VALUES (9, 'new')",
        "moved": "CREATE SCHEMA away; ALTER TABLE moved SET SCHEMA away; CREATE TABLE moved (a int)",
        "swapped": "CREATE TABLE s (a int PRIMARY KEY); ALTER TABLE swapped RENAME TO t;"
        "ALTER TABLE s RENAME TO swapped",
    }
AT_THE_END = ["a_first", "z_last", "detached_1", "renamed_to", *(CHANGES.keys() - {"renamed"})]


def _make(database: Database, names: list[str]) -> None:
    for name in names:
        database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v text);"
            f"INSERT INTO {name} SELECT g, 'x' FROM generate_series(1, 40) g"
        )


@contextmanager
def changing(database: Database, statements: list[str]) -> Iterator[Callable[..., None]]:
    """Give a function that reports progress, and runs these statements when the first rows are copied."""
    left = list(statements)
    with database.connect() as connection:

        def progress(step: str, done: int, total: int | None = None) -> None:
            if isinstance(step, CopyStep) or step.startswith("copy "):
                while left:
                    for statement in left.pop(0).split(";"):
                        connection.execute(statement.encode())

        yield progress
    assert not left


def test_at_init_and_when_tables_join(database: Database, session: Any, tmp_path: Path) -> None:
    _make(database, ["a_first", "z_last", *(name for name in CHANGES if name != "detached")])
    database.execute(
        "CREATE TABLE detached (id int, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE detached_1 PARTITION OF detached FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE detached_2 PARTITION OF detached FOR VALUES FROM (10) TO (20);"
        "INSERT INTO detached SELECT g, 'x' FROM generate_series(1, 19) g;"
        "CREATE PUBLICATION shop FOR ALL TABLES WITH (publish_via_partition_root = true)"
    )
    file = pipeline_file(tmp_path, database, [], source="copy_workers: 1")
    with Pipeline.open(file) as pipeline:
        with changing(database, list(CHANGES.values())) as progress:
            report = pipeline.init(progress=progress)
        assert set(report.set_aside) == {f"public.{name}" for name in CHANGES.keys() - {"replaced"}}
        assert {"public.a_first", "public.z_last"} <= {copy.table for copy in report.tables}
        assert not pipeline.status().alarms
        _make(database, ["late_1", "late_2", "late_3"])
        late = ["ALTER TABLE late_2 ALTER v TYPE varchar USING v || '!'", "DROP TABLE late_3"]
        with changing(database, late) as progress:
            added = pipeline.sync(progress=progress).added_tables
        assert "public.late_1" in added
        assert "public.late_2" not in added
        pipeline.sync()
        database.execute("INSERT INTO vacuumed VALUES (100, 'later'); DELETE FROM added WHERE id < 9")
        assert not pipeline.sync().set_aside
        assert pipeline.verify().equal
        assert_equal(database, pipeline, [*AT_THE_END, "late_1", "late_2"])
        _change_again(database, pipeline)


def _change_again(database: Database, pipeline: Pipeline) -> None:
    """Tables that are copied again, with a batch and without one, change under that copy too."""
    names = ["added", "late_1", "late_2"]
    for name in names:
        database.execute(f"ALTER TABLE {name} ALTER id TYPE bigint USING id + 1000")
    database.execute("INSERT INTO late_1 VALUES (1, 'y'); INSERT INTO a_first VALUES (77, 'y')")
    with changing(database, ["TRUNCATE late_1; ALTER TABLE late_2 RENAME v TO w"]) as progress:
        report = pipeline.sync(progress=progress)
    assert set(report.set_aside) == {"public.late_1", "public.late_2"}
    assert_equal(database, pipeline, ["a_first", "added"])
    pipeline.sync()
    with changing(database, ["VACUUM FULL late_2"]) as progress:
        pipeline.backfill(["late_1", "late_2"], progress=progress)
    assert not pipeline.sync().set_aside
    assert pipeline.verify().equal
    assert_equal(database, pipeline, ["a_first", *names])
