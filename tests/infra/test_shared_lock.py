"""The lock against other machines: one holder, who says who it is; it ends with its connection."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from slotlake.decoder.errors import BusyError
from slotlake.infra.opened.server_lock import (
    LockLostError,
    LockPlace,
    LockPoolerError,
    LockUnreachableError,
    SharedLock,
)
from slotlake.spark.catalog.fence import fenced
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import LakeSettings
from tests.conftest import Database
from tests.infra.deployment import needs_long
from tests.pooler import pooler, until_it_listens

pytestmark = pytest.mark.server
_HOLD = """
import sys
import threading
import time
from slotlake.infra.opened.server_lock import LockPlace, SharedLock
with SharedLock(LockPlace("source.dsn", sys.argv[1]), "shop", "shop slot").taken("apply", 0.0):
    print("taken", flush=True)
    sys.stdin.read()
"""


def _lock(database: Database, key: str = "shop slot", dsn: str = "") -> SharedLock:
    return SharedLock(LockPlace("source.dsn", dsn or database.dsn), "shop", key)


def _sessions(database: Database) -> int:
    [(sessions,)] = database.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'slotlake lock'"
        " AND datname = current_database()"
    )
    return int(sessions)


@pytest.mark.parametrize("pooled", [False, True])
def test_one_holder_who_says_who_it_is(
    database: Database, monkeypatch: pytest.MonkeyPatch, pooled: bool
) -> None:
    """Also where the first is behind a pooler, and so has its lock in a transaction."""
    first, second, other = _lock(database), _lock(database), _lock(database, "other slot")
    assert first.holder() is None
    with monkeypatch.context() as patch:
        patch.setattr(SharedLock, "_is_pooled", lambda self: pooled)
        with first.taken("pull */ apply", 0.0):
            patch.undo()
            holder = second.holder()
            assert holder is not None
            assert re.fullmatch(
                rf"process {os.getpid()} on \S+, since [-\d]+ [:\d]+ UTC, step pull  apply", holder
            )
            with pytest.raises(BusyError, match="another run of pipeline 'shop' is at work") as busy:
                second.taken("sync", 0.0).__enter__()
            assert busy.value.where == holder
            with other.taken("sync", 0.0):
                other.require()
            first.require()
    with second.taken("sync", 0.0):
        second.require()
    assert _sessions(database) == 0


def test_a_dead_holder_has_no_lock(database: Database) -> None:
    command = [sys.executable, "-c", _HOLD, database.dsn]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "taken\n"
        said = _lock(database).holder() or ""
        assert said.startswith(f"process {holder.pid} on "), said
        with pytest.raises(BusyError):
            _lock(database).taken("sync", 0.0).__enter__()
        holder.send_signal(signal.SIGKILL)
    with _lock(database).taken("sync", 0.0):
        assert _sessions(database) == 1


@pytest.mark.parametrize("loss", ["pg_terminate_backend(pid, 10000)", "pg_advisory_unlock_all()"])
def test_a_lost_lock_is_seen(database: Database, loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = _lock(database)
    with lock.taken("apply", 0.0):
        lock.require()
        if "unlock" in loss:
            assert lock._connection is not None
            lock._connection.execute(f"SELECT {loss}")
        else:
            database.execute(f"SELECT {loss} FROM pg_stat_activity WHERE application_name = 'slotlake lock'"
                             " AND datname = current_database()")  # fmt: skip
        with pytest.raises(LockLostError, match="in the middle of apply") as lost:
            lock.require()
        assert lost.value.exit_code == BusyError.exit_code
        with _lock(database).taken("sync", 0.0):
            pass
    lock.require()  # there is none to be lost


def test_a_database_that_does_not_answer(database: Database) -> None:
    away = _lock(database, dsn="host=127.0.0.1 port=1 user=u password=hidden dbname=d")
    with pytest.raises(LockUnreachableError, match="cannot be taken") as error:
        away.taken("sync", 0.0).__enter__()
    assert error.value.retryable
    assert "source.dsn: host=127.0.0.1 port=1" in error.value.where
    assert "hidden" not in str(error.value)


def test_who_waits_is_next(database: Database) -> None:
    """A loop that takes the lock again at once does not get it before who waits."""
    _see_who_is_next(database, database.dsn)


def _see_who_is_next(database: Database, dsn: str) -> None:
    order = []

    def wait() -> None:
        with _lock(database, dsn=dsn).taken("verify", 30.0):
            order.append("verify")

    waiting = threading.Thread(target=wait)
    with _lock(database, dsn=dsn).taken("run", 0.0):
        waiting.start()
        time.sleep(0.5)
    with _lock(database, dsn=dsn).taken("run", 30.0):
        order.append("run")
    waiting.join()
    assert order == ["verify", "run"]


@pytest.mark.parametrize("mode", ["transaction", pytest.param("session", marks=needs_long)])
def test_behind_a_real_pooler(database: Database, tmp_path: Path, mode: str) -> None:
    """With three sessions of the server for all: a lock that a session alone had would go to strangers."""
    with pooler(database, tmp_path, mode, default_pool_size="3", server_idle_timeout="0") as dsn:
        until_it_listens(dsn)
        direct = _lock(database)
        with _lock(database, dsn=dsn).taken("apply", 0.0) as _:
            for through in (database.dsn, dsn):
                with pytest.raises(BusyError, match="another run of pipeline 'shop' is at work") as busy:
                    _lock(database, dsn=through).taken("sync", 0.0).__enter__()
                assert f"process {os.getpid()} on " in busy.value.where
        with direct.taken("sync", 0.0), pytest.raises(BusyError):
            _lock(database, dsn=dsn).taken("apply", 0.0).__enter__()
        _see_who_is_next(database, dsn)
        command = [sys.executable, "-c", _HOLD, dsn]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "taken\n"
            holder.send_signal(signal.SIGKILL)
        with _lock(database, dsn=dsn).taken("sync", 1.0):
            pass
        with pytest.raises(BusyError), _lock(database, dsn=dsn).taken("one", 0.0):
            _lock(database, dsn=dsn).taken("two", 0.0).__enter__()
        left = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        until = time.monotonic() + 5
        while database.execute(f"{left} AND database = (SELECT oid FROM pg_database "
                               "WHERE datname = current_database())") != [(0,)]:  # fmt: skip
            assert time.monotonic() < until, "a session of the pooler still has a lock"
            time.sleep(0.05)


def test_a_pooler_of_statements_is_refused(database: Database, tmp_path: Path) -> None:
    with pooler(database, tmp_path, "statement") as dsn:
        until_it_listens(dsn)
        with pytest.raises(LockPoolerError, match="connection pooler") as refused:
            _lock(database, dsn=dsn).taken("sync", 0.0).__enter__()
        assert not refused.value.retryable
        assert "pool_mode = transaction" in refused.value.way_out


@needs_long
def test_a_pooler_that_ends_idle_transactions_is_named(database: Database, tmp_path: Path) -> None:
    with pooler(database, tmp_path, idle_transaction_timeout="1") as dsn:
        until_it_listens(dsn)
        lock = _lock(database, dsn=dsn)
        with lock.taken("apply", 0.0):
            time.sleep(3)
            with pytest.raises(LockLostError, match="in the middle of apply") as lost:
                lock.require()
        assert "idle_transaction_timeout" in lost.value.way_out


def test_no_pointer_moves_without_the_lock(tmp_path: Path) -> None:
    lake = LakeSettings("lake", f"sqlite:///{tmp_path}/lake.db", tmp_path.as_uri(), "shop")
    other = replace(lake, namespace="desk")
    asked = MagicMock(side_effect=LockLostError("lost"))
    with open_catalog(lake) as catalog, open_catalog(other) as of_another:
        with fenced(lake, asked):
            of_another.move([])
            with pytest.raises(LockLostError):
                catalog.move([])
        catalog.move([])
    asked.assert_called_once_with()
