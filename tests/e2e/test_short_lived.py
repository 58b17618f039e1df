"""Tables that are made, written, altered and dropped all the time: all others go on."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.meanwhile import meanwhile

pytestmark = [pytest.mark.timeout(900), pytest.mark.server]
SYNCS = 16 if os.environ.get("SLOTLAKE_TEST_LONG") else 6


@contextmanager
def looping(database: Database, sessions: int = 2) -> Iterator[list[int]]:
    """Sessions that loop CREATE, INSERT, ALTER, DROP; how often each has."""
    done = [0] * sessions

    def loop(number: int, stop: threading.Event) -> None:
        with database.connect() as connection:
            while not stop.is_set():
                name = f"brief_{number}_{done[number] % 7}"
                connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)".encode())
                connection.execute(f"INSERT INTO {name} SELECT g, 'x' FROM generate_series(1, 5) g".encode())
                connection.execute(f"UPDATE {name} SET v = 'y'; DELETE FROM {name} WHERE id = 1".encode())
                connection.execute(
                    f"ALTER TABLE altered_{number} ALTER v TYPE varchar USING v || '!'".encode()
                )
                stop.wait(0.05 * (number + 1))
                connection.execute(f"DROP TABLE {name}".encode())
                done[number] += 1

    with meanwhile(*(partial(loop, number) for number in range(sessions))):
        yield done


def test_under_for_all_tables(database: Database, session: Any, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE lasting (id int PRIMARY KEY, v text); INSERT INTO lasting VALUES (0, 'a');"
        "CREATE TABLE altered_0 (id int PRIMARY KEY, v text); INSERT INTO altered_0 VALUES (0, 'a');"
        "CREATE TABLE altered_1 (id int PRIMARY KEY, v text); INSERT INTO altered_1 VALUES (0, 'a');"
        "CREATE PUBLICATION shop FOR ALL TABLES"
    )
    file = pipeline_file(tmp_path, database, [])
    with Pipeline.open(file) as pipeline, looping(database) as done:
        pipeline.init()
        for number in range(1, SYNCS + 1):
            database.execute("INSERT INTO lasting VALUES (%s, 'b')", [number])
            pipeline.sync()
            pipeline.status()
        results = pipeline.verify().tables
        assert all(result.equal for name, result in results.items() if "altered" not in name)
        pipeline.backfill("lasting")
        pipeline.recover(carry_out=True)
    assert min(done) > SYNCS
    with Pipeline.open(file) as pipeline:
        pipeline.sync()
        assert not pipeline.sync().set_aside
        assert pipeline.verify().equal
        assert_equal(database, pipeline, ["lasting", "altered_0", "altered_1"])
