"""PostgreSQL crashes at each step: a retryable error, nothing half-done, and the same command ends it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import SlotlakeError, SourceUnavailableError
from slotlake.decoder.failpoints import happening
from slotlake.infra.local.postgres import EmbeddedPostgres, Version, temporary_postgres
from slotlake.spark.read.point import ReadPoint
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = pytest.mark.timeout(600)

TABLES = ["accounts", "history"]
CONF = {"shared_buffers": "16MB", "max_prepared_transactions": "10", "logical_decoding_work_mem": "64kB"}
# Where the server ends, and whether the lake has moved all the same: behind the pull it needs no server.
SYNC = {"pull.mid": False, "pull.renamed": False, "publish.before_swap": True}
LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
if LONG:
    SYNC |= {"pull.prepared": False, "apply.between_tables": True, "publish.after_swap": True}


def write(database: Database, number: int) -> None:
    """Changes of both tables, and a transaction that is prepared and pending."""
    database.execute(
        f"INSERT INTO accounts SELECT g, repeat('n', 50) FROM generate_series({number}, {number + 400}) g;"
        f"UPDATE accounts SET v = 'at {number}' WHERE id % 9 = 0; DELETE FROM accounts WHERE id = {number};"
        f"INSERT INTO history VALUES ({number}, 1), ({number}, 1)"
    )
    database.execute(
        f"BEGIN; INSERT INTO history VALUES ({number}, 2); PREPARE TRANSACTION 'pending at {number}'"
    )


def crashed(server: EmbeddedPostgres, failpoint: str, command: Callable[[], Any]) -> SlotlakeError:
    """Run a command during which the server crashes, and start that again."""
    with (
        happening(failpoint, lambda: server.stop("immediate")),
        pytest.raises(SourceUnavailableError) as told,
    ):
        command()
    assert server.pid() is None, failpoint
    assert (told.value.exit_code, told.value.retryable) == (3, True), failpoint
    assert told.value.way_out, failpoint
    server.start()
    return told.value


@pytest.mark.parametrize("version", (16, 18) if LONG else (18,))
def test_the_server_crashes_at_each_step(connect: str, tmp_path: Path, version: Version) -> None:
    with temporary_postgres(version=version, conf=CONF) as server:
        database = Database(server, "postgres")
        database.execute(
            "CREATE TABLE accounts (id int PRIMARY KEY, v text);"
            "CREATE TABLE history (account int, delta int); ALTER TABLE history REPLICA IDENTITY FULL;"
            "INSERT INTO accounts SELECT g, 'v' FROM generate_series(1, 500) g"
        )
        file = pipeline_file(tmp_path, database, TABLES, source="two_phase: true")
        with Pipeline.open(file, remote=connect) as pipeline:
            _crashed_in_init(server, database, pipeline)
            pipeline.init()
            assert_equal(database, pipeline, TABLES)
            for number, (failpoint, moved) in enumerate(SYNC.items(), start=1):
                write(database, number * 1000)
                before = ReadPoint.latest(pipeline.lake).position
                crashed(server, failpoint, pipeline.sync)
                assert (ReadPoint.latest(pipeline.lake).position != before) == moved, failpoint
                outcome = "COMMIT" if number % 2 else "ROLLBACK"
                database.execute(f"{outcome} PREPARED 'pending at {number * 1000}'")
                pipeline.sync()
                assert_equal(database, pipeline, TABLES)
            # A slot waits for what is prepared (tests/decoder/servers/test_prepared_pending.py).
            write(database, 8000)
            database.execute("COMMIT PREPARED 'pending at 8000'")
            crashed(server, "publish.after_swap", pipeline.verify)
            assert pipeline.verify().equal
            write(database, 9000)
            database.execute("COMMIT PREPARED 'pending at 9000'")
            crashed(server, "init.mid_copy", lambda: pipeline.backfill("accounts"))
            pipeline.backfill("accounts")
            assert pipeline.verify().equal
            assert_equal(database, pipeline, TABLES)
        leftovers = [
            path for path in (tmp_path / ".slotlake/shop/changelog").iterdir() if path.name[0] == "."
        ]
        assert leftovers == []
        slots = database.execute("SELECT count(*) FROM pg_replication_slots")
        assert slots == [(1,)]


def _crashed_in_init(server: EmbeddedPostgres, database: Database, pipeline: Pipeline) -> None:
    """Nothing is published of the copy, and the next `init` begins it again with a new slot."""
    crashed(server, "init.mid_copy", pipeline.init)
    with pytest.raises(SlotlakeError, match="has no tables in this lake yet"):
        pipeline.position()
    database.execute("INSERT INTO history VALUES (0, 1)")
