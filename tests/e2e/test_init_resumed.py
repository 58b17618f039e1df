"""An `init` that is killed goes on with what is left: copied ranges stay, the lake is the source, exactly."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slotlake import Pipeline
from slotlake.decoder import failpoints
from slotlake.decoder.copy.table import CopiedFile, CopyCrew, CopyJob
from slotlake.infra.copy import states as copy_states
from slotlake.infra.copy.record import CopyRecord
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.meanwhile import repeatedly
from tests.storage import IN_S3, files_folder

pytestmark = pytest.mark.timeout(900)
PART_BYTES = 100_000
TABLES = ["big", "log", "odd", "parts", "plain"]
# The command with small ranges, one at a time, so that it can be killed between any two.
COMMAND = (
    f"import slotlake.decoder.copy.parts as p; p.PART_BYTES = {PART_BYTES}; "
    "from slotlake.infra.cli.main import main; main()"
)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotlake.decoder.copy.parts.PART_BYTES", PART_BYTES)


def killed(remote: str, file: Path, failpoint: str) -> None:
    environment = {**os.environ, "SLOTLAKE_SPARK_REMOTE": remote, "SLOTLAKE_FAILPOINT": failpoint}
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv[1:] = ['init', {str(file)!r}]; {COMMAND}"],
        check=False, env=environment, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == -9, (failpoint, done.stderr)


class Killed(BaseException):
    """Stands for SIGKILL where a process of its own would take too long."""


def interrupted(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, failpoint: str) -> None:
    """An `init` in this process that ends at a failpoint."""

    def end(*of: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setenv("SLOTLAKE_FAILPOINT", failpoint)
        patch.setattr(failpoints, "_reached", {})
        patch.setattr("slotlake.decoder.failpoints.os.kill", end)
        with pytest.raises(Killed):
            pipeline.init()


def fill(database: Database) -> None:
    """A keyed table of many ranges with values out of line; one without a key; an odd key; partitions."""
    database.execute(
        """
        CREATE TABLE big (id int PRIMARY KEY, v int, t text);
        ALTER TABLE big ALTER t SET STORAGE EXTERNAL;
        INSERT INTO big SELECT i, i, CASE WHEN i % 50 = 0 THEN repeat(md5(i::text), 100) ELSE 'x' || i END
        FROM generate_series(1, 6000) i;
        CREATE TABLE log (at int, what text);
        INSERT INTO log SELECT i, 'line ' || i FROM generate_series(1, 5000) i;
        CREATE TABLE odd ("the Day" date, n numeric, t text, PRIMARY KEY ("the Day", n));
        INSERT INTO odd SELECT date '2000-01-01' + i, i / 10.0, 't' || i FROM generate_series(1, 4000) i;
        INSERT INTO odd VALUES ('infinity', 'NaN', 'end');
        CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
        CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (3000);
        CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (3000) TO (9000);
        INSERT INTO parts SELECT i, 'v' || i FROM generate_series(1, 5000) i;
        CREATE TABLE plain (id int PRIMARY KEY); INSERT INTO plain VALUES (1), (2);
        CREATE PUBLICATION shop FOR TABLE big, log, odd, parts, plain WITH (publish_via_partition_root)
        """
    )


def write(database: Database, number: int) -> None:
    """Rows that move between ranges, change their key, go, come, and come again; partitions too."""
    database.execute(
        f"""
        UPDATE big SET v = v + 1 WHERE id % 97 = {number};
        UPDATE big SET id = id + 100000 WHERE id % 1009 = {number};
        UPDATE big SET t = 'short' WHERE id % 50 = 0 AND id % 150 = {50 * (number % 3)};
        DELETE FROM big WHERE id % 211 = {number};
        INSERT INTO big SELECT {10000 * number} + i, -{number}, 'new' FROM generate_series(0, 300) i;
        DELETE FROM big WHERE id = {10000 * number}; INSERT INTO big VALUES ({10000 * number}, 0, 'again');
        UPDATE odd SET "the Day" = "the Day" + 10000 WHERE n > 399 AND n < 399 + {number};
        UPDATE odd SET t = 'changed', n = 1.00 WHERE n = 1.0;
        DELETE FROM odd WHERE "the Day" = 'infinity';
        INSERT INTO odd VALUES ('infinity', 'NaN', 'end {number}');
        UPDATE parts SET id = id + 5000 WHERE id BETWEEN {100 * number} AND {100 * number + 20};
        UPDATE parts SET v = 'changed' WHERE id % 401 = {number}
        """
    )
    database.execute("VACUUM big")
    database.execute(f"UPDATE big SET v = -v WHERE id % 89 = {number}")  # back into the room that was made


def record(pipeline: Pipeline) -> dict[int, set[str]]:
    """The ranges on disk, by table."""
    found = CopyRecord(pipeline.file.state_dir / "copying").tables
    return {oid: table.names for oid, table in found.items()}


def received_bytes(pipeline: Pipeline, table: str) -> int:
    """Of a table's ranges on disk, by all attempts."""
    found = CopyRecord(pipeline.file.state_dir / "copying").tables.values()
    [recorded] = [each for each in found if f'"{table}"' in each.parts[0].relation]
    return sum(file["received"] for files in recorded.files.values() for file in files)


def inodes(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_ino for path in folder.rglob("data/*.parquet")}


def test_killed_again_and_again(
    database: Database, connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database)
    file = pipeline_file(tmp_path, database, [])
    with Pipeline.open(file, remote=connect) as pipeline:
        killed(connect, file, "init.part_done:4")
        write(database, 1)
        first = {oid: set(names) for oid, names in record(pipeline).items()}
        assert sum(map(len, first.values())) >= 4
        kept = inodes(files_folder(tmp_path))
        interrupted(pipeline, monkeypatch, "init.part_done:3")
        write(database, 2)
        second = record(pipeline)
        assert all(names <= second[oid] for oid, names in first.items())
        assert sum(map(len, second.values())) > sum(map(len, first.values()))
        interrupted(pipeline, monkeypatch, "init.registered:2")
        told = copy_states.read(pipeline.file.state_dir)
        assert told is not None
        received = {table["table"]: table["bytes"] for table in told["tables"]}
        assert received["public.big"] >= received_bytes(pipeline, "big") > PART_BYTES
        write(database, 3)
        status = pipeline.status()
        assert status.copy is not None
        assert status.copy["process"] is None
        assert any("unfinished" in warning for warning in status.warnings)
        report = pipeline.init()
        written = {copy.table: copy for copy in report.tables}
        assert written["public.big"].ranges_kept >= 4
        after = inodes(files_folder(tmp_path))
        # The process was killed at the fourth range; the one it was at beside that is written anew.
        assert sum(after.get(path) == inode for path, inode in kept.items() if "/big/" in path) >= 4
        assert_equal(database, pipeline, TABLES)
        write(database, 4)
        pipeline.sync()
        assert_equal(database, pipeline, TABLES)
        assert pipeline.verify().equal
        assert record(pipeline) == {}
        assert pipeline.status().copy is None
    slots = database.execute("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")
    assert slots == [(1,)]
    assert not list(files_folder(tmp_path).rglob("data-again/stale*"))


def test_written_all_the_while(
    database: Database, connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is never still: rows move while ranges are read, and between the attempts."""
    fill(database)
    file = pipeline_file(tmp_path, database, [])
    numbers = itertools.count(1)

    def write() -> None:
        number = next(numbers)
        database.execute(f"UPDATE big SET v = v + 1, t = t || '.' WHERE id % 31 = {number % 31}")
        database.execute(f"UPDATE parts SET id = 5000 + {number} WHERE id = {number}")

    with repeatedly(write, 0.05), Pipeline.open(file, remote=connect) as pipeline:
        interrupted(pipeline, monkeypatch, "init.mid_copy:7")
        pipeline.init()
        assert pipeline.verify().equal


def test_what_cannot_be_brought_forward_is_copied_again(
    database: Database, connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key, rewritten, altered, damaged or gone on disk, another filter: and the rest stays."""
    fill(database)
    database.execute("CREATE TABLE still AS SELECT i FROM generate_series(1, 9000) i")
    database.execute("ALTER PUBLICATION shop ADD TABLE still; DROP TABLE plain")
    file = pipeline_file(tmp_path, database, [])
    with Pipeline.open(file, remote=connect) as pipeline:
        interrupted(pipeline, monkeypatch, "init.before_publish")
    database.execute("INSERT INTO log VALUES (0, 'late'); ALTER TABLE odd ADD x int DEFAULT 7")
    database.execute("VACUUM FULL parts_1")
    damaged = next(files_folder(tmp_path).rglob("big/data/copy-00001-*.parquet"))
    if IN_S3:
        damaged.unlink()  # an object that is there is the one that was written
    else:
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    with Pipeline.open(file, remote=connect) as pipeline:
        copies = {copy.table: copy for copy in pipeline.init().tables}
        kept = {name: (copy.ranges_kept, copy.ranges) for name, copy in copies.items()}
        assert [kept[f"public.{name}"][0] for name in ("log", "odd", "parts")] == [0, 0, 0]
        assert kept["public.big"][0] == kept["public.big"][1] - 1 > 0
        assert kept["public.still"][0] == kept["public.still"][1] > 1
        assert_equal(database, pipeline, ["big", "log", "odd", "parts", "still"])


def test_drop_ends_it(
    database: Database, connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database)
    file = pipeline_file(tmp_path, database, [])
    with Pipeline.open(file, remote=connect) as pipeline:
        interrupted(pipeline, monkeypatch, "init.part_done:3")
        copying = pipeline.status().copy
        assert copying is not None
        assert copying["slot"] == pipeline.source.slot
        pipeline.drop()
        assert pipeline.status().copy is None
        assert record(pipeline) == {}
    assert not list(files_folder(tmp_path).rglob("*.parquet"))
    slots = database.execute("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")
    assert slots == [(0,)]


@pytest.mark.parametrize("statement", ["VACUUM FULL sales_1", "TRUNCATE sales_2"])
def test_a_partition_that_is_rewritten_between_its_ranges(
    database: Database, connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """Its rows moved: ranges of the new file are not those of the old one; the root has no file."""
    database.execute(
        """
        CREATE TABLE sales (id int PRIMARY KEY, t text) PARTITION BY RANGE (id);
        CREATE TABLE sales_1 PARTITION OF sales FOR VALUES FROM (0) TO (10000);
        CREATE TABLE sales_2 PARTITION OF sales FOR VALUES FROM (10000) TO (20000);
        INSERT INTO sales SELECT i, repeat('x', 100) FROM generate_series(1, 9000) i;
        INSERT INTO sales SELECT i, repeat('x', 100) FROM generate_series(10001, 13000) i;
        DELETE FROM sales WHERE id % 3 > 0
        """
    )
    file = pipeline_file(tmp_path, database, ["sales"], source="copy_workers: 1\n")
    database.execute("CREATE PUBLICATION shop FOR TABLE sales WITH (publish_via_partition_root = true)")
    left, copied = [statement], CopyCrew._copy

    def rewriting(crew: CopyCrew, job: CopyJob) -> list[CopiedFile]:
        files = copied(crew, job)
        if left:
            database.execute(left.pop())
        return files

    monkeypatch.setattr(CopyCrew, "_copy", rewriting)
    with Pipeline.open(file, remote=connect) as pipeline:
        assert "a partition was rewritten" in pipeline.init().set_aside["public.sales"]
        assert not left
        assert pipeline.sync().added_tables == ["public.sales"]
        assert_equal(database, pipeline, ["sales"])
