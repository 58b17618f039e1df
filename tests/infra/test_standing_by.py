"""A run that another machine leaves nothing to do: it says so once, waits, and goes on; limits end it too."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from slotlake.decoder.errors import BusyError
from slotlake.infra.opened.server_lock import LockLostError, LockUnreachableError
from slotlake.infra.progress import silent
from slotlake.infra.source import standing_puller
from slotlake.infra.source.bell import Bell
from slotlake.infra.sync import loop
from slotlake.infra.sync.loop import RunLimits, RunListener

ONE = "process 7 on one, since 2026-11-23 14:05:11 UTC, step pull --follow"


def _loop(tmp_path: Path, watch: MagicMock, limits: RunLimits, lines: list[str]) -> loop._Loop:
    pipeline = MagicMock()
    pipeline.name, pipeline.file.state_dir = "shop", tmp_path
    pipeline.position.side_effect = [10, 20, 30, 40, 50]
    made = loop._Loop(pipeline, limits, Bell(), RunListener(line=lines.append), silent)
    made._watch = watch
    return made


def test_it_stands_by_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_STAND_BY_SECONDS", 0.0)
    synced, lines = MagicMock(return_value=None), list[str]()
    away = LockUnreachableError("away", where="lake.uri", way_out="wait")
    watch = MagicMock(elsewhere=MagicMock(side_effect=[ONE, ONE, away, ONE, None]))
    running = _loop(tmp_path, watch, RunLimits(until=30), lines)
    monkeypatch.setattr(running, "_sync", synced)
    monkeypatch.setattr(running._bell, "pause", MagicMock())
    for _ in range(4):
        running._batch_and_wait()
    synced.assert_not_called()
    (said,) = [line for line in lines if "stands by" in line]
    assert said.startswith(f"another machine works on pipeline 'shop' ({ONE}): this run stands by, and goes")
    assert any("away; tried again" in line for line in lines)
    assert running.ended_by(running._position) == "lsn", "the other machine has brought the lake there"
    running._batch_and_wait()
    synced.assert_called_once_with()
    assert lines[-1] == f"that one has ended ({ONE}): this run goes on"
    assert (tmp_path / loop.ALIVE).exists()


def test_a_puller_that_has_lost_its_lock_gives_no_batch_and_ends() -> None:
    server = standing_puller._Server.__new__(standing_puller._Server)
    server._bell, server._stopped, server._stream = None, False, MagicMock()
    server._require_lock = MagicMock(side_effect=LockLostError("lost", where="w", way_out="o"))
    with pytest.raises(BusyError):
        server._do({"do": "batch", "position": 1, "until": None, "whole": False})
    assert server._stopped
    server._stream.batch.assert_not_called()


def test_a_puller_of_this_machine_is_no_reason_to_stand_by(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = MagicMock()
    pipeline.locks.shared.return_value.holder.return_value = ONE
    for shares, here, expected in ((True, None, ONE), (True, 7, None), (False, None, None)):
        pipeline.file.shares_state = shares
        monkeypatch.setattr(standing_puller, "process_id", lambda _, here=here: here)
        assert standing_puller.elsewhere(pipeline) == expected
