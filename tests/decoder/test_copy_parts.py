"""A table's copy cut into parts: together all of it, each row once, whatever is written meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import pytest

from slotlake.decoder.catalog.publications import SourceTable, source_tables
from slotlake.decoder.copy.parts import Part, part_query, plan_parts
from slotlake.decoder.copy.table import CopyCrew, CopyJob
from slotlake.decoder.errors import SourceError
from slotlake.decoder.server.source import connect
from slotlake.decoder.slots.slot import create_slot
from tests.conftest import Database, Servers
from tests.decoder.sources import settings
from tests.decoder.test_bad_input_source import refused, role
from tests.decoder.test_copy import Place, copied, texts


def planned(dsn: str, part_bytes: int) -> tuple[SourceTable, list[Part]]:
    with connect(dsn) as connection:
        (table,) = source_tables(connection, ("p",))
        return table, plan_parts(connection, [table], part_bytes=part_bytes)[table]


def test_ranges_are_the_whole_table_while_it_is_written(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows move to other pages, behind the last one that was there, and away: the snapshot's come, once."""
    monkeypatch.setattr("slotlake.decoder.copy.parts.PART_BYTES", 100_000)
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t WHERE (id % 2 = 0);"
        "INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, 10000) i"
    )
    source = settings(database)
    table, parts = planned(database.dsn, 100_000)
    assert len(parts) > 5
    assert (parts[0].first, parts[-1].end) == (None, None)
    assert [part.end for part in parts[:-1]] == [part.first for part in parts[1:]]
    files = []
    with create_slot(source, temporary=True) as cut:
        database.execute("UPDATE t SET a = 'moved' WHERE id < 3000; DELETE FROM t WHERE id > 9000")
        database.execute("VACUUM t")
        database.execute("INSERT INTO t SELECT i, 'new' FROM generate_series(20000, 30000) i")
        jobs = [CopyJob(table, Place(tmp_path, table), part, f"part-{part.number}") for part in parts]
        done = lambda job, those: files.extend(those)  # noqa: E731
        with CopyCrew(source.dsn, cut.snapshot, jobs, workers=3, done=done) as crew:
            crew.wait(jobs)
    rows = texts(table, files)
    assert len(rows) == 5000
    assert {int(number) for number, _ in rows} == set(range(2, 10001, 2))
    assert all(text not in ("moved", "new") for _, text in rows)


def test_a_part_that_is_left_out_costs_no_turn(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that comes late meets many parts that others have, and few turns."""
    monkeypatch.setattr("slotlake.decoder.copy.parts.PART_BYTES", 100_000)
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t;"
        "INSERT INTO t SELECT i, repeat('x', 50) FROM generate_series(1, 10000) i"
    )
    table, parts = planned(database.dsn, 100_000)
    source, copied_parts, turns = settings(database), list[int](), list[Event]()

    @contextmanager
    def turn(ended: Event) -> Iterator[None]:
        turns.append(ended)
        yield

    with create_slot(source, temporary=True) as cut:
        jobs = [CopyJob(table, Place(tmp_path, table), part, f"part-{part.number}") for part in parts]
        with CopyCrew(
            source.dsn,
            cut.snapshot,
            [],
            workers=2,
            done=lambda job, files: copied_parts.append(job.part.number),
            begins=lambda job: job.part.number % 4 == 0,
        ) as crew:
            crew.turn = turn
            crew.add(jobs)
            crew.wait(jobs)
    assert sorted(copied_parts) == [part.number for part in parts if part.number % 4 == 0]
    assert 0 < len(turns) == len(copied_parts) < len(parts)


def test_partitions_are_read_by_themselves_if_the_role_may(database: Database, tmp_path: Path) -> None:
    database.execute(
        """
        CREATE TABLE t (id int PRIMARY KEY, a text) PARTITION BY RANGE (id);
        CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10);
        CREATE TABLE t2 (a text, id int NOT NULL);
        ALTER TABLE t ATTACH PARTITION t2 FOR VALUES FROM (10) TO (20);
        INSERT INTO t VALUES (1, 'one'), (11, 'eleven');
        CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root)
        """
    )
    assert [part.relation for part in planned(database.dsn, 1 << 20)[1]] == [
        'ONLY "public"."t1"',
        'ONLY "public"."t2"',
    ]
    table, files = copied(database, tmp_path)
    assert sorted(texts(table, files)) == [("1", "one"), ("11", "eleven")]
    with role(database, "REPLICATION") as dsn:
        database.execute(f"GRANT SELECT ON t TO role_{database.name}")
        [whole] = planned(dsn, 1 << 20)[1]
        with connect(dsn) as connection, connection.cursor() as cursor:
            assert (whole.relation, whole.condition) == ('"public"."t"', None)
            with cursor.copy(part_query(table, whole)) as copy:  # it may do so
                assert list(copy)


def test_a_server_without_ranges_reads_whole_tables(servers: Servers, tmp_path: Path) -> None:
    """Before 14 a condition on ctid reads all of the table: a part would cost as much as the whole."""

    class Old:
        class info:  # noqa: N801 - psycopg's name of it
            server_version = 130000

        def __init__(self, connection: psycopg.Connection[Any]) -> None:
            self.execute = connection.execute

    with psycopg.connect(servers(14).dsn(), autocommit=True) as connection:
        connection.execute(
            "DROP TABLE IF EXISTS t; CREATE TABLE t AS SELECT i FROM generate_series(1, 9999) i"
        )
        connection.execute("CREATE PUBLICATION p FOR TABLE t")
        try:
            [table] = source_tables(connection, ("p",))
            assert len(plan_parts(connection, [table], part_bytes=50_000)[table]) > 3
            old: Any = Old(connection)
            [part] = plan_parts(old, [table], part_bytes=50_000)[table]
            assert part.condition is None
        finally:
            connection.execute("DROP PUBLICATION p; DROP TABLE t")


def test_one_part_that_fails_ends_all(database: Database, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE t (id int, a int); CREATE PUBLICATION p FOR TABLE t WHERE (10 / (id - 9000) <> 11);"
        "INSERT INTO t SELECT i, i FROM generate_series(1, 10000) i"
    )
    source = settings(database)
    table, parts = planned(database.dsn, 20_000)
    jobs = [CopyJob(table, Place(tmp_path, table), part, f"part-{part.number}") for part in parts]

    def copy() -> None:
        with (
            create_slot(source, temporary=True) as cut,
            CopyCrew(source.dsn, cut.snapshot, jobs, workers=2) as crew,
        ):
            crew.wait(jobs)

    refused(SourceError, "division by zero", copy)
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept < {f"part-{part.number}-00000.parquet" for part in parts}
