"""`slotlake status` on a real server: what holds the slot back is named, what is ahead is foretold."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.infra.cli.main import main
from slotlake.infra.status.watch import watched
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file
from tests.storage import ON_REST

pytestmark = pytest.mark.timeout(600)


def test_status_and_what_it_warns_of(
    database: Database, session: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    file = pipeline_file(tmp_path, database, ["t"], extra="monitor: {warn_transaction_seconds: 0.5}\n")
    assert _checked(file, capsys)[0] == 7  # not initialised
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        pipeline.sync()
        _a_verification_tells_what_the_lake_has(database, pipeline)
    code, quiet = _checked(file, capsys)
    assert (code, quiet["alarms"], quiet["held_back_by"]) == (0, [], [])
    assert (quiet["seconds_to_invalidation"], quiet["max_slot_wal_keep_bytes"]) == (None, None)
    assert quiet["lag_seconds"] < 10
    _holders_are_named(database, file, capsys)
    _the_end_is_foretold(database, file, capsys)
    _a_forgotten_slot_is_named(database, file, capsys)
    _a_slot_that_is_gone(database, file, capsys)


def _a_verification_tells_what_the_lake_has(database: Database, pipeline: Any) -> None:
    """An idle source: no commit, but WAL; the last sync was an hour ago, a verification just now."""
    noted = pipeline.file.state_dir / "wal-seen.json"
    noted.write_text(json.dumps([[at - 3600, position] for at, position in json.loads(noted.read_text())]))
    database.execute("SELECT pg_log_standby_snapshot()")
    pipeline.verify()
    database.execute("SELECT pg_log_standby_snapshot()")
    lag = watched(pipeline, None, pipeline.position(), None).lag_seconds
    assert lag is not None
    assert lag < 600


def _checked(file: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["status", str(file), "--check", "--json", *more])
    return code, json.loads(capsys.readouterr().out)


def _holders_are_named(database: Database, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with database.connect(application_name="nightly load") as idle, database.connect() as reader:
        idle.execute("BEGIN; INSERT INTO t VALUES (1, 'open')")
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM t")  # holds no slot back
        database.execute("BEGIN; INSERT INTO t VALUES (2, 'prepared'); PREPARE TRANSACTION 'it''s forgotten'")
        time.sleep(0.6)
        code, status = _checked(file, capsys)
        assert code == 12
        assert main(["status", str(file)]) == 0  # without --check as ever
        shown = capsys.readouterr().out
        pid = idle.info.backend_pid
    database.execute("ROLLBACK PREPARED 'it''s forgotten'")
    named = {(each["kind"], each["pid"], each["gid"], each["application"]) for each in status["held_back_by"]}
    assert named == {
        ("idle in transaction", pid, None, "nightly load"),
        ("prepared", None, "it's forgotten", None),
    }
    alarms = [alarm["way_out"] for alarm in status["alarms"]]
    assert [a for a in alarms if f"pg_terminate_backend({pid})" in a]
    assert [a for a in alarms if "ROLLBACK PREPARED 'it''s forgotten'" in a]
    assert f"held back by pid {pid}" in shown


def _the_end_is_foretold(database: Database, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _settings(database, max_slot_wal_keep_size="2GB"):
        database.execute("INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(10, 20000) g")
        status = _checked(file, capsys)[1]
        assert status["invalidation_by"] == "max_slot_wal_keep_size"
        left = status["safe_wal_size"] / status["wal_bytes_per_second"]
        assert status["seconds_to_invalidation"] == pytest.approx(left, rel=0.01)
        assert status["max_slot_wal_keep_bytes"] == 2 << 30
    with _settings(database, idle_replication_slot_timeout="1d"):
        status = _checked(file, capsys)[1]
        assert status["invalidation_by"] == "idle_replication_slot_timeout"
        assert 86000 < status["seconds_to_invalidation"] <= 86400
        assert status["alarms"] == []
    text = file.read_text()
    file.write_text(text.replace("monitor: {", "monitor: {warn_invalidation_minutes: 1000000, "))
    with _settings(database, max_slot_wal_keep_size="2GB"):
        code, status = _checked(file, capsys)
    assert (code, [alarm["kind"] for alarm in status["alarms"]]) == (12, ["invalidation"])
    file.write_text(text.replace("monitor: {", "monitor: {warn_lag_seconds: 0.1, warn_retained_bytes: 1, "))
    kinds = {alarm["kind"] for alarm in _checked(file, capsys)[1]["alarms"]}
    assert {"lag", "retained"} <= kinds
    file.write_text(text)


def _a_forgotten_slot_is_named(database: Database, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database.execute(
        "SELECT pg_create_logical_replication_slot('forgotten_' || pg_backend_pid(), 'pgoutput')"
    )
    database.execute("INSERT INTO t SELECT -g, 'x' FROM generate_series(1, 200) g")
    text = file.read_text()
    file.write_text(text.replace("monitor: {", "monitor: {warn_retained_bytes: 1000, "))
    status = _checked(file, capsys)[1]
    file.write_text(text)
    alarms = [alarm for alarm in status["alarms"] if alarm["kind"] == "other slot"]
    (mine,) = [alarm for alarm in alarms if f"database {database.name}" in alarm["what"]]
    assert "pg_drop_replication_slot('forgotten_" in mine["way_out"]


def _a_slot_that_is_gone(database: Database, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database.execute("SELECT pg_drop_replication_slot(%s)", [f"slotlake_{database.name}_shop"])
    code, status = _checked(file, capsys)
    assert (code, status["state"]) == (4, "slot missing")
    (alarm,) = status["alarms"]
    assert (alarm["kind"], alarm["way_out"]) == ("slot missing", "slotlake recover")
    assert "does not exist" in alarm["what"]
    text = file.read_text()
    file.write_text(text.replace(f"port={database.server.port}", "port=1"))
    code, status = _checked(file, capsys)
    assert (code, status["state"]) == (3, "source unreachable")
    unreachable = "http://127.0.0.1:1" if ON_REST else "postgresql+psycopg://nobody@127.0.0.1:1/x"
    file.write_text(re.sub(r"(?m)^  uri: .*$", f'  uri: "{unreachable}"', text))
    code, status = _checked(file, capsys)
    assert (code, status["state"]) == (7, "lake unreachable")
    assert status["source_lsn"]  # one side is told without the other
    file.write_text(text)


@contextmanager
def _settings(database: Database, **settings: str) -> Iterator[None]:
    """Settings of the whole server, for a moment."""
    try:
        for name, value in settings.items():
            database.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        _reload(database)
        yield
    finally:
        for name in settings:
            database.execute(f"ALTER SYSTEM RESET {name}")
        _reload(database)


def _reload(database: Database) -> None:
    database.execute("SELECT pg_reload_conf()")
    time.sleep(0.2)
