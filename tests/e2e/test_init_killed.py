"""SIGKILL of an `init` at random moments while its tables are written, until it ends: the lake is the source.

The moments are drawn from the seed that is printed; SLOTLAKE_TEST_SEED draws the same ones again, as far as
the machine's speed lets them be the same.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from slotlake import Pipeline
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file, source_rows
from tests.meanwhile import repeatedly

pytestmark = pytest.mark.timeout(1800)
PART_BYTES = 60_000
COMMAND = (
    f"import slotlake.decoder.copy.parts as p; p.PART_BYTES = {PART_BYTES}; "
    "from slotlake.infra.cli.main import main; main()"
)
KILLS = 24 if os.environ.get("SLOTLAKE_TEST_LONG") else 2
KILLS_PER_COPY = 6
# Of the kills: before there is a snapshot; at any moment from then on. The others: while ranges are copied.
BEFORE_THE_SNAPSHOT, AFTER_THE_SNAPSHOT = 0.2, 0.5
NOTED_SHARE = 0.005  # a table without a key that was changed is copied anew
FIRST_WINDOW_SECONDS = 1.5  # until it is known how long a copy takes here
COPYING = (
    "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender' AND datname = current_database()"
)
CHOSEN = "(SELECT * FROM chosen WHERE id % 2 = 0) AS chosen"


def fill(database: Database) -> None:
    """A keyed table with values out of line, one without a key, a partitioned root, a filtered one."""
    database.execute(
        """
        CREATE TABLE big (id int PRIMARY KEY, v int, n numeric(12,2), t text);
        ALTER TABLE big ALTER t SET STORAGE EXTERNAL;
        INSERT INTO big
        SELECT i, i, i / 7.0, CASE WHEN i % 50 = 0 THEN repeat(md5(i::text), 100) ELSE 'x' || i END
        FROM generate_series(1, 6000) i;
        CREATE TABLE log (at timestamptz, what text);
        ALTER TABLE log REPLICA IDENTITY FULL;
        INSERT INTO log SELECT now() + i * interval '1 s', 'line ' || i FROM generate_series(1, 3000) i;
        CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
        CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (3000);
        CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (3000) TO (1000000);
        INSERT INTO parts SELECT i, 'v' || i FROM generate_series(1, 5000) i;
        CREATE TABLE chosen (id int PRIMARY KEY, d date);
        INSERT INTO chosen SELECT i, CASE WHEN i % 5 = 0 THEN 'infinity' ELSE date '2020-01-01' + i END
        FROM generate_series(1, 4000) i;
        CREATE PUBLICATION shop FOR TABLE big, log, parts, chosen WHERE (id % 2 = 0)
        WITH (publish_via_partition_root)
        """
    )


def written(database: Database, seed: int) -> AbstractContextManager[None]:
    """Rows come, go, come again, move between partitions, and into and out of the filter.

    A tenth of them does: of a table of which more has changed no range would be kept.
    """
    drawn = random.Random(seed)

    def write() -> None:
        row, other = drawn.randrange(10, 6000, 10), drawn.randrange(10, 6000, 10)
        here, there = drawn.sample([row % 5000, 5000 + row % 5000], 2)
        even, odd = drawn.sample([row % 4000, 10_001 + row % 4000], 2)
        database.execute(
            f"""
                UPDATE big SET v = v + 1, t = t || '.' WHERE id = {row};
                DELETE FROM big WHERE id = {other};
                INSERT INTO big VALUES ({row}, 0, 'NaN', 'new') ON CONFLICT DO NOTHING;
                UPDATE parts SET id = {there}, v = v || '.' WHERE id = {here};
                UPDATE chosen SET id = {odd} WHERE id = {even};
                UPDATE chosen SET d = d - 1 WHERE id = {other};
                """
        )
        if drawn.random() < NOTED_SHARE:
            database.execute(f"DELETE FROM log WHERE what = 'line {row}'")

    return repeatedly(write, 0.02)


def write_once(database: Database, number: int) -> None:
    """Rows that nothing changes again: what a later attempt leaves as it was is not mended by the stream."""
    database.execute(
        f"""
        UPDATE big SET v = -v WHERE id % 97 = {number} AND id % 10 > 0;
        DELETE FROM big WHERE id % 991 = {number} AND id % 10 > 0;
        UPDATE parts SET v = 'once' WHERE id % 97 = {number} AND id % 10 > 0;
        UPDATE parts SET id = id + 100000 WHERE id < 5000 AND id % 499 = {number} AND id % 10 > 0;
        UPDATE chosen SET d = d + 1 WHERE id % 97 = {number} AND id % 10 > 0
        """
    )


class Attempts:
    """Runs `init` as a process of its own, and kills it.

    Attributes:
        kills: how many were killed so far.
        window: seconds from the snapshot to the end, as measured.
        ranges_kept: that those which ended took over from the killed ones.
    """

    def __init__(self, database: Database, remote: str, file: Path, seed: int) -> None:
        self._database, self._file, self._drawn = database, file, random.Random(seed)
        self._environment = {**os.environ, "SLOTLAKE_SPARK_REMOTE": remote}
        self.kills, self.window, self.ranges_kept = 0, FIRST_WINDOW_SECONDS, 0

    def killed(self) -> bool:
        """One more, killed at some moment; False if it ended before."""
        when, delay = self._drawn.random(), self._drawn.uniform(0, 1.1 * self.window)
        ranges = self._drawn.randrange(1, 12)
        with self._begun() as process:
            since = time.monotonic()
            if when > BEFORE_THE_SNAPSHOT:
                self._until_the_snapshot(process)
                since = time.monotonic()
            if when > AFTER_THE_SNAPSHOT:
                self._until_recorded(process, ranges)
                delay /= 10
            try:
                process.wait(delay)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                self.kills += 1
                return True
            self._ended(process, since)
            return False

    def finished(self) -> None:
        """One that is let be."""
        with self._begun() as process:
            self._until_the_snapshot(process)
            since = time.monotonic()
            self._ended(process, since)

    def _ended(self, process: subprocess.Popen[str], since: float) -> None:
        report, told = process.communicate(timeout=280)
        assert process.returncode == 0, told
        self.window = time.monotonic() - since
        self.ranges_kept += sum(table["ranges_kept"] for table in json.loads(report)["tables"])

    def _begun(self) -> subprocess.Popen[str]:
        program = f"import sys; sys.argv[1:] = ['init', {str(self._file)!r}, '--json']; {COMMAND}"
        return subprocess.Popen(
            [sys.executable, "-c", program], env=self._environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def _until_recorded(self, process: subprocess.Popen[str], ranges: int) -> None:
        """Until so many more ranges are on disk."""
        record = self._file.parent / ".slotlake" / "shop" / "copying" / "ranges.jsonl"

        def told() -> int:
            return record.read_bytes().count(b'"part":') if record.exists() else 0

        before = told()
        while process.poll() is None and told() < before + ranges:
            time.sleep(0.005)

    def _until_the_snapshot(self, process: subprocess.Popen[str]) -> None:
        while process.poll() is None and self._database.execute(COPYING) == [(0,)]:
            time.sleep(0.01)


def test_killed_at_random_moments(database: Database, connect: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("SLOTLAKE_TEST_SEED") or random.randrange(2**32))
    print(f"SLOTLAKE_TEST_SEED={seed}")
    fill(database)
    file = pipeline_file(tmp_path, database, [], source="copy_workers: 2")
    attempts = Attempts(database, connect, file, seed)
    with written(database, seed), Pipeline.open(file, remote=connect) as pipeline:
        while attempts.kills < KILLS:
            for _ in range(min(KILLS_PER_COPY, KILLS - attempts.kills)):
                if not attempts.killed():
                    break
                write_once(database, attempts.kills)
                pipeline.status()  # it can always be asked
            else:
                attempts.finished()
            pipeline.sync()
            assert pipeline.verify().equal, seed
            if attempts.kills < KILLS:
                pipeline.drop(lake=True)
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.sync()
        assert_equal(database, pipeline, ["big", "log", "parts"])
        with database.connect() as connection:
            assert source_rows(connection, CHOSEN)[1] == Counter(map(tuple, pipeline.rows("chosen")))
        assert pipeline.status().copy is None
    print(f"{attempts.kills} killed, {attempts.ranges_kept} ranges kept")
    assert attempts.ranges_kept or KILLS < KILLS_PER_COPY
    assert database.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    ) == [(1,)]
