"""What `recover` says of a pipeline that was stopped by what it does not mend."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotlake.decoder.errors import (
    ProtocolError,
    SlotError,
    SlotlakeError,
    SourceError,
    SourceUnavailableError,
)
from slotlake.infra.recover import recovery
from slotlake.infra.selection import aside
from slotlake.infra.sync.findings import Diagnosis, Judgement


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(aside, "tables_aside", lambda _: {})
    monkeypatch.setattr(recovery, "tables_aside", lambda _: {})
    monkeypatch.setattr(Judgement, "judge", lambda *_, **__: Diagnosis(256, [], []))
    return SimpleNamespace(file=SimpleNamespace(state_dir=tmp_path), name="shop", lake=None, source=None)


def _stopped_by(pipeline: Any, error: SlotlakeError) -> str:
    def step() -> None:
        raise error

    with pytest.raises(type(error)):
        aside.SettingAside(pipeline).retry_without_troubled(step)
    return recovery.Recovery(pipeline).recover(carry_out=False, progress=lambda *_: None).diagnosis


def test_recover_says_that_the_next_sync_will_stop_again(pipeline: Any) -> None:
    damaged = _stopped_by(pipeline, ProtocolError("the message ends too early", message_type="I", lsn=4096))
    assert "nothing is lost" in damaged
    assert "the next sync will stop again at message 'I', byte offset 0, WAL 0/1000" in damaged
    refused = SourceError("the role lacks a privilege", where="host=h", way_out="GRANT it")
    assert "stop again at host=h: the role lacks a privilege: GRANT it" in _stopped_by(pipeline, refused)
    aside.SettingAside(pipeline).retry_without_troubled(lambda: None)
    fine = recovery.Recovery(pipeline).recover(carry_out=False, progress=lambda *_: None).diagnosis
    assert "again" not in fine


@pytest.mark.parametrize("kind", [SlotError, SourceUnavailableError])
def test_what_passes_or_is_judged_itself_is_not_said(pipeline: Any, kind: type[SlotlakeError]) -> None:
    assert "again" not in _stopped_by(pipeline, kind("x", where="y", way_out="z"))
