"""Who is notified of what, when: a real webhook, real notes; the looks are written by hand."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.errors import BusyError, PipelineFileError, SlotError, SourceUnavailableError
from slotlake.infra.config.pipeline_file import PipelineFile, load_pipeline
from slotlake.infra.config.secrets import secrets_of
from slotlake.infra.notify import news, notifier, sending
from slotlake.infra.notify.airflow_address import airflow_address
from slotlake.infra.notify.news import Looked, Recovered, Stepped
from slotlake.infra.notify.notified import Notified
from slotlake.infra.notify.notifier import Notifier
from slotlake.infra.reports import Alarm
from tests.webhook import SECRET, Webhook, webhook

pytestmark = pytest.mark.seconds
_FILE = """name: shop
source: {dsn: "postgresql://nobody", publications: [shop], slot: shop}
lake: {uri: "sqlite:///lake.db", warehouse: lake, namespace: shop}
"""
MISSING = Alarm("slot missing", "the replication slot 'shop' does not exist", "slotlake recover")
LAG = Alarm("lag", "the lake has nothing newer than 2 h ago", "sync")


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with webhook() as made:
        yield made


def _pipeline(folder: Path, notify: str) -> PipelineFile:
    path = folder / "shop.yaml"
    path.write_text(f"{_FILE}notify: {notify}\n")
    return load_pipeline(path)


def _aside(table: str) -> Alarm:
    return Alarm("set aside", f"table {table} is set aside: its bytes", f"slotlake resume {table}", table)


def _look(*alarms: Alarm, state: str = "ready", different: tuple[str, ...] = ()) -> Looked:
    listed = [alarm.as_dict() for alarm in alarms]
    return Looked({"state": state, "alarms": listed, "verification": {"different": list(different)}})


def _tell(file: PipelineFile, *facts: news.Fact) -> Notifier:
    """Tell in a process of its own, as far as what it remembers is concerned."""
    telling = Notifier(file)
    telling.tell(*facts)
    telling.close()
    return telling


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock that notes are written by."""
    passed, clock = [0.0], time.time
    monkeypatch.setattr(time, "time", lambda: clock() + passed[0])

    def move(seconds: float) -> None:
        passed[0] += seconds

    return move


def test_new_lasting_over(tmp_path: Path, hook: Webhook, later: Any) -> None:
    file = _pipeline(tmp_path, f"{{to: '{hook.url}', repeat: 1h, page: 'https://lake.example/slotlake'}}")
    _tell(file, _look())
    assert hook.take() == []
    _tell(file, _look(LAG, _aside("public.a"), _aside("public.b")))
    notified = hook.one()
    assert notified["title"] == "slotlake shop: the lake has nothing newer than 2 h ago, and 2 more"
    assert notified["type"] == "warning"
    assert notified["message"].splitlines() == [
        "the lake has nothing newer than 2 h ago",
        "  what to do: sync",
        "table public.a is set aside: its bytes",
        "  what to do: slotlake resume public.a",
        "table public.b is set aside: its bytes",
        "  what to do: slotlake resume public.b",
        "page: https://lake.example/slotlake",
    ]
    later(3000)
    _tell(file, _look(LAG, _aside("public.a"), _aside("public.b")))
    assert hook.take() == []
    _tell(file, _look(LAG, _aside("public.b"), MISSING, state="slot missing"))
    notified = hook.one()
    assert notified["type"] == "failure"
    assert notified["message"].splitlines() == [
        "the replication slot 'shop' does not exist",
        "  what to do: slotlake recover",
        "over: table public.a is not set aside any more",
        "2 more that you have heard of last",
        "page: https://lake.example/slotlake",
    ]
    later(700)
    _tell(file, _look(LAG, _aside("public.b"), MISSING, state="slot missing"))
    notified = hook.one()
    assert re.search(
        r"^the lake has nothing newer than 2 h ago \(since 2\d+-.* UTC\)$", notified["message"], re.MULTILINE
    )
    assert "1 more that you have heard of lasts" in notified["message"]
    _tell(file, _look())
    notified = hook.one()
    assert notified["type"] == "success"
    assert "nothing else is wrong" in notified["message"]
    assert len([line for line in notified["message"].splitlines() if line.startswith("over: ")]) == 3


def test_a_side_that_is_away_ends_no_alarm(tmp_path: Path, hook: Webhook) -> None:
    file = _pipeline(tmp_path, f"{{to: '{hook.url}'}}")
    _tell(file, _look(LAG))
    _tell(file, _look(state="source unreachable"))
    assert "over" not in hook.one()["message"]
    _tell(file, _look())
    assert "over: the lake has nothing" in hook.one()["message"]


def test_verification_and_recovery(tmp_path: Path, hook: Webhook) -> None:
    file = _pipeline(tmp_path, f"{{to: '{hook.url}'}}")
    _tell(file, _look(MISSING, state="slot missing", different=("public.a",)))
    assert "table public.a differs from the source" in hook.one()["message"]
    _tell(file, Recovered(["made a new slot"]), _look(different=("public.a",)))
    notified = hook.one()["message"].splitlines()
    assert notified[:2] == ["recovered: made a new slot", f"over: {MISSING.what}"]
    _tell(file, _look())
    assert "over: table public.a is equal to the source again" in hook.one()["message"]


def test_a_step_that_fails(tmp_path: Path, hook: Webhook, later: Any) -> None:
    file = _pipeline(tmp_path, f"{{to: '{hook.url}'}}")
    away, gone = (
        SourceUnavailableError("it does not answer"),
        SlotError("the slot is gone", way_out="recover"),
    )
    for _ in range(4):
        _tell(file, Stepped("sync", away), Stepped("verify", BusyError("another run")))
    assert hook.take() == []  # within a minute
    later(61)
    _tell(file, Stepped("sync", away))
    notified = hook.one()
    assert re.match(r"sync fails \(5 times since .* UTC\): it does not answer\n", notified["message"] + "\n")
    _tell(file, Stepped("sync", away), _look(state="source unreachable"))
    assert hook.take() == []
    _tell(file, Stepped("sync"), _look())
    assert "over: sync does not fail any more" in hook.one()["message"]
    _tell(file, Stepped("pull", gone))
    assert hook.one()["message"].startswith("pull fails: the slot is gone\n  what to do: recover")
    _tell(file, Stepped("confirm"))
    assert "over: pull does not fail any more" in hook.one()["message"]
    for _ in range(2):
        _tell(file, Stepped("sync", away))
        _tell(file, Stepped("sync"))
        later(100)
    assert hook.take() == []
    _tell(file, Stepped("sync", gone), _look(state="not initialised"))
    assert hook.take() == []


def test_who_wants_what(tmp_path: Path) -> None:
    with webhook() as all_of_it, webhook() as broken, webhook() as tables:
        entries = f"[{all_of_it.url!r}, {{url: {broken.url!r}, level: broken}}, "
        entries += f"{{command: [echo, {tables.url!r}], kinds: [set_aside]}}]"
        file = _pipeline(tmp_path, f"{{to: {entries}}}")
        _tell(file, _look(LAG))
        assert (len(all_of_it.take()), broken.take(), tables.take()) == (1, [], [])
        _tell(file, _look(LAG, _aside("public.a"), MISSING, state="slot missing"))
        all_of_it.take()
        assert broken.one()["message"].splitlines() == [MISSING.what, "  what to do: slotlake recover"]
        assert tables.one()["title"] == "slotlake shop: table public.a is set aside: its bytes"
        _tell(file, Recovered(["all"]), _look(LAG))
        assert [line for line in tables.one()["message"].splitlines() if "recovered" in line] == []
        assert broken.one()["message"].splitlines()[0] == "recovered: all"


def test_many_tables_are_one_message(tmp_path: Path, hook: Webhook) -> None:
    file = _pipeline(tmp_path, f"{{to: '{hook.url}'}}")
    _tell(file, _look(*(_aside(f"public.t{number}") for number in range(5000))))
    notified = hook.one()
    assert "and 4,990 more: slotlake status --all lists them" in notified["message"]
    assert len(notified["message"]) < 3000


def test_one_that_does_not_answer(
    tmp_path: Path, hook: Webhook, later: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with webhook() as dead:
        file = _pipeline(tmp_path, f"{{to: [{dead.url!r}, {hook.url!r}]}}")
        dead.code = 503
        for _ in range(3):
            _tell(file, _look(LAG))
        assert len(hook.take()) == 1
        assert dead.tries == 1
        (line,) = [record.getMessage() for record in caplog.records]
        assert line == (
            "notify.to[0] was not notified; it is tried again at a later look: it answers with code 503"
        )
        later(61)
        _tell(file, _look(LAG, MISSING, state="slot missing"), Recovered(["all"]))
        assert len(hook.take()) == 1
        assert (dead.tries, len(caplog.records)) == (2, 1)
        later(61)
        dead.code = 200
        _tell(file, _look(LAG))
        assert dead.one()["message"].splitlines() == [LAG.what, "  what to do: sync", "recovered: all"]
        _tell(file, _look(LAG))
        assert dead.take() == []


def test_one_that_is_slow(tmp_path: Path, hook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "SECONDS_MAX", 1.0)
    monkeypatch.setattr(notifier, "SECONDS_MAX", 1.0)
    with webhook() as slow:
        slow.delay_seconds = 30.0
        file = _pipeline(tmp_path, f"{{to: [{slow.url!r}, {hook.url!r}]}}")
        sending.address_errors(file)  # the library's import is not what is timed
        began = time.monotonic()
        telling = Notifier(file)
        telling.tell(_look(LAG))
        assert time.monotonic() - began < 0.2  # who works does not wait
        telling.close()
        assert time.monotonic() - began < 2.5
        assert len(hook.take()) == 1
        assert "has not answered within" in telling.outcomes["notify.to[0]"]


def test_nobody_listens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with webhook() as closed:
        url = closed.url
    file = _pipeline(tmp_path, f"{{to: [{url!r}, env:NOT_SET_ANYWHERE, {{command: [no-such-program]}}]}}")
    telling = _tell(file, _look(LAG))
    assert telling.outcomes["notify.to[0]"] == "it does not answer, or refuses the message"
    assert "NOT_SET_ANYWHERE is not set" in telling.outcomes["notify.to[1]"]
    assert "no-such-program" in telling.outcomes["notify.to[2]"]
    assert SECRET not in caplog.text
    assert len(caplog.records) == 3


def test_a_note_that_cannot_be_written(tmp_path: Path, hook: Webhook, caplog: Any) -> None:
    file = _pipeline(tmp_path, f"{{to: '{hook.url}'}}")
    file.state_dir.mkdir(parents=True)
    (file.state_dir / "notified").write_text("a file where the folder should be")
    _tell(file, _look(LAG))
    assert hook.take() == []
    (record,) = caplog.records
    assert "nothing is notified" in record.getMessage()


def test_machines_at_once_tell_once(tmp_path: Path, hook: Webhook) -> None:
    file = _pipeline(tmp_path, f"{{to: '{hook.url}'}}")
    hook.delay_seconds = 0.5
    machines = [Notifier(file) for _ in range(6)]
    for facts in ([_look(LAG)], [_look(LAG, _aside("public.a"))], [_look()]):
        threads = [threading.Thread(target=machine.tell, args=facts) for machine in machines]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for machine in machines:
            machine.close()
    assert [notified["type"] for notified in hook.take()] == ["warning", "warning", "success"]


def test_one_that_was_killed_is_followed_by_another(tmp_path: Path, hook: Webhook, later: Any) -> None:
    file = _pipeline(tmp_path, f"{{to: '{hook.url}'}}")
    note, messages = Notifier(file)._claimed({}, [_look(LAG)], time.time())
    assert len(messages) == 1
    assert Notified(file.state_dir).replace(0, note)  # and then it is killed
    _tell(file, _look(LAG))
    assert hook.take() == []
    later(61)
    _tell(file, _look(LAG))
    assert hook.one()["message"].startswith(LAG.what)


def test_the_note(tmp_path: Path) -> None:
    one, other = Notified(tmp_path), Notified(tmp_path)
    assert one.read() == (0, {})
    assert one.replace(0, {"a": 1})
    assert not other.replace(0, {"a": 2})
    for number in range(1, 50):
        assert other.replace(number, {"a": number})
    assert one.read() == (50, {"a": 49})
    assert len(list((tmp_path / "notified").iterdir())) <= 21
    one.forget()
    assert not (tmp_path / "notified").exists()


def test_in_airflow(tmp_path: Path, hook: Webhook) -> None:
    file = _pipeline(tmp_path, f"{{to: '{hook.url}'}}")
    known = airflow_address.set("https://airflow.example/team")
    try:
        _tell(
            file, Looked(_look(MISSING, state="slot missing").status, [Alarm("paused", "it is paused", "on")])
        )
    finally:
        airflow_address.reset(known)
    lines = hook.one()["message"].splitlines()
    assert (
        "in Airflow: trigger cdc_recover_shop (https://airflow.example/team/dags/cdc_recover_shop)" in lines
    )
    assert lines[-1] == "page: https://airflow.example/team/slotlake/pipeline/shop"
    _tell(file, _look(MISSING, state="slot missing"))  # of a sync, which knows nothing of Airflow
    assert hook.take() == []
    _tell(file, Looked(_look().status, []))
    assert "over: it is paused" in hook.one()["message"]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("slak://hush-token-a/hush-token-b/x", r"nothing is known of addresses with slak://.*slack://"),
        ("slack://hush-token-a", "not complete, or not one of slack://"),
        ("hush-token-a and more", "has no scheme"),
        ("https://example.com/hush-token-a", "a webhook of your own: jsons://host/path"),
    ],
)
def test_wrong_addresses(tmp_path: Path, address: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_RECEIVER", address)
    (error,) = sending.address_errors(_pipeline(tmp_path, "{to: [env:A_RECEIVER]}"))
    assert re.search(said, error.what)
    assert error.where == "shop.yaml, notify.to[0]"
    assert "hush" not in str(error)


@pytest.mark.parametrize(
    ("notify", "said"),
    [
        ("{to: [{url: 'json://hush', command: [x]}]}", "notify.to.0: give either url or command"),
        ("{to: [{command: echo}]}", "notify.to.0: write an address, env:NAME"),
        ("{to: [3]}", "notify.to.0: write an address"),
        ("{to: 'json://hush', repeat: 5s}", "notify.repeat: input should be greater than or equal to 60"),
        ("{to: 'json://hush', page: airflow}", "notify.page: write an address that begins with https://"),
        ("{to: [{url: 'json://hush', kinds: [lag]}]}", "notify.to.0.kinds.0"),
        ("{who: 'json://hush'}", "notify.who: unknown key"),
    ],
)
def test_wrong_sections(tmp_path: Path, notify: str, said: str) -> None:
    with pytest.raises(PipelineFileError) as refused:
        _pipeline(tmp_path, notify)
    assert said in str(refused.value)
    assert "hush" not in str(refused.value)


def test_the_address_is_nowhere(
    tmp_path: Path, hook: Webhook, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("A_RECEIVER", hook.url)
    file = _pipeline(tmp_path, "{to: [env:A_RECEIVER]}")
    hook.code = 404
    _tell(file, _look(LAG))
    written = [path.read_text() for path in file.state_dir.rglob("*") if path.is_file()]
    assert written
    assert SECRET not in "".join(written) + caplog.text + repr(file)
    assert {hook.url, SECRET} <= secrets_of(file)
    assert all(path.stat().st_mode & 0o077 == 0 for path in file.state_dir.rglob("*")), os.umask
