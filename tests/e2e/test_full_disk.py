"""A full disk on either side, then freed: a clear error, nothing half-done, and the same command goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import ChangeLogError, LakeError, SlotlakeError, SourceUnavailableError
from slotlake.infra.local.postgres import temporary_postgres
from slotlake.infra.local.postgres_binaries import server_user
from slotlake.spark.read.point import ReadPoint
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.storage import needs_a_folder

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("mount") is None,
        reason="a small disk is a tmpfs, which only root can mount; tests/decoder/test_bad_input_source.py "
        "fills the change log's by the limit of a file's size",
    ),
]


class SmallDisk:
    """A file system of few megabytes."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def fill(self, left_bytes: int = 0) -> None:
        """Take all of its room but so much."""
        filler = self.place / "filler"
        with filler.open("wb", buffering=0) as file:
            free = shutil.disk_usage(self.place).free - left_bytes
            try:
                while free > 0:
                    free -= file.write(b"\0" * min(free, 1 << 16))
            except OSError:
                pass

    def free(self) -> None:
        (self.place / "filler").unlink()


@contextmanager
def small_disk(megabytes: int, place: Path | None = None) -> Iterator[SmallDisk]:
    where = Path(tempfile.mkdtemp(prefix="slotlake-small-")) if place is None else place
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(where)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine does not let a tmpfs be mounted")
    try:
        yield SmallDisk(where)
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)
        if place is None:
            where.rmdir()


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and path.name != "filler"}


@needs_a_folder
def test_the_lakes_disks_are_full_and_freed(database: Database, connect: str) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text);INSERT INTO t SELECT g, 'a' FROM generate_series(1, 9) g"
    )
    with ExitStack() as stack:
        state, warehouse, catalog = (stack.enter_context(small_disk(size)) for size in (24, 24, 4))
        file = pipeline_file(
            state.place, database, ["t"], uri=f"sqlite:///{catalog.place}/lake.db", source="memory_mb: 1"
        )
        file.write_text(file.read_text().replace(f"{state.place}/warehouse", f"{warehouse.place}/lake"))
        with Pipeline.open(file, remote=connect) as pipeline:
            state.fill()
            told = refused(pipeline.init, ChangeLogError, "the state folder")
            slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
            assert database.execute(slots) == []
            state.free()
            pipeline.init()

            # A transaction larger than what is left; with memory_mb: 1 most of it is spooled before it ends.
            _grow(database, 10, 40_000)
            state.fill(left_bytes=1 << 20)
            told = refused(pipeline.sync, ChangeLogError, "the change log")
            assert "MB of WAL behind" in told.way_out
            log = file.parent / ".slotlake/shop/changelog"
            assert list(log.iterdir()) == [], "nothing half-written"
            state.free()

            before = ReadPoint.latest(pipeline.lake).position
            warehouse.fill(left_bytes=256 << 10)
            kept = files(warehouse.place / "lake")
            refused(pipeline.sync, LakeError, "the warehouse")
            assert ReadPoint.latest(pipeline.lake).position == before
            left = sum(path.stat().st_size for path in files(warehouse.place / "lake") - kept)
            assert left < 100_000, "what could not be finished is removed, not left on the full disk"
            warehouse.free()

            catalog.fill()
            refused(pipeline.sync, LakeError, "the catalog")
            assert ReadPoint.latest(pipeline.lake).position == before
            assert [row for row in pipeline.rows("t", ["id"]) if int(row[0] or 0) > 9] == []
            catalog.free()

            pipeline.sync()
            assert_equal(database, pipeline, ["t"])
            pipeline.close()


def _grow(database: Database, first: int, rows: int) -> None:
    database.execute(
        "INSERT INTO t SELECT g, md5(g::text) || md5((g + 1)::text) || md5((g + 2)::text) "
        f"FROM generate_series({first}, {first + rows}) g"
    )


def refused(command: object, kind: type[SlotlakeError], place: str) -> SlotlakeError:
    """One clear error that names the place that is full and the way out."""
    assert callable(command)
    with pytest.raises(SlotlakeError) as told:
        command()
    assert isinstance(told.value, kind), str(told.value)
    assert f"{place} (" in told.value.way_out, str(told.value)
    assert "then run the same command again" in told.value.way_out
    return told.value


def test_the_servers_wal_disk_is_full_and_freed(connect: str, tmp_path: Path) -> None:
    """The slot holds WAL, the disk fills, the server ends (PANIC); with more room it recovers."""
    conf = {"shared_buffers": "16MB", "max_wal_size": "32MB", "min_wal_size": "32MB", "wal_keep_size": "0"}
    with temporary_postgres(version=18, conf=conf) as server, ExitStack() as stack:
        database = Database(server, "postgres")
        database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')")
        file = pipeline_file(tmp_path, database, ["t"])
        with Pipeline.open(file, remote=connect) as pipeline:
            pipeline.init()
            server.stop("fast")
            wal = server.data / "pg_wal"
            saved = tmp_path / "pg_wal"
            shutil.copytree(wal, saved)
            stack.enter_context(small_disk(64, wal))
            shutil.copytree(saved, wal, dirs_exist_ok=True)
            for path in (wal, *wal.rglob("*")):
                server_user().own(path)
            wal.chmod(0o700)
            server.start()
            with pytest.raises(psycopg.Error):
                for number in range(1, 100):
                    _grow(database, number * 10_000, 9_000)
            with pytest.raises(SourceUnavailableError) as told:
                pipeline.sync()
            assert (told.value.exit_code, told.value.retryable) == (3, True)
            server.stop("immediate")
            subprocess.run(["mount", "-o", "remount,size=512m", str(wal)], check=True)
            server.start()
            pipeline.sync()
            assert_equal(database, pipeline, ["t"])
        server.stop("immediate")
